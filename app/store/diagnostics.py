"""A query that takes as long as it is told, to see what the pool does meanwhile."""

from app.store.ports import Pool


class Diagnostics:
    """Postgres asleep."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def sleep(self, seconds: float) -> None:
        """Hold a connection for *seconds* in ``pg_sleep``."""
        self._pool.fetch("sleep", "select pg_sleep(%(seconds)s)", {"seconds": seconds})
