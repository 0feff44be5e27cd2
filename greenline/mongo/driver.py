"""
Extend pymongo's MongoClient by private names, as of pymongo 4.19 and 4.20.

The client keeps its own time limits inside ``pymongo.timeout``, survives killed greenlets, marks
writes whose answer was lost, counts its sockets, and finds one document for two thirds of the cost.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from logging import DEBUG
from threading import Condition, Lock
from time import monotonic
from typing import Any, TypeVar, cast
from weakref import WeakSet

import pymongo
from gevent.lock import BoundedSemaphore
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import AutoReconnect, ConnectionFailure, ProtocolError, PyMongoError

from greenline.mongo.pymongo_compat import (
    TOPOLOGY_TYPE,
    Connection,
    MongoClient,
    NetworkingInterface,
    Pool,
    Primary,
    Server,
    _csot,
)
from greenline.mongo.pymongo_compat import writable_server_selector as WRITABLE
from greenline.telemetry.pool_statistics import PoolStatistics

Document = dict[str, Any]
T = TypeVar("T")

SOCKET_BUFFER_BYTES = 4096

# Instead of 0, which means no limit to pymongo.timeout.
LEAST_S = 0.001

# An error label in addition to MongoDB's own ones: the write was sent, and may have been done.
WRITE_SENT = "GreenlineWriteSent"
# "Not primary" codes, sent before anything is done. Other codes may interrupt a write half-way.
REFUSED_CODES = {10107, 13435, 13436}
# The answers to a late abort: no such transaction; a newer one has begun.
ENDED_CODES = [251, 225]
log = logging.getLogger(__name__)

# The sessions whose commit was sent. The driver's own count of attempts restarts in an overload.
commits_sent: WeakSet[ClientSession] = WeakSet()


class KillableCondition(Condition):
    """
    Hold the lock again when ``wait`` ends, also when the waiting greenlet was killed.

    A greenlet can be killed while it reacquires the lock. threading's condition then raises
    without the lock, the ``with`` around it releases the lock of another greenlet, and that one
    fails with "Semaphore released too many times" and leaks a slot of the pool. The fixes of
    PYTHON-6074 and PYTHON-6136 do not cover this case; see PYTHON-2334 as well.

    :param lock: the lock that ``wait`` releases meanwhile.
    """

    def __init__(self, lock: Lock) -> None:
        super().__init__(lock)
        self._taken_back = lock

    def _is_owned(self) -> bool:
        # threading's own method tries to acquire the lock, and gevent's lock switches greenlets
        # when that fails: at each notify, with the lock held, twice for each returned connection.
        return self._taken_back.locked()

    def _acquire_restore(self, _: Any) -> None:
        interrupt: BaseException | None = None
        while True:
            try:
                self._taken_back.acquire()
                break
            except BaseException as error:
                # Raised only with the lock held. The loop is short: pymongo never waits for I/O
                # while it holds the lock.
                interrupt = interrupt or error
        if interrupt is not None:
            raise interrupt


class Sockets:
    """Count the open sockets of one client, its monitors' included."""

    def __init__(self) -> None:
        self.connecting = 0
        self.connected: WeakSet[Connection] = WeakSet()

    def count(self) -> int:
        """Return the number of sockets that are connecting or open."""
        # Weakly referenced: a connection that the driver drops is closed by garbage collection.
        return self.connecting + sum(not one.closed for one in list(self.connected))


class BufferedSocket(NetworkingInterface):
    """
    Wrap a socket to make fewer calls of it.

    For each command the driver sets the timeout five times, and reads the header of the answer
    before its body. Here the timeout is set once before a wait, and a short answer is read at once.

    :param sock: the connected socket, or TLS socket.
    """

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self._timeout_s = self._set_s = sock.gettimeout()
        self._buffer = memoryview(bytearray(SOCKET_BUFFER_BYTES))
        self._start = self._end = 0

    @property
    def get_conn(self) -> Any:
        # pymongo passes this object to its sendall() and to its check for a closed socket.
        return self

    def gettimeout(self) -> float | None:
        timeout_s: float | None = self._timeout_s
        return timeout_s

    def settimeout(self, timeout: float | None) -> None:
        self._timeout_s = timeout

    def sendall(self, data: bytes) -> None:
        """Send all of *data*."""
        # Nearly always one piece suffices; gevent's sendall makes more calls for it.
        sent = self._ready().send(data)
        if sent < len(data):
            self.conn.sendall(memoryview(data)[sent:])

    def recv_into(self, buffer: Any) -> int:
        if self._start == self._end:
            # A large body goes into the driver's buffer at once, without a second copy.
            if len(buffer) >= SOCKET_BUFFER_BYTES:
                read: int = self._ready().recv_into(buffer)
                return read
            self._start, self._end = 0, self._ready().recv_into(self._buffer)
        count = min(len(buffer), self._end - self._start)
        buffer[:count] = self._buffer[self._start : self._start + count]
        self._start += count
        return count

    def _ready(self) -> Any:
        """Return the socket after setting its timeout, if that changed."""
        if self._timeout_s != self._set_s:
            self._set_s = self._timeout_s
            self.conn.settimeout(self._timeout_s)
        return self.conn


