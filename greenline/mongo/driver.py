"""
A MongoClient whose own limits hold inside ``pymongo.timeout``, and whose greenlets can be killed.

``pymongo.timeout`` *replaces* serverSelectionTimeoutMS, waitQueueTimeoutMS and connectTimeoutMS
by what is left of its time. (The drivers' specification asks for the lesser of both when a
server is selected; pymongo 4.20 does not do it.) So an outage would be told only when the whole
time of a request is over, and as if MongoDB had been slow.

Here each of these phases gets a nested, shorter ``pymongo.timeout``: the lesser of both counts,
and only for the phase; the operation itself has all that is left. This also holds for a server
that is lost in the middle of a block, between two batches of a cursor, or before the driver's own
second attempt, which a limit around the whole operation could not tell from a slow answer.

The overridden methods are pymongo's own, not its API; the classes are given by options that
pymongo keeps for drivers on top of it. Should a version drop them, nothing but these limits is
lost, and tests/integration/test_mongo_outage.py and test_mongo_pool.py notice.

So it is with the numbers of :meth:`LimitedClient.stats`: the pools' own ones cost nothing, and are
right when a greenlet was killed, for which there are no events of ``pymongo.monitoring``.

And a write that was sent and not answered is marked, so that it can be told from one that found
no server: the driver's error does not say so, and after its own second attempt is that one's.
tests/integration/test_mongo_retry.py notices when that is lost.

And every socket is counted, the monitors' too, from before its connect until it is closed.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import Condition, Lock
from typing import Any, TypeVar
from weakref import WeakSet

import pymongo
from pymongo import MongoClient, _csot
from pymongo.errors import AutoReconnect, ConnectionFailure, ProtocolError, PyMongoError
from pymongo.synchronous.pool import Connection, Pool
from pymongo.synchronous.server import Server

T = TypeVar("T")

# pymongo.timeout takes 0 for no limit at all.
LEAST_S = 0.001

# The label, in the manner of MongoDB's own, of errors after which a write may have been done.
WRITE_SENT = "GreenlineWriteSent"
# "Not primary": said before anything is done. Other such codes may interrupt a write half-way.
REFUSED_CODES = {10107, 13435, 13436}


class KillableCondition(Condition):
    """
    A condition whose waiter holds the lock again when ``wait`` ends, however it ends.

    A greenlet can be killed while it takes the lock back. threading's condition then raises
    without the lock, the ``with`` around it releases one that another greenlet holds, and that
    one fails with "Semaphore released too many times" and leaves a slot of the pool behind. The
    fixes of PYTHON-6074 and PYTHON-6136 do not cover it; it was seen at PYTHON-2334.
    """

    def __init__(self, lock: Lock) -> None:
        super().__init__(lock)
        self._taken_back = lock

    def _acquire_restore(self, _: Any) -> None:
        interrupt: BaseException | None = None
        while True:
            try:
                self._taken_back.acquire()
                break
            except BaseException as error:  # nobody holds it for longer than a moment
                interrupt = interrupt or error
        if interrupt is not None:
            raise interrupt


class Sockets:
    """The sockets of one client: those that connect now, and those that are not closed."""

    def __init__(self) -> None:
        self.connecting = 0
        self.connected: WeakSet[Connection] = WeakSet()

    def count(self) -> int:
        """Return how many there are; a dropped one is closed when it is collected."""
        return self.connecting + sum(not one.closed for one in list(self.connected))


class LimitedPool(Pool):
    """A pool whose waiters keep waitQueueTimeoutMS, and whose connects keep connectTimeoutMS."""

    def __init__(self, sockets: Sockets, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sockets = sockets
        self.size_cond = KillableCondition(self.lock)
        self._max_connecting_cond = KillableCondition(self.lock)

    def _get_conn(self, *args: Any, **kwargs: Any) -> Connection:
        with limited(self.opts.wait_queue_timeout):
            return super()._get_conn(*args, **kwargs)

    def connect(self, *args: Any, **kwargs: Any) -> Connection:
        sockets = self._sockets
        sockets.connecting += 1
        try:
            with limited(self.opts.connect_timeout):
                connection = super().connect(*args, **kwargs)
            sockets.connected.add(connection)
        finally:
            sockets.connecting -= 1
        return connection


class LimitedClient(MongoClient[dict[str, Any]]):
    """
    A client that keeps serverSelectionTimeoutMS, and marks lost writes with ``WRITE_SENT``.

    ``users`` is for who lends it: how many have it now. ``sockets`` are all that it has open.
    """

    def __init__(self, uri: str, **options: Any) -> None:
        self.users = 0
        self.sockets = Sockets()
        inner: dict[str, Any] = {
            "_pool_class": partial(LimitedPool, self.sockets),
            "_condition_class": KillableCondition,
        }
        super().__init__(uri, **inner, **options)

    def stats(self) -> dict[str, int]:
        """Return size, of which active (or connecting) and idle; and waiting; of all servers."""
        servers = getattr(self._topology, "_servers", {})
        pools = [server.pool for server in servers.values()]
        active = sum(getattr(pool, "active_sockets", 0) for pool in pools)
        idle = sum(len(getattr(pool, "conns", ())) for pool in pools)
        begun = sum(getattr(pool, "operation_count", 0) for pool in pools)
        return {
            "size": active + idle,
            "active": active,
            "idle": idle,
            "waiting": begun - active,
        }

    def _select_server(self, *args: Any, **kwargs: Any) -> Server:
        with limited(self.options.server_selection_timeout):
            server = super()._select_server(*args, **kwargs)
        if _csot.get_timeout():  # set inside as well, and forgotten at the end of the block
            _csot.set_rtt(server.description.min_round_trip_time)
        return server

    def _retry_internal(self, func: Callable[..., T], *args: Any, **how: Any) -> T:
        # A command may be anything, also a write.
        is_command = how.get("is_run_command") or how.get("is_aggregate_write")
        if how.get("is_read") and not is_command:
            return super()._retry_internal(func, *args, **how)
        sent = False

        def send(*with_connection: Any) -> T:
            nonlocal sent
            try:
                return func(*with_connection)
            except (ConnectionFailure, ProtocolError) as error:
                sent = sent or not _is_refusal(error)
                raise

        try:
            return super()._retry_internal(send, *args, **how)
        except PyMongoError as error:
            if sent and isinstance(error, ConnectionFailure | ProtocolError):
                error._add_error_label(WRITE_SENT)
            raise


def _is_refusal(error: PyMongoError) -> bool:
    answer = error.details if isinstance(error, AutoReconnect) else None
    return isinstance(answer, dict) and answer.get("code") in REFUSED_CODES


def limited(limit_s: float | None) -> AbstractContextManager[None]:
    """Bound a block to *limit_s* seconds, where ``pymongo.timeout`` replaces other limits."""
    if limit_s is None or not _csot.get_timeout():
        return nullcontext()
    return pymongo.timeout(max(limit_s, LEAST_S))
