"""A query of a given duration, to observe the pool while its connections are in use."""

from app.store.ports import Pool


class Diagnostics:
    """
    Run queries that sleep.

    :param pool: lends connections.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def sleep(self, seconds: float) -> None:
        """Hold a connection for *seconds* in ``pg_sleep``."""
        self._pool.fetch("sleep", "select pg_sleep(%(seconds)s)", {"seconds": seconds})