class LimitedPool(Pool):
    """
    Keep waitQueueTimeoutMS and connectTimeoutMS inside ``pymongo.timeout``.

    :param sockets: counts the sockets of the pool's client.
    :param statistics: counts what the client's pools do.
    :param name: the pool's name in DEBUG lines; None: it logs nothing. The other arguments are
        pymongo's.
    """

    greenline_counts_time = False  # the client does, see greenline.legacy.pymongo_time

    def __init__(
        self,
        sockets: Sockets,
        statistics: PoolStatistics,
        name: str | None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._sockets = sockets
        # A monitor has a pool of its own, which is not the application's.
        self._statistics = PoolStatistics() if self.is_sdam else statistics
        self._name = None if self.is_sdam else name
        # The base class of threading's patched lock, without the cost of its arguments: the driver
        # acquires it six times for each command, and never waits for I/O while it holds it.
        lock: Any = BoundedSemaphore()
        self.lock = lock
        self.size_cond = KillableCondition(self.lock)
        self._max_connecting_cond = KillableCondition(self.lock)

    def _get_conn(self, *args: Any, **kwargs: Any) -> Connection:
        statistics = self._statistics
        statistics.requests_num += 1
        # Without an idle connection it waits: for one, or for a new one.
        waiting = nullcontext() if self.conns else statistics.queued()
        try:
            with limited(self.opts.wait_queue_timeout), waiting:
                connection = super()._get_conn(*args, **kwargs)
        except BaseException:
            statistics.requests_errors += 1
            raise
        # On the connection itself: a weak dictionary costs an eighth of a checkout more.
        connection.greenline_checked_out_s = monotonic()  # type: ignore[attr-defined]
        if log.isEnabledFor(DEBUG):
            try:
                self._log("checked out connection %d", connection.id)
            except BaseException:
                # A log handler may switch greenlets, and this one may be killed meanwhile.
                self.checkin(connection)
                raise
        return connection

    def checkin(self, conn: Connection) -> None:
        statistics = self._statistics
        now = monotonic()
        usage_s = now - getattr(conn, "greenline_checked_out_s", now)
        statistics.usage_s += usage_s
        is_bad = conn.closed
        statistics.returns_bad += is_bad
        super().checkin(conn)
        # After the driver's critical sections: a log handler may switch greenlets.
        if log.isEnabledFor(DEBUG):
            state = "bad" if is_bad else "clean"
            self._log("connection %d returned %s after %.3f s", conn.id, state, usage_s)

    def _perished(self, conn: Connection) -> bool:
        is_lost = super()._perished(conn)
        self._statistics.connections_lost += is_lost
        if is_lost and log.isEnabledFor(DEBUG):
            self._log("closed connection %d, which was lost or idle for too long", conn.id)
        return is_lost

    def connect(self, *args: Any, **kwargs: Any) -> Connection:
        sockets = self._sockets
        if log.isEnabledFor(DEBUG):
            self._log("connecting")
        # Counted before the connect: its permit must not be given back while it goes on.
        sockets.connecting += 1
        try:
            with limited(self.opts.connect_timeout), self._statistics.connecting():
                connection = super().connect(*args, **kwargs)
            connection.conn = BufferedSocket(connection.conn.conn)
            sockets.connected.add(connection)
        finally:
            sockets.connecting -= 1
        if log.isEnabledFor(DEBUG):
            try:
                self._log("connected connection %d", connection.id)
            except BaseException:  # the driver has not got it yet, so it would not close it
                connection.close_conn(None)
                raise
        return connection

    def _log(self, event: str, *args: object) -> None:
        if self._name is not None:
            counts = len(self.conns), self.active_sockets
            log.debug("%s: %s; idle %d, active %d", self._name, event % args, *counts)


class KeptCollection(Collection[Document]):
    """Find one document without a cursor, which halves the cost of the call."""

    def find_one(
        self,
        filter: Any = None,  # noqa: A002 - the driver's name
        *args: Any,
        **kwargs: Any,
    ) -> Document | None:
        """Return one document that *filter* matches; other arguments go to the driver's method."""
        client = cast("LimitedClient", self._database.client)
        # "$query" is the old way to pass a sort or a hint within the filter.
        is_plain = type(filter) is dict and "$query" not in filter and not args and not kwargs
        if not is_plain or not client.finds_plainly or client._get_bound_session():
            return super().find_one(filter, *args, **kwargs)
        # The same command as the driver's find_one sends: tests/integration/test_mongo.py compares.
        command = {"find": self._name, "filter": filter, "limit": 1, "singleBatch": True}
        if self.read_concern.level:
            command["readConcern"] = self.read_concern.document
        answer = client.read(self._database.name, command, self)
        found: list[Document] = answer["cursor"]["firstBatch"]
        return found[0] if found else None


class KeptDatabase(Database[Document]):
    """
    Make each collection object once: making one costs a tenth of a command.

    :param client: the client of the database.
    :param name: the database's name, str.
    """

    def __init__(self, client: "LimitedClient", name: str) -> None:
        super().__init__(client, name)
        self._kept: dict[str, KeptCollection] = {}

    def __getitem__(self, name: str) -> KeptCollection:
        kept = self._kept.get(name)
        if kept is None:
            kept = self._kept[name] = KeptCollection(self, name)
        return kept


class LimitedClient(MongoClient[Document]):
    """
    Keep serverSelectionTimeoutMS, and mark lost writes with ``WRITE_SENT``.

    ``users`` is the number of blocks that use the client, counted by its owner. ``sockets`` counts
    the open sockets.

    :param uri: a MongoDB URI, str.
    :param statistics: counts what its pools do. Default: counts of its own.
    :param pool_name: the pool's name in DEBUG lines. Default None: it logs nothing.
    :param options: pymongo's options by name.
    """

    def __init__(
        self,
        uri: str,
        statistics: PoolStatistics | None = None,
        pool_name: str | None = None,
        **options: Any,
    ) -> None:
        self.users = 0
        self.sockets = Sockets()
        self._kept: dict[str, KeptDatabase] = {}
        self.is_warm = False
        # The topology description for which a primary was selected, and that primary.
        self._primary: tuple[Any, Server | None] = (None, None)
        # pymongo keeps these options for drivers on top of it. If a version drops them, only the
        # limits are lost, and tests/integration/test_mongo_outage.py and test_mongo_pool.py fail.
        inner: dict[str, Any] = {
            "_pool_class": partial(
                LimitedPool, self.sockets, statistics or PoolStatistics(), pool_name
            ),
            "_condition_class": KillableCondition,
        }
        super().__init__(uri, **inner, **options)

    def stats(self) -> dict[str, int]:
        """Return size, active (or connecting) and idle connections, and waiters, of all servers."""
        # The pools' own counters stay right when a greenlet is killed, for which
        # pymongo.monitoring publishes no event. They are private, hence the defaults.
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

    def kept_database(self, name: str) -> KeptDatabase:
        """Return the database named *name*; the same object each time."""
        kept = self._kept.get(name)
        if kept is None:
            kept = self._kept[name] = KeptDatabase(self, name)
        return kept

    @cached_property
    def finds_plainly(self) -> bool:
        """Whether a find is one command, without the driver's repetition or encryption."""
        return not self.options.retry_reads and self._encrypter is None

    @_csot.apply
    def read(self, database: str, command: Document, options: Collection[Document]) -> Document:
        """
        Run a command that only reads, and return its answer.

        It is ``Database.command`` without repetitions: the session, server selection, pool, time
        limits, cluster time and the handling of failures are the driver's own.

        :param database: the database's name, str.
        :param command: the command; its first key is the operation's name.
        :param options: the collection whose read preference and codec options apply.
        :raises PyMongoError: as ``Database.command`` does.
        """
        preference, codec = options.read_preference, options.codec_options
        session = self._ensure_session()
        try:
            server = self._select_server(preference, session, next(iter(command)))
            with self._conn_from_server(preference, server, session) as (connection, allowed):
                answer: Document = connection.command(
                    database, command, allowed, codec, session=session, client=self
                )
        finally:
            if session is not None:
                session.end_session()
        return answer

    def _select_server(
        self,
        server_selector: Any,
        session: Any,
        operation: str,
        address: Any = None,
        deprioritized_servers: Any = None,
        operation_id: int | None = None,
    ) -> Server:
        known, server = self._primary
        topology = self._topology.description
        wants_primary = type(server_selector) is Primary or server_selector is WRITABLE
        # An explicit session may be pinned to a server, or in a transaction.
        is_implicit = session is None or session._implicit
        is_plain = wants_primary and is_implicit and not address and not deprioritized_servers
        # The driver makes a new description for each change that it notices of a server, so the
        # kept primary is never older than its knowledge.
        if server is None or known is not topology or not is_plain:
            with limited(self.options.server_selection_timeout):
                server = super()._select_server(
                    server_selector, session, operation, address, deprioritized_servers,
                    operation_id,
                )  # fmt: skip
            has_primary = topology.topology_type == TOPOLOGY_TYPE.ReplicaSetWithPrimary
            # The selection may have waited: keep its result only if nothing changed meanwhile.
            if is_plain and has_primary and topology is self._topology.description:
                self._primary = topology, server
        # The driver sets the round-trip time inside limited(), whose end resets it.
        if _csot.get_timeout():
            _csot.set_rtt(server.description.min_round_trip_time)
        return server

    def _retry_internal(self, func: Callable[..., T], *args: Any, **how: Any) -> T:
        # "is_read" does not settle it: a command that runs as a read may be a write.
        is_command = how.get("is_run_command") or how.get("is_aggregate_write")
        if how.get("is_read") and not is_command:
            return super()._retry_internal(func, *args, **how)
        sent = False

        def send(*with_connection: Any) -> T:
            nonlocal sent
            # Before it is sent: after an interrupt the outcome is unknown, too.
            if how.get("operation") == "commitTransaction":
                commits_sent.add(args[0])
            try:
                return func(*with_connection)
            except (ConnectionFailure, ProtocolError) as error:
                # Of any attempt: the driver raises the error of its last one, which may have
                # found no server, although the first one was sent.
                sent = sent or not _is_refused(error)
                raise

        try:
            return super()._retry_internal(send, *args, **how)
        except PyMongoError as error:
            # A private method: tests/integration/test_mongo_retry.py fails if it goes away.
            if sent and isinstance(error, ConnectionFailure | ProtocolError):
                error._add_error_label(WRITE_SENT)
            raise


def has_time() -> bool:
    """Return whether ``pymongo.timeout`` leaves the driver time to send a command now."""
    # The driver does not send a command whose answer cannot arrive in time.
    left_s = _csot.remaining()
    return left_s is None or left_s > _csot.get_rtt()


def abort_of(session: ClientSession) -> Document | None:
    """
    Return the command that aborts the last transaction of *session*; None: nothing was sent yet.

    The command may be sent after *session* has ended. If the driver has given the server session
    to another client session by then, the transaction number is outdated and the server refuses it.
    """
    ours = session._server_session
    number = getattr(ours, "transaction_id", None)
    if ours is None or number is None:
        return None
    lsid = ours.session_id
    return {"abortTransaction": 1, "lsid": lsid, "txnNumber": number, "autocommit": False}


def abort(client: MongoClient[Document], command: Document) -> None:
    """
    Send an abort.

    :param client: the client, which need not have a session for it.
    :param command: the result of :func:`abort_of`.
    :raises PyMongoError: it could not be sent. A transaction that has ended is no error.
    """
    server = client._select_server(WRITABLE, None, "abortTransaction")
    with client._checkout(server, None) as connection:
        connection.command("admin", command, allowable_errors=ENDED_CODES, client=client)


def _is_refused(error: PyMongoError) -> bool:
    answer = error.details if isinstance(error, AutoReconnect) else None
    return isinstance(answer, dict) and answer.get("code") in REFUSED_CODES


def limited(limit_s: float | None) -> AbstractContextManager[None]:
    """Limit a block to *limit_s* seconds if ``pymongo.timeout`` replaces the driver's own limit."""
    # pymongo.timeout replaces serverSelectionTimeoutMS, waitQueueTimeoutMS and connectTimeoutMS,
    # though the drivers' specification asks for the lesser of both when a server is selected. An
    # outage would be reported only at the deadline, and as a slow server. A nested timeout limits
    # the phase alone, also in the middle of a block or before the driver's own second attempt.
    if limit_s is None or not _csot.get_timeout():
        return nullcontext()
    return pymongo.timeout(max(limit_s, LEAST_S))
