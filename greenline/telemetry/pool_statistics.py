"""
Count what a pool of connections has done since it was made.

The names and their meanings are those of psycopg_pool's ``get_stats()``.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic

from greenline.telemetry.counters import growth_of

Numbers = dict[str, int]


class PoolStatistics:
    """
    The cumulative counts of one pool, which the pool changes itself.

    - ``requests_num``: connections that were requested.
    - ``requests_queued``: requests that waited, because no connection was idle.
    - ``requests_wait_s``: the time for which they waited.
    - ``requests_errors``: requests that failed: by a timeout or a full queue, for instance.
    - ``usage_s``: the time for which connections were checked out.
    - ``returns_bad``: connections that were returned in a state in which they had to be closed.
    - ``connections_num``: attempts to connect.
    - ``connections_s``: the time of those that succeeded.
    - ``connections_errors``: those that failed.
    - ``connections_lost``: idle connections that were found closed by the server or the network.
    """

    def __init__(self) -> None:
        self.requests_num = 0
        self.requests_queued = 0
        self.requests_wait_s = 0.0
        self.requests_errors = 0
        self.usage_s = 0.0
        self.returns_bad = 0
        self.connections_num = 0
        self.connections_s = 0.0
        self.connections_errors = 0
        self.connections_lost = 0
        self._popped: Mapping[str, int] = self._totals()

    def __repr__(self) -> str:
        numbers = " ".join(f"{name}={value}" for name, value in self._totals().items())
        return f"<PoolStatistics {numbers}>"

    def get(self) -> Numbers:
        """Return the counts since the last :meth:`pop`; times in milliseconds."""
        return _growth(self._popped, self._totals())

    def pop(self) -> Numbers:
        """Return the counts as :meth:`get` does, and begin at 0 again."""
        before, self._popped = self._popped, self._totals()
        return _growth(before, self._popped)

    def reader(self) -> Callable[[], Numbers]:
        """Return a function that returns how much each count has grown since its last call."""
        # Apart from pop(), so that an application's calls take nothing from the shared counters.
        return growth_of(self._totals)

    @contextmanager
    def queued(self) -> Iterator[None]:
        """Count a request that waits for the length of the block."""
        self.requests_queued += 1
        begun_s = monotonic()
        try:
            yield
        finally:
            self.requests_wait_s += monotonic() - begun_s

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Count an attempt to connect, which the block makes."""
        self.connections_num += 1
        begun_s = monotonic()
        try:
            yield
        except BaseException:
            self.connections_errors += 1
            raise
        self.connections_s += monotonic() - begun_s

    def _totals(self) -> Numbers:
        return {
            "requests_num": self.requests_num,
            "requests_queued": self.requests_queued,
            "requests_wait_ms": int(self.requests_wait_s * 1000),
            "requests_errors": self.requests_errors,
            "usage_ms": int(self.usage_s * 1000),
            "returns_bad": self.returns_bad,
            "connections_num": self.connections_num,
            "connections_ms": int(self.connections_s * 1000),
            "connections_errors": self.connections_errors,
            "connections_lost": self.connections_lost,
        }


def _growth(before: Mapping[str, int], now: Numbers) -> Numbers:
    return {name: value - before[name] for name, value in now.items()}
