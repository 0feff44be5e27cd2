"""
Connect an application that calls ``psycopg2.connect`` itself, and behave as under threads.

In green mode libpq ignores ``connect_timeout`` and looks names up by itself, which blocks the hub;
both are done here. Greenlets may need more connections than the server has, where threads need one
each: a connect that is refused for lack of a connection slot waits until a worker of the host
closes a connection. Where all that have one wait for another one, none will, and the connect fails
as it does under threads. Greenlets share a connection as threads do:
:mod:`greenline.postgres.serialize`.
"""

import _socket
import os
import socket
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import gevent
import psycopg2
from gevent.event import Event
from psycopg2.extensions import connection as PsycopgConnection
from psycopg2.extensions import get_wait_callback
from psycopg2.extras import LogicalReplicationConnection, PhysicalReplicationConnection

from greenline.hub import deadline
from greenline.hub.backoff import Backoff
from greenline.hub.lock_waits import LockWait
from greenline.postgres import backlog
from greenline.postgres.connection import Connection as PooledConnection
from greenline.postgres.parameters import connect_timeout_s, parameters
from greenline.postgres.psycopg2_compat import calls_connect, psycopg2_connect
from greenline.postgres.resolve import Endpoint, Unresolved, endpoints, has_names, with_endpoints
from greenline.postgres.serialize import SerializedConnection, adopt, connection_class
from greenline.telemetry import counters

# Seconds to wait for a connection slot, without a connect_timeout.
SLOT_TIMEOUT_S = 30.0
SLOT_PAUSE_S, MAX_SLOT_PAUSE_S = 0.01, 0.2
# Seconds for which the server may still count a backend after its client's close.
SLOT_LINGER_S = 6.0
# And for which those that hold all the others, and wait for another one, wait for that.
STALL_S = 1.0
# psycopg2 keeps no SQLSTATE of a failed connect, and the text is in the server's language. So the
# SQLSTATE is searched for in the server's answer, if that is not encrypted.
TOO_MANY_CONNECTIONS = "53300"
SQLSTATE_FIELD = f"\0C{TOO_MANY_CONNECTIONS}\0".encode()
MAX_ANSWER_BYTES = 8192
ANSWERING = (4, 5)  # libpq's CONNECTION_AWAITING_RESPONSE and CONNECTION_AUTH_OK
# If it is encrypted: the texts in English.
NO_SLOT = (
    "too many clients already",
    "remaining connection slots are reserved",
    "too many connections for role",
    "too many connections for database",
)
UNTOUCHED = (LogicalReplicationConnection, PhysicalReplicationConnection, PooledConnection)

# Counters shared by the workers: whether one has connections that it may close, or has just closed
# one; and the number of its greenlets that wait for a slot.
HOLDING, WAITING = ("psycopg2", "holding"), ("psycopg2", "waiting")

# The id()s of the greenlets of this process that wait for a connection slot of a server, and how
# many these are.
_waiting_ones: set[int] = set()
waiting = 0
# How many connects no pool could take, where connects are checkouts.
unpooled = 0


def install() -> None:
    """Replace psycopg2's connect by :func:`connect`, and register the gauge ``psycopg2``."""
    if not calls_connect:
        return
    # psycopg2.connect() looks this name up at each call, so applications that imported the function
    # earlier are covered, too.
    psycopg2._connect = connect  # type: ignore[attr-defined]  # psycopg2.connect() calls it
    counters.add("psycopg2", _stats)


def connect(dsn: str, connection_factory: Any = None, **is_async: Any) -> Any:
    """
    Connect as ``psycopg2.connect`` does, and block one greenlet only.

    Asynchronous and replication connections, and those of greenline's own pool, are left to
    psycopg2.

    :param dsn: the connection string, made from all arguments of the application.
    :param connection_factory: the application's, None for psycopg2's class.
    :returns: a connection of that class which greenlets may share.
    :raises psycopg2.OperationalError: as libpq words it.
    :raises DeadlineExceeded: the request's deadline has passed.
    """
    factory = connection_factory or PsycopgConnection
    is_class = isinstance(factory, type)
    is_own = is_class and issubclass(factory, UNTOUCHED)
    if is_own or any(is_async.values()) or get_wait_callback() is None:
        return psycopg2_connect(dsn, connection_factory=connection_factory, **is_async)
    given = parameters(dsn)
    timeout_s = connect_timeout_s(given)
    until_s = monotonic() + (timeout_s or SLOT_TIMEOUT_S)
    make = partial(_make, partial(_new, factory)) if is_class else partial(_adopt, factory)
    attempt = partial(_connect, dsn, given, make, timeout_s, until_s)
    conn = _connect_in_turn(dsn, attempt, until_s)
    _note_open(conn)
    return conn


