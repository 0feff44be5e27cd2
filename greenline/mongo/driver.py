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

One document is found for a third less: without a cursor, on a collection that is kept, from a
primary that is selected once for each thing learnt of the servers, with one wait and one read for
the answer. Session, cluster time, pool, limits and the notice of failures are the driver's own.
tests/integration/test_mongo.py holds what is asked against what the driver's ``find_one`` asks, and
the tests of outages ask both ways.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from threading import Condition, Lock
from typing import Any, TypeVar, cast
from weakref import WeakSet

import pymongo
from gevent.lock import BoundedSemaphore
from pymongo import MongoClient, _csot
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import AutoReconnect, ConnectionFailure, ProtocolError, PyMongoError
from pymongo.network_layer import NetworkingInterface
from pymongo.read_preferences import Primary
from pymongo.server_selectors import writable_server_selector as WRITABLE
from pymongo.synchronous.pool import Connection, Pool
from pymongo.synchronous.server import Server
from pymongo.topology_description import TOPOLOGY_TYPE

Document = dict[str, Any]
T = TypeVar("T")

SOCKET_BUFFER_BYTES = 4096

# pymongo.timeout takes 0 for no limit at all.
LEAST_S = 0.001

# The label, in the manner of MongoDB's own, of errors after which a write may have been done.
WRITE_SENT = "GreenlineWriteSent"
# "Not primary": said before anything is done. Other such codes may interrupt a write half-way.
REFUSED_CODES = {10107, 13435, 13436}
# The answers to an abort that comes too late: no such transaction, and a newer one has begun.
ENDED_CODES = [251, 225]
# The sessions whose commit was sent. The driver counts its attempts anew in an overload.
commits_sent: WeakSet[ClientSession] = WeakSet()


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

    def _is_owned(self) -> bool:
        # threading's own tries to take the lock, and gevent's lock lets other greenlets run when
        # that fails: with the lock held, at each notify, twice for each connection given back.
        return self._taken_back.locked()

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


class BufferedSocket(NetworkingInterface):
    """
    A socket that is asked less than the driver asks.

    For each question the driver sets the timeout five times, and reads the head of the answer,
    then the rest: here the timeout is set before a wait, and an answer is read at once.
    """

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self._timeout_s = self._set_s = sock.gettimeout()
        self._buffer = memoryview(bytearray(SOCKET_BUFFER_BYTES))
        self._start = self._end = 0

    @property
    def get_conn(self) -> Any:
        return self

    def gettimeout(self) -> float | None:
        timeout_s: float | None = self._timeout_s
        return timeout_s

    def settimeout(self, timeout: float | None) -> None:
        self._timeout_s = timeout

    def sendall(self, data: bytes) -> None:
        """Send all of *data*: nearly always in one piece, for which gevent's own asks more."""
        sent = self._ready().send(data)
        if sent < len(data):
            self.conn.sendall(memoryview(data)[sent:])

    def recv_into(self, buffer: Any) -> int:
        if self._start == self._end:
            if len(buffer) >= SOCKET_BUFFER_BYTES:
                read: int = self._ready().recv_into(buffer)
                return read
            self._start, self._end = 0, self._ready().recv_into(self._buffer)
        count = min(len(buffer), self._end - self._start)
        buffer[:count] = self._buffer[self._start : self._start + count]
        self._start += count
        return count

    def _ready(self) -> Any:
        """Return the socket with its timeout."""
        if self._timeout_s != self._set_s:
            self._set_s = self._timeout_s
            self.conn.settimeout(self._timeout_s)
        return self.conn