def connect_once(dsn: str, new: Callable[[str], Any]) -> Any:
    """
    Connect within the ``connect_timeout`` of *dsn*, and do not wait for a connection slot.

    :param dsn: the connection string.
    :param new: returns the object to connect, which is not connected yet, for a connection string.
    :returns: the object that *new* returned last.
    :raises psycopg2.OperationalError: as libpq words it.
    :raises DeadlineExceeded: the request's deadline has passed.
    """
    given = parameters(dsn)
    timeout_s = connect_timeout_s(given)
    until_s = monotonic() + (timeout_s or SLOT_TIMEOUT_S)
    return _connect(dsn, given, partial(_make, new), timeout_s, until_s)


class ForeignConnection(SerializedConnection):
    """A connection that an application made."""

    _reference: Any = None

    def close(self) -> None:
        """Close, and let a greenlet that waits for a connection slot try again."""
        SerializedConnection.close(self)
        _note_closed(self._reference)


# ---- One connect: names, and connect_timeout


class _Expired(Exception):
    """One address did not answer within the timeout."""


def _connect(
    dsn: str, given: dict[str, str], make: Any, timeout_s: float | None, until_s: float
) -> Any:
    """Connect to the first server that answers; *timeout_s* is for each address, as in libpq."""
    global _connecting
    _connecting += 1
    try:
        servers: list[Endpoint] = []
        if has_names(given):
            servers = _look_up(given, timeout_s)
            dsn = with_endpoints(dsn, servers)
        if timeout_s is None:
            return backlog.connect(dsn, make, until_s)
        return _connect_in_time(dsn, servers or endpoints(given), make, timeout_s)
    finally:
        _connecting -= 1


def _connect_in_time(dsn: str, servers: list[Endpoint], make: Any, timeout_s: float) -> Any:
    late = ""
    while True:
        attempt = _Attempt(servers, timeout_s)
        try:
            return attempt.connect(dsn, make)
        except _Expired:
            # libpq cannot continue with the next address: connect again without this one.
            late += _describe(servers.pop(attempt.current))
            if not servers:
                raise psycopg2.OperationalError(late) from None
            dsn = with_endpoints(dsn, servers)
        except psycopg2.OperationalError as error:
            if late:
                error.args = (f"{late}{error}",)
            raise


def _look_up(given: dict[str, str], timeout_s: float | None) -> list[Endpoint]:
    with gevent.Timeout(timeout_s) as timeout:
        try:
            return endpoints(given)
        except Unresolved as error:
            reasons = error.reasons
        except gevent.Timeout as error:
            if error is not timeout:
                raise
            reasons = [(given["host"], "timeout expired")]
    raise psycopg2.OperationalError(
        "".join(
            f'could not translate host name "{host}" to address: {why}\n' for host, why in reasons
        )
    )


class _Attempt:
    """One call of libpq, which tries *servers* in turn, each for *timeout_s* seconds."""

    def __init__(self, servers: Sequence[Endpoint], timeout_s: float) -> None:
        self.current = 0  # the index of the server that libpq tries now
        self._families = [_family(server) for server in servers]
        self._timeout_s = timeout_s
        self._inode = 0

    def connect(self, dsn: str, make: Any) -> Any:
        """
        Return the connection that *make* makes.

        :raises _Expired: the server ``current`` did not answer in time.
        """
        self._timer = gevent.Timeout.start_new(self._timeout_s)
        try:
            poll = _poll if len(self._families) == 1 else self._poll
            return backlog.connect(dsn, partial(make, poll=poll))
        except gevent.Timeout as error:
            if error is not self._timer:
                raise
            raise _Expired from None
        finally:
            self._timer.close()

    def _poll(self, conn: PsycopgConnection, poll: Callable[[], int]) -> int:
        """Poll; restart the timer when libpq continues with the next address."""
        state = _poll(conn, poll)
        # libpq does not report the address. A new one is a new socket, which may have the same
        # descriptor but has another inode. A socket of another family than the next server's: libpq
        # skipped that server.
        inode = os.fstat(conn.fileno()).st_ino
        if inode != self._inode:
            with socket.socket(fileno=os.dup(conn.fileno())) as same:
                family = same.family
            first = self.current + 1 if self._inode else 0
            later = [at for at in range(first, len(self._families)) if self._families[at] == family]
            self.current = later[0] if later else self.current
            self._inode = inode
            self._timer.close()
            self._timer = gevent.Timeout.start_new(self._timeout_s)
        return state


def _poll(conn: PsycopgConnection, poll: Callable[[], int]) -> int:
    """Poll; set the SQLSTATE in the error of a server that has no connection slot."""
    has_no_slot = SQLSTATE_FIELD in _received(conn)  # before libpq reads it
    try:
        return poll()
    except psycopg2.OperationalError as error:
        if has_no_slot:
            error.__setstate__({"pgcode": TOO_MANY_CONNECTIONS})  # type: ignore[no-untyped-call]
        raise


def _received(conn: PsycopgConnection) -> bytes:
    """Return the server's data that has arrived and that libpq has not read."""
    # Not earlier: a recv() on a socket whose connect failed clears the error, which libpq then
    # cannot report.
    if conn.info.status not in ANSWERING:
        return b""
    with suppress(OSError, psycopg2.Error):
        # Not gevent's socket, which would wait. With all arguments given, the family is not looked
        # up; it has no effect on recv().
        same = _socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, conn.fileno())
        try:
            same.setblocking(False)
            return same.recv(MAX_ANSWER_BYTES, socket.MSG_PEEK)
        finally:
            same.detach()
    return b""


def _new(factory: type, dsn: str) -> Any:
    """Return an object of *factory* that is not connected, of a class that greenlets may share."""
    made: Any = connection_class(factory, ForeignConnection)
    return made.__new__(made, dsn)


def _make(new: Callable[[str], Any], dsn: str, *, poll: Callable[..., int] = _poll) -> Any:
    """
    Connect the object that *new* returns, and return it.

    :param new: returns an object that is not connected yet.
    :param dsn: the connection string, str.
    :param poll: is called with the connection and its method ``poll``, in place of that method,
        until it is connected.
    """
    conn = new(dsn)
    conn.poll = partial(poll, conn, conn.poll)  # called by every wait callback
    try:
        conn.__init__(dsn)
    finally:
        del conn.poll
    return conn


def _adopt(factory: Callable[[str], Any], dsn: str, *, poll: object = None) -> Any:
    """Return the connection that a function of the application makes; it polls by itself."""
    return adopt(factory(dsn), connection_class, ForeignConnection)


def _family(server: Endpoint) -> int:
    if not server.hostaddr:
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in server.hostaddr else socket.AF_INET


def _describe(server: Endpoint) -> str:
    """Return libpq's error text for a server that did not answer in time."""
    if not server.hostaddr:
        where = (
            f'on socket "{server.host}/.s.PGSQL.{server.port}"' if server.host else "on its socket"
        )
    elif server.host in ("", server.hostaddr):
        where = f'at "{server.hostaddr}", port {server.port}'
    else:
        where = f'at "{server.host}" ({server.hostaddr}), port {server.port}'
    return f"connection to server {where} failed: timeout expired\n"


# ---- The wait for a connection slot of the server

_open: set["weakref.ref[PsycopgConnection]"] = set()
_closed_s = float("-inf")  # the time of the last close
_queues: dict[str, "_SlotQueue"] = {}
_connecting = 0  # connects that are under way


def _stats() -> dict[str, int]:
    return {"holding": int(_holds_a_slot()), "waiting": waiting, "unpooled": unpooled}


def slots_wanted() -> int:
    """Return how many greenlets of the host wait for a slot that this worker may hold."""
    return max(waiting, counters.value(WAITING)) if _holds_a_slot() else waiting


def _note_open(conn: PsycopgConnection) -> None:
    reference = weakref.ref(conn, _note_closed)
    _open.add(reference)
    counters.set_value(HOLDING, 1)  # at once: another worker may be refused before the next look
    if isinstance(conn, ForeignConnection):
        conn._reference = reference
        conn._user = id(gevent.getcurrent())
        conn.settled = True


def _note_closed(reference: Any) -> None:
    """Record once that a connection was closed, or collected without a close."""
    global _closed_s
    if reference in _open:
        _open.discard(reference)
        _closed_s = monotonic()
        for queue in list(_queues.values()):
            queue.free()


def _may_get_a_slot() -> bool:
    """Return whether a worker of the host may close a connection, or has just closed one."""
    # Else other clients hold all the slots, and the error is the application's, as under threads.
    # A connect that is under way may have got the last slot.
    if _connecting > 0 or _holds_a_slot():
        return True
    counters.set_value(HOLDING, 0)
    return counters.value(HOLDING) > 0


def _holds_a_slot() -> bool:
    """Return whether this process has connections that it may close, or has just closed one."""
    # The one that used it last may close it, unless it waits for a slot itself.
    may_close = [
        getattr(conn, "_user", 0) not in _waiting_ones
        for conn in (each() for each in list(_open))
        if conn is not None and not conn.closed
    ]
    return any(may_close) or monotonic() - _closed_s < (STALL_S if may_close else SLOT_LINGER_S)


def has_no_slot(error: psycopg2.OperationalError) -> bool:
    """Return whether the server refused a connect because it has no connection slot left."""
    is_known = error.pgcode == TOO_MANY_CONNECTIONS
    return is_known or any(text in str(error) for text in NO_SLOT)