class LimitedPool(Pool):
    """A pool whose waiters keep waitQueueTimeoutMS, and whose connects keep connectTimeoutMS."""

    def __init__(self, sockets: Sockets, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sockets = sockets
        # The same lock as threading's patched one, without the arguments that nothing here gives:
        # the driver takes it six times for each question, and no greenlet waits with it held.
        lock: Any = BoundedSemaphore()
        self.lock = lock
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
            connection.conn = BufferedSocket(connection.conn.conn)
            sockets.connected.add(connection)
        finally:
            sockets.connecting -= 1
        return connection


class KeptCollection(Collection[Document]):
    """A collection that finds one document without a cursor, for half of what that costs."""

    def find_one(
        self,
        filter: Any = None,  # noqa: A002 - the driver's name
        *args: Any,
        **kwargs: Any,
    ) -> Document | None:
        """Return a document that *filter* finds; asked for more than that, as the driver does."""
        client = cast("LimitedClient", self._database.client)
        is_plain = type(filter) is dict and "$query" not in filter and not args and not kwargs
        if not is_plain or not client.finds_plainly or client._get_bound_session():
            return super().find_one(filter, *args, **kwargs)
        command = {"find": self._name, "filter": filter, "limit": 1, "singleBatch": True}
        if self.read_concern.level:
            command["readConcern"] = self.read_concern.document
        answer = client.read(self._database.name, command, self)
        found: list[Document] = answer["cursor"]["firstBatch"]
        return found[0] if found else None


class KeptDatabase(Database[Document]):
    """A database that makes each collection once: to make one costs a tenth of a question."""

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
    A client that keeps serverSelectionTimeoutMS, and marks lost writes with ``WRITE_SENT``.

    ``users`` is for who lends it: how many have it now. ``sockets`` are all that it has open.
    """

    def __init__(self, uri: str, **options: Any) -> None:
        self.users = 0
        self.sockets = Sockets()
        self._default: KeptDatabase | None = None
        # The server that was found, and what was known of all servers then.
        self._primary: tuple[Any, Server | None] = (None, None)
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

    def default_database(self, name: str) -> KeptDatabase:
        """Return the database of the URI, else that of *name*; the same object each time."""
        if self._default is None:
            self._default = KeptDatabase(self, self.get_default_database(name).name)
        return self._default

    @cached_property
    def finds_plainly(self) -> bool:
        """Whether a find is a question and its answer, without what the driver may add to it."""
        return not self.options.retry_reads and self._encrypter is None

    @_csot.apply
    def read(self, database: str, command: Document, options: Collection[Document]) -> Document:
        """
        Return the answer to a command that only reads, with the preferences of *options*.

        It is ``Database.command`` without the driver's repetitions: the same session, selection of
        a server, pool, time limits, cluster time and notice of failures, in half of its calls.
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
        is_implicit = session is None or session._implicit
        is_plain = wants_primary and is_implicit and not address and not deprioritized_servers
        # The driver makes the description anew whenever it learns anything of a server.
        if server is None or known is not topology or not is_plain:
            with limited(self.options.server_selection_timeout):
                server = super()._select_server(
                    server_selector, session, operation, address, deprioritized_servers,
                    operation_id,
                )  # fmt: skip
            has_primary = topology.topology_type == TOPOLOGY_TYPE.ReplicaSetWithPrimary
            if is_plain and has_primary and topology is self._topology.description:
                self._primary = topology, server
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
            if how.get("operation") == "commitTransaction":
                commits_sent.add(args[0])
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


def has_time() -> bool:
    """Return whether the driver would send anything now, within ``pymongo.timeout``."""
    left_s = _csot.remaining()
    return left_s is None or left_s > _csot.get_rtt()


def abort_of(session: ClientSession) -> Document | None:
    """
    Return the command that aborts the last transaction of *session*; None: nothing was ever sent.

    It can be sent when *session* has ended. The driver may give the server's session to another
    one before that: its transactions have larger numbers, and the server refuses this one then.
    """
    ours = session._server_session
    number = getattr(ours, "transaction_id", None)
    if ours is None or number is None:
        return None
    lsid = ours.session_id
    return {"abortTransaction": 1, "lsid": lsid, "txnNumber": number, "autocommit": False}


def abort(client: MongoClient[Document], command: Document) -> None:
    """Send *command*, which :func:`abort_of` returned."""
    server = client._select_server(WRITABLE, None, "abortTransaction")
    with client._checkout(server, None) as connection:
        connection.command("admin", command, allowable_errors=ENDED_CODES, client=client)


def _is_refusal(error: PyMongoError) -> bool:
    answer = error.details if isinstance(error, AutoReconnect) else None
    return isinstance(answer, dict) and answer.get("code") in REFUSED_CODES


def limited(limit_s: float | None) -> AbstractContextManager[None]:
    """Bound a block to *limit_s* seconds, where ``pymongo.timeout`` replaces other limits."""
    if limit_s is None or not _csot.get_timeout():
        return nullcontext()
    return pymongo.timeout(max(limit_s, LEAST_S))