def _connect_in_turn(dsn: str, attempt: Callable[[], Any], until_s: float) -> Any:
    """Return *attempt*'s connection; if there is no slot, wait for one until *until_s*."""
    refused = None
    if dsn not in _queues:  # else it would overtake waiting greenlets
        try:
            return attempt()
        except psycopg2.OperationalError as error:
            if not has_no_slot(error) or not _may_get_a_slot():
                raise
            refused = _without_frames(error)
    queue = _queues.get(dsn)
    if queue is None:
        queue = _queues[dsn] = _SlotQueue()
    try:
        return queue.connect(attempt, until_s, refused)
    finally:
        if queue.is_empty():
            _queues.pop(dsn, None)


def _forget() -> None:
    global _connecting
    _connecting = 0
    _waiting_ones.clear()


# In a child the greenlets that connect are gone.
os.register_at_fork(after_in_child=_forget)


def _without_frames(error: psycopg2.OperationalError) -> psycopg2.OperationalError:
    """Return *error* without its traceback, whose frames keep the refused connection open."""
    return error.with_traceback(None)


class _SlotQueue:
    """Greenlets that wait for a slot of one server, in the order in which they came."""

    def __init__(self) -> None:
        self._line: deque[_QueuedConnect] = deque()
        self._free = 0  # closed connections that no waiter has been woken for

    def is_empty(self) -> bool:
        return not self._line

    def free(self) -> None:
        """Let one more waiter try: this process has closed a connection."""
        self._free += 1
        self._give()

    def connect(self, attempt: Callable[[], Any], until_s: float, refused: Exception | None) -> Any:
        """
        Return the connection that *attempt* makes.

        :param attempt: makes a connection.
        :param until_s: the ``time.monotonic()`` of the last attempt, float.
        :param refused: the error of an earlier attempt of this greenlet, None if there was none.
        :raises psycopg2.OperationalError: *attempt* failed, the last time by *until_s*.
        :raises DeadlineExceeded: the request's deadline has passed.
        """
        waiter, me = _QueuedConnect(), id(gevent.getcurrent())
        self._line.append(waiter)
        self._give()
        _waiting_ones.add(me)
        _count()
        try:
            with deadline.spending("pool"), LockWait():
                conn = self._connect(waiter, attempt, until_s, refused)
                waiter.may_try = False  # the slot is used
                return conn
        finally:
            self._line.remove(waiter)
            _waiting_ones.discard(me)
            _count()
            if _holds_a_slot():  # it may close one again, which another worker may be waiting for
                counters.set_value(HOLDING, 1)
            # A slot that this waiter did not use is the next one's.
            self._free += waiter.may_try
            self._give()
            if self._line:
                self._line[0].wake_up.set()  # the first one always tries

    def _give(self) -> None:
        """Let one waiter try for each closed connection."""
        for waiter in self._line:
            if not self._free:
                break
            if not waiter.may_try:
                self._free -= 1
                waiter.may_try = True
                waiter.wake_up.set()

    def _connect(
        self,
        waiter: "_QueuedConnect",
        attempt: Callable[[], Any],
        until_s: float,
        refused: Exception | None,
    ) -> Any:
        backoff = Backoff(SLOT_PAUSE_S, MAX_SLOT_PAUSE_S)
        is_refused = refused is not None
        while (left_s := until_s - monotonic()) > 0:
            waiter.wake_up.clear()
            # The first in the queue tries at intervals: another process may have closed a
            # connection, of which this one gets no notice.
            if not waiter.may_try and self._line[0] is not waiter:
                deadline.wait_in(waiter.wake_up.wait, left_s)
                continue
            if is_refused or not waiter.may_try:
                # Not at once: the backend of a closed connection lives on for a moment.
                deadline.wait_in(waiter.wake_up.wait, min(left_s, backoff.next_s()))
                if waiter.wake_up.is_set():
                    backoff = Backoff(SLOT_PAUSE_S, MAX_SLOT_PAUSE_S)
                elif backoff.is_at_max:
                    # Another process has got the slot. Each attempt costs the server a process, so
                    # only the first in the queue continues.
                    waiter.may_try = False
            try:
                return attempt()
            except psycopg2.OperationalError as error:
                if not has_no_slot(error) or not _may_get_a_slot():
                    raise
                refused, is_refused = _without_frames(error), True
        if refused is not None:
            raise refused
        return attempt()


class _QueuedConnect:
    """A greenlet in a :class:`_SlotQueue`."""

    def __init__(self) -> None:
        self.may_try = False  # a closed connection is reserved for it
        self.wake_up = Event()


def _count() -> None:
    global waiting
    waiting = len(_waiting_ones)
    counters.set_value(WAITING, waiting)
