"""
Make ``psycopg2.connect`` a checkout from a pool, for applications that connect by themselves.

There is a pool for each connection string, within the host's connection slots: the connections of
unmodified code are bounded over all workers of the host. What the application gets is a
:class:`greenline.postgres.handle.Handle`. Where all connections are in use, its first statement
waits in turn. Its connection comes back by ``close()``, or with the end of its last reference.

An application's own pool keeps idle connections. While others wait, the connection under an idle
handle is taken over, and the handle gets another one at its next use.
"""

import gc
import logging
import os
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Any, cast

import gevent
import psycopg2
from gevent import getcurrent
from gevent.lock import BoundedSemaphore
from psycopg2.extensions import (
    STATUS_PREPARED,
    TRANSACTION_STATUS_ACTIVE,
    TRANSACTION_STATUS_IDLE,
    get_wait_callback,
    make_dsn,
    parse_dsn,
)
from psycopg2.extensions import connection as PsycopgConnection

from greenline import settings
from greenline.errors import (
    ClientGone,
    ConfigError,
    DeadlineExceeded,
    GreenlineError,
    PoolTimeout,
    StoreDown,
    Unavailable,
)
from greenline.hub import deadline, request_end, unavailable
from greenline.hub.handlers import Handler
from greenline.hub.patching import require_hook
from greenline.hub.request_timeout import WaitTimeout
from greenline.lifecycle.resources import close_at_exit
from greenline.offload import fork
from greenline.postgres import deadlock, factory, foreign, scoped, session
from greenline.postgres.connect import KEEPALIVES
from greenline.postgres.handle import (
    CLOSED,
    Backend,
    Handle,
    is_idle,
    is_lost,
    is_movable,
    open_cursors,
)
from greenline.postgres.limits import APPLICATION
from greenline.postgres.parameters import connect_timeout_s, parameters
from greenline.postgres.psycopg2_compat import calls_connect
from greenline.postgres.serialize import connection_class

# Seconds between two looks for idle handles: while a greenlet waits for a connection, and for other
# pools and processes that wait for a slot.
LOOK_S, WATCH_S = 0.01, 0.1
# Garbage may hold connections. The young generations are collected when a connection is wanted
# and a cursor was left open; all of them when a greenlet has waited for so many seconds. The pause
# is at least so many times what the last collection has taken.
YOUNG, ALL = 1, 2
COLLECT_S, COLLECT_PAUSE = 1.0, 50
# Seconds for which a request waits for one more connection before the server is asked whether
# others wait for its locks, and between two such questions of a process.
DEADLOCK_S = 0.2
# Seconds for which a handle keeps its connection while one request after the other uses it, and
# after which it is idle: to take a connection over costs two round trips.
TENURE_S, IDLE_S = 0.05, 0.01
# Seconds for the server's answers while a connection is taken over: others wait for it meanwhile.
MOVE_S = 10.0
# Seconds after which a session that cannot be moved is looked at again.
BOUND_S = 1.0
CLOSE_IDLE_S = 5.0
UNUSED_S = 600.0
OF_A_THREAD = "a native thread cannot check a connection out: connect in it"
HIDDEN = "xxx"  # what psycopg2 shows for a password
ASYNCHRONOUS = "async", "async_"

log = logging.getLogger(__name__)

# What a handle has kept until its session was read.
MOVING = session.Session("")
# The holder of a connection that no request will give back: a greenlet that serves none has it, or
# an idle session that cannot be moved.
OTHER = object()

_pools: dict[str, "DsnPool"] = {}
_opening = BoundedSemaphore()  # the slot table's file may let a greenlet wait
# Connections whose handles have ended in a thread or a moment that must not wait.
_dropped: "deque[tuple[DsnPool, Backend]]" = deque()
_used_by: dict[Any, set["weakref.ref[Handle]"]] = {}
_collector: Any = None


def pool_psycopg2() -> None:
    """
    Make each ``psycopg2.connect`` of the process a checkout from a pool, as GREENLINE_POOL=1 does.

    Call it once, in the first line of a script after ``greenline.patch.patch_all()``, or of a
    module that a worker loads. ``close()`` and the end of the last reference give back.

    :raises LatePatching: psycopg2 would block the hub.
    :raises ConfigError: a variable of the budget is wrong.
    """
    require_hook()
    factory.own_sizing()  # now: each request would fail
    if not calls_connect:
        return
    psycopg2._connect = connect  # type: ignore[attr-defined]  # psycopg2.connect() calls it
    _prepare()


def _prepare() -> None:
    if end_request not in request_end.functions:
        request_end.functions.append(end_request)
    scoped.install()


def pooled_connect(
    dsn: str | None = None,
    connection_factory: Any = None,
    cursor_factory: Any = None,
    **parameters: Any,
) -> Any:
    """
    Connect as ``psycopg2.connect`` does with GREENLINE_POOL=1, whatever the setting is.

    The parameters and their defaults are psycopg2's.
    """
    _prepare()
    asynchronous = {name: parameters.pop(name) for name in ASYNCHRONOUS if name in parameters}
    conn = connect(make_dsn(dsn, **parameters), connection_factory, **asynchronous)
    if cursor_factory is not None:
        conn.cursor_factory = cursor_factory
    return conn


def connect(dsn: str, connection_factory: Any = None, **is_async: Any) -> Any:
    """
    Check a connection out as ``psycopg2.connect`` makes one.

    What no pool can lend is left to :mod:`greenline.postgres.foreign`: asynchronous and replication
    connections, those that a function makes, those of native threads, and those of forked children.

    :param dsn: the connection string, made from all arguments of the application.
    :param connection_factory: the application's, None for psycopg2's class.
    :returns: a connection of that class.
    :raises psycopg2.OperationalError: as libpq words it; with SQLSTATE 53300 where no connection
        became free in time.
    """
    wanted = connection_factory or PsycopgConnection
    if (
        any(is_async.values())
        or not isinstance(wanted, type)
        or issubclass(wanted, foreign.UNTOUCHED)
        or get_wait_callback() is None
        or not gevent.get_hub().main_hub
        # The request may keep a connection while it waits for its child.
        or fork.is_child
        # One that cannot have a base added.
        or not issubclass(made := connection_class(wanted, PooledHandle), PooledHandle)
    ):
        foreign.unpooled += 1
        return foreign.connect(dsn, connection_factory, **is_async)
    return made(dsn)


class PooledHandle(Handle):
    """A handle that finds its pool by the connection string."""

    def __init__(self, dsn: str, *_: Any, **__: Any) -> None:  # a subclass passes async_ on
        self._source = _pool_of(dsn)
        super().__init__(dsn)


def _pool_of(dsn: str) -> "DsnPool":
    found = _pools.get(dsn)
    if found is None:
        with _opening:
            found = _pools.get(dsn)
            if found is None:
                _close_unused()
                found = _pools[dsn] = DsnPool(dsn)
    return found


def _close_unused() -> None:
    """Close pools that were not used for a long time: a password may change every hour."""
    for dsn, pool in list(_pools.items()):
        if not pool.has_handles() and monotonic() - pool.used_s > UNUSED_S:
            del _pools[dsn]
            gevent.spawn(pool.close)


class DsnPool:
    """
    The pool of one connection string, which the exit of the process closes.

    :param dsn: the connection string.
    """

    def __init__(self, dsn: str) -> None:
        given = parse_dsn(dsn)
        self._key = dsn
        self.dsn = make_dsn(**{**given, "password": HIDDEN}) if "password" in given else dsn
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._moving: gevent.Greenlet[..., None] | None = None  # begun by the end of a request
        self._looking: gevent.Greenlet[[], None] | None = None
        self._watching: gevent.Greenlet[[], None] | None = None
        self._collects_s = {YOUNG: 0.0, ALL: 0.0}  # when garbage may be collected again
        self._takes_over = settings.POOL_TAKE_OVER.read()
        self.used_s = monotonic()
        self._is_closed = False
        self.is_parents = False  # this process was forked, and has its parent's connections
        timeout_s = connect_timeout_s(parameters(dsn)) or foreign.SLOT_TIMEOUT_S
        self._timeout_s = timeout_s
        self._pool, share, self._close_pool = factory.pool_of(
            dsn, partial(_connect, dsn), name="psycopg2 pool", timeout_s=timeout_s,
            on_wait=self._look,
        )  # fmt: skip
        self._share, self._nesting = share, share.nesting
        # The process ids of a pgbouncer are its own.
        self._finds_deadlocks = settings.PGBOUNCER_POOL_SIZE.read() is None
        close_at_exit(self.close)

    def close(self) -> None:
        """Close the pool, and the connections that an application's own pool keeps idle."""
        if _pools.get(self._key) is self:
            del _pools[self._key]
        self._is_closed = True
        for handle in list(self._handles):
            moving = self._take_over(handle)
            if moving is not None:
                moving.join()
        self._close_pool()

    def has_handles(self) -> bool:
        """Return whether the application has connections of it."""
        return any(True for _ in self._handles)

    def acquire(self, handle: Handle, *, waits: bool = True) -> Backend | None:
        """
        Return a connection for *handle*.

        :param handle: the connection of the application.
        :param waits: whether it waits for a connection that others use, bool. Default True; else
            it returns None.
        :raises psycopg2.OperationalError: none became free in time, or none could be made.
        :raises psycopg2.InterfaceError: *handle* is the parent's of this process.
        """
        if self.is_parents:
            raise psycopg2.InterfaceError(CLOSED)
        if self._is_closed:  # code that runs at the exit of the process, for instance
            handle._source = pool = _pool_of(self._key)
            return pool.acquire(handle, waits=waits)
        self.used_s = monotonic()
        if not gevent.get_hub().main_hub:
            raise psycopg2.OperationalError(OF_A_THREAD)
        _collect()
        try:
            conn = self._acquire(waits=waits)
        except StoreDown as error:
            raise psycopg2.OperationalError(_reason(error)) from error
        except ClientGone:
            raise  # there is no client for an answer: the code must not try again
        except ConfigError as error:
            raise psycopg2.OperationalError(f"{error}\n") from error
        except (GreenlineError, WaitTimeout) as error:
            down = self._share.control.failed
            if isinstance(down, StoreDown):  # killed processes have left slots, and it is away
                raise psycopg2.OperationalError(_reason(down)) from error
            failed = psycopg2.OperationalError(f"sorry, too many clients already: {error}\n")
            failed.__setstate__({"pgcode": foreign.TOO_MANY_CONNECTIONS})  # type: ignore[no-untyped-call]
            unavailable.note(error if isinstance(error, Unavailable) else PoolTimeout(str(error)))
            raise failed from error
        self._handles.add(handle)
        if isinstance(me := getcurrent(), Handler):
            _used_by.setdefault(me, set()).add(weakref.ref(handle))
        if conn is None:
            return None
        if unavailable.noted:
            unavailable.forget()  # code that has tried again does not fail for want of one
        conn.autocommit = False
        if self._takes_over and (self._watching is None or self._watching.ready()):
            self._watching = gevent.spawn(self._watch)
        return conn

    def _acquire(self, *, waits: bool) -> Backend | None:
        """Acquire a connection, of which a request may need two at a time."""
        me, nesting = getcurrent(), self._nesting
        holder = weakref.ref(me) if isinstance(me, Handler) else None
        if not waits:  # one that is not used yet is idle: its first use is admitted
            if holder is not None and self._is_nested(me, holder):
                nesting.note_needed(2)
            is_next = holder is None or nesting.may_begin(holder)
            return self._pool.acquire_now() if is_next else None  # type: ignore[return-value]
        conn: Any = None
        if holder is not None:
            try:
                if not nesting.acquire(
                    holder, self._timeout_s, has_idle=self._has_idle, on_wait=self._look
                ):
                    raise PoolTimeout
            except PoolTimeout:
                # The host may have one more, which is guaranteed to no process.
                if not nesting.borrow(holder):
                    raise
                try:
                    conn = self._pool.acquire_now()
                finally:
                    if conn is None:
                        nesting.release(holder)
                if conn is None:
                    raise
        conn = conn or self._wait(holder)
        if holder is None:
            self._hold(conn, OTHER)
        else:
            conn.holder = holder
        return conn  # type: ignore[no-any-return]

    def _wait(self, holder: Any) -> Any:
        """Return a connection of the pool, to which *holder* is admitted."""
        if holder is None:
            return self._pool.acquire()
        conn, acquiring = None, self._share.acquiring
        acquiring[holder] = monotonic()
        try:
            conn = self._pool.acquire()
        finally:
            del acquiring[holder]
            if conn is None:
                self._nesting.release(holder)
        return conn

    def _has_idle(self) -> bool:
        """Return whether a connection of this server may come back before a request ends."""
        is_connecting = any(pool._pool.is_connecting() for pool in self._pools_of_the_server())
        return is_connecting or any(map(self._may_come_back, self._handles_of_the_server()))

    def _may_come_back(self, handle: Handle) -> bool:
        conn = handle._backend
        if conn is None:
            return handle._parked is MOVING
        if conn.holder is OTHER and not _is_kept(handle, conn):
            return True  # a greenlet that serves no request uses it
        return self._takes_over and is_idle(handle) and _is_between(handle) and not _was_bound(conn)

    def _pools_of_the_server(self) -> "list[DsnPool]":
        return [pool for pool in _pools.values() if pool._nesting is self._nesting]

    def _handles_of_the_server(self) -> list[Handle]:
        return [handle for pool in self._pools_of_the_server() for handle in pool._handles]

    def _is_nested(self, me: Any, holder: Any) -> bool:
        """Return whether the request of *me* has a connection of this server and needs another."""
        used = _used_by.get(me, set())
        used -= {each for each in used if (handle := each()) is None or handle.closed}
        return self._nesting.holds(holder) or any(
            handle is not None
            and handle._user is None
            and handle._idle_since_s == -inf  # it has not been used yet
            and isinstance(handle._source, DsnPool)
            and handle._source._nesting is self._nesting
            for handle in (each() for each in used)
        )

    def admit(self, handle: Handle, conn: Backend, me: Any) -> None:
        """
        Admit the request of the greenlet *me* to the connection that *handle* has kept.

        Afterwards *handle* may have it no more: then the request must wait in turn.
        """
        if not isinstance(me, Handler):
            if conn.holder is None and gevent.get_hub().main_hub:
                self._hold(conn, OTHER)
            return
        user, holder, nesting = _holder_of(conn), weakref.ref(me), self._nesting
        if user is not None:
            if user is not me:  # it has given it to another one, by a pool of the application
                self._hold(conn, holder)
            return
        is_other = conn.holder is OTHER
        nesting.others -= is_other  # the request may have what it has already
        is_admitted = nesting.reuse(holder)
        nesting.others += is_other
        if is_admitted:
            self._end_hold(conn)  # of a greenlet that has ended
            conn.holder = holder
        elif not self._give_up(handle, conn) and handle._backend is conn:
            self._hold(conn, holder)  # it cannot be given to others

    def _give_up(self, handle: Any, conn: Backend) -> bool:
        """Give *conn* to others before the current greenlet uses *handle*, unless it is bound."""
        is_outer = handle._acquire()
        try:
            is_given = (
                self._takes_over
                and handle._backend is conn
                and not _was_bound(conn)
                and is_movable(handle)
                and _is_between(handle)
                and self._park(handle, conn)
            )
        finally:
            if is_outer:
                handle._release()
        if is_given:
            self.collect(conn)
        return is_given

    def _hold(self, conn: Backend, holder: Any) -> None:
        """
        Count *conn* for *holder*, and no longer for the one that had it.

        :param holder: a weak reference to the greenlet of a request, or OTHER.
        """
        # In this order, so that no request is admitted to it.
        if holder is OTHER:
            self._nesting.others += 1
        else:
            self._nesting.count(holder)
        self._end_hold(conn)
        conn.holder = holder

    def _end_hold(self, conn: Backend) -> None:
        holder, conn.holder = conn.holder, None
        if holder is OTHER:
            self._nesting.others -= 1
            self._nesting.admit()
        elif holder is not None:
            self._nesting.release(holder)

    def give_back(self, handle: Handle, conn: Backend) -> None:
        """Take back the connection of *handle*, which has ended."""
        if self.is_parents:
            return
        self._handles.discard(handle)
        if getcurrent() is gevent.get_hub() or not gevent.get_hub().main_hub:
            self.drop(conn)
        else:
            self.collect(conn)

    def drop(self, conn: Backend) -> None:
        """Note that *conn* comes back; called in any thread, in the middle of anything."""
        if self.is_parents:
            return
        _dropped.append((self, conn))
        if _collector is not None:
            _collector.send()

    def note_user(self, handle: Handle, me: Any) -> None:
        """Note that the greenlet *me* uses *handle* in a request."""
        if not isinstance(me, Handler):
            handle._is_shared = True
            return
        # What that greenlet has begun has ended: what is begun from now on is this request's.
        handle._is_shared &= not _is_between(handle)
        handle._requests.add(me)
        # A connection that an earlier request has got is not counted as this one's: while all of
        # them are in use again and again, a first checkout would wait for ever.
        _used_by.setdefault(me, set()).add(weakref.ref(handle))

    def close_idle(self) -> bool:
        """Close the idle connections of all pools; return whether their backends have ended."""
        _collect()
        pools = [each._pool for each in _pools.values()]
        for pool in pools:
            pool.evict()
        return all(pool.wait_until_left(CLOSE_IDLE_S) for pool in pools)

    def collect(self, conn: Backend) -> None:
        """Take back a connection; one that cannot be reset is closed."""
        self._end_hold(conn)
        conn.cursors.clear()
        conn.looked_s = -inf
        conn.leave()
        if conn.is_spoilt:
            gevent.spawn(self._discard_idle, conn)
        elif conn.status == STATUS_PREPARED:
            self._pool.discard(conn)
        else:
            with suppress(Exception):  # psycopg2's close() has no errors
                self._pool.give_back(conn, reset=True)

    def _discard_idle(self, conn: Backend) -> None:
        # A cursor that waits for no other greenlet may be executing a statement, and close() in C
        # would wait for it in the hub.
        while conn.info.transaction_status == TRANSACTION_STATUS_ACTIVE:
            gevent.sleep(LOOK_S)
        self._pool.discard(conn)

    def end_request(self, handle: Handle, me: Any) -> None:
        """
        Leave no transaction open in a connection that the ended request of *me* has left open.

        Other requests in progress may be in the middle of it: then the last one of them does it.
        """
        handle._requests.discard(me)
        if handle._user is me:
            handle._user = None  # the same greenlet will run the next request
        conn = handle._backend
        if conn is None:
            return
        try:
            if not conn.closed and not (handle._is_shared or handle._requests or handle._owner):
                _roll_back(handle, conn)
        finally:
            # The rollback has let other greenlets run.
            is_held = handle._backend is conn and conn.holder is not OTHER
            if is_held and (_holder_of(conn) is me or not handle._requests):
                is_in_use = not _is_between(handle)
                if is_in_use and handle._requests:
                    self._hold(conn, weakref.ref(next(iter(handle._requests))))
                elif is_in_use or _is_kept(handle, conn):
                    self._hold(conn, OTHER)
                else:
                    self._end_hold(conn)
        handle._idle_since_s = monotonic()
        is_moving = self._moving is not None and not self._moving.ready()
        if self._takes_over and not is_moving and is_idle(handle) and self._is_wanted(handle):
            self._moving = self._take_over(handle, monotonic())

    def _is_wanted(self, handle: Handle) -> bool:
        """
        Return whether a greenlet, another pool or another process waits for its connection.

        For each of them, one connection at a time is taken over.
        """
        conn = handle._backend
        if conn is None:
            return False
        waiting = self._pool.waiting() + self._pool.is_wanted(conn)
        if conn.holder is not None:  # one that is counted for no request admits none
            waiting += self._nesting.waiting()
        return waiting > self._share.moves

    def _waiting(self) -> int:
        """Return how many greenlets wait for a connection that cannot be made."""
        return self._nesting.waiting() + self._pool.waiting()

    def _look(self) -> None:
        """Take idle handles' connections over while a connection is waited for."""
        if self._looking is None or self._looking.ready():
            self._looking = gevent.spawn(self._take_over_idle)

    def _take_over_idle(self) -> None:
        while self._waiting() and not self.is_parents:
            self._offer()
            if any(map(self._is_forgotten, self._handles)):
                self._collect_garbage(YOUNG)
            if self._pool.waited_s() >= COLLECT_S:
                self._collect_garbage(ALL, COLLECT_S)
            if self._nesting.nested_since(monotonic() - DEADLOCK_S):
                self._end_deadlock()
            gevent.sleep(LOOK_S)

    def _end_deadlock(self) -> None:
        """Let a request go on or fail that all others wait for, some of them in the server."""
        nesting, begun_s = self._nesting, monotonic()
        if begun_s < self._share.deadlock_check_s or not self._finds_deadlocks:
            return
        self._share.deadlock_check_s = begun_s + DEADLOCK_S
        acquiring = {
            each
            for each, since_s in self._share.acquiring.items()
            if since_s < begun_s - DEADLOCK_S
        }
        running = nesting.not_waiting() - acquiring
        pids = {conn.pid: conn.holder for handle, conn in self._held() if handle._owner is not None}
        if self._has_idle() or running - set(pids.values()):  # these do not wait in the server
            return
        waits = deadlock.lock_waits(self._share.control, pids)
        # From here on no other greenlet runs. Only those count that have waited all the time:
        # another one may have ended its transaction meanwhile.
        waiting = nesting.nested_since(begun_s)
        acquiring &= self._share.acquiring.keys()
        holders = {conn.pid: conn.holder for _, conn in self._held()}
        blocked = deadlock.blocked_by(
            [pid for pid, holder in holders.items() if holder in waiting | acquiring], waits
        )
        stuck = {holders[pid] for pid in blocked if pid in holders} | acquiring
        if not self._has_idle() and nesting.end_deadlock(waiting, stuck):
            log.warning("a deadlock of the backends %s was ended", sorted(blocked))

    def _held(self) -> list[tuple[Handle, Backend]]:
        """Return the handles with connections that are counted for requests."""
        return [
            (handle, conn)
            for handle in self._handles_of_the_server()
            if (conn := handle._backend) is not None and conn.holder not in (None, OTHER)
        ]

    def _watch(self) -> None:
        """Let other pools and processes have the slots of idle handles, while there are handles."""
        while self._handles and not self.is_parents:
            gevent.sleep(WATCH_S)
            self._offer()
            if any(self._is_forgotten(each) and self._is_wanted(each) for each in self._handles):
                self._collect_garbage(YOUNG)
                self._collect_garbage(ALL, COLLECT_S)

    def _is_forgotten(self, handle: Handle) -> bool:
        """Return whether a cursor is open that no request in progress uses."""
        conn = handle._backend
        if conn is None or handle._requests or handle._is_bound:
            return False
        return bool(open_cursors(conn))

    def _collect_garbage(self, generation: int, pause_s: float = 0.0) -> None:
        """Collect garbage, unless that was done a short time ago."""
        begun_s = monotonic()
        if begun_s >= self._collects_s[generation]:
            # A cursor and its connection are often in a cycle with an exception.
            gc.collect(generation)
            pause_s = max(pause_s, COLLECT_PAUSE * (monotonic() - begun_s))
            self._collects_s[generation] = begun_s + pause_s

    def _offer(self) -> None:
        """Take over the connections of idle handles while they are wanted."""
        # A function of its own: a local variable of a greenlet that sleeps would keep a handle.
        connected = (each for each in self._handles if each._backend is not None)
        # One time for all: on a busy machine one that is looked at later would be due before.
        now_s = monotonic()
        for reference in [weakref.ref(each) for each in sorted(connected, key=_last_use)]:
            handle = reference()
            if handle is None or self.is_parents:
                continue
            is_free_now = is_lost(handle) or (self._takes_over and is_idle(handle))
            is_given = is_free_now and self._is_wanted(handle)
            moving = self._take_over(handle, now_s) if is_given else None
            if moving is not None:
                moving.join()
            del handle, moving  # it may end while the next one's connection is taken over

    def _take_over(
        self, handle: Any, now_s: float | None = None
    ) -> "gevent.Greenlet[..., None] | None":
        """
        Begin to take the connection of an idle handle; return the greenlet that does it.

        :param now_s: the time of the monotonic clock, float seconds, at which the handle must have
            had its connection for long enough. Default None: it need not.
        """
        if is_lost(handle):
            self._lose(handle)
        elif (
            is_idle(handle)
            and (now_s is None or self._is_due(handle, now_s))
            and _is_between(handle)
        ):
            moving = gevent.Greenlet(self._move, handle, handle._backend)
            # From now on code that uses the handle waits until it is moved, and is admitted anew.
            self._hold(cast("Backend", handle._backend), OTHER)
            handle._owner, handle._backend, handle._parked = moving, None, MOVING
            self._share.moves += 1
            moving.start()
            return moving
        return None

    def _move(self, handle: Any, conn: Backend) -> None:
        """Keep what *handle* needs to get another connection, and give *conn* to others."""
        try:
            with deadline.limit(MOVE_S):
                try:
                    is_parked = self._park(handle, conn)
                finally:
                    handle._release()
                if is_parked:
                    self.collect(conn)
        except DeadlineExceeded:
            log.warning("a server did not answer in %.0f s: an idle connection was closed", MOVE_S)
        finally:
            self._share.moves -= 1
        if is_lost(handle):
            self._lose(handle)

    def _park(self, handle: Any, conn: Backend) -> bool:
        """Keep in *handle* what its session on *conn* has; its owner calls this."""
        kept = None
        handle._backend, handle._parked, handle._user = None, MOVING, None
        try:
            kept = session.read(conn)
        except psycopg2.Error:
            pass  # the server may have ended it
        finally:
            handle._parked = kept
            if kept is None:
                conn.looked_s, handle._backend = monotonic(), conn
                self._hold(conn, OTHER)
        return kept is not None

    def _lose(self, handle: Any) -> None:
        """Close the connection of *handle*, which has lost it, and give its slot to others."""
        conn, handle._backend, handle._is_lost = handle._backend, None, True
        self._end_hold(conn)
        self._pool.discard(conn)

    def _is_due(self, handle: Handle, now_s: float) -> bool:
        """Return whether *handle* has had its connection for long enough."""
        conn = handle._backend
        if conn is None or _was_bound(conn):
            return False
        return now_s - conn.checked_out_s >= TENURE_S or now_s - handle._idle_since_s >= IDLE_S


def _reason(error: StoreDown) -> str:
    """Return why the control connection failed: psycopg2's own words, if it has said why."""
    cause = error.__cause__
    return str(cause if isinstance(cause, psycopg2.Error) else error)


def _last_use(handle: Handle) -> tuple[bool, float]:
    """Return what handles with connections are ordered by: the one that was idle for longest."""
    is_in_use = bool(handle._requests) or handle._is_shared
    conn = handle._backend
    return is_in_use, max(handle._idle_since_s, conn.checked_out_s if conn is not None else -inf)


def _holder_of(conn: Backend) -> Any:
    """Return the greenlet of the request for which *conn* is counted; None if there is none."""
    return None if conn.holder in (None, OTHER) else conn.holder()


def _is_between(handle: Handle) -> bool:
    """Return whether *handle* is between two transactions."""
    conn = handle._backend
    return conn is not None and conn.info.transaction_status == TRANSACTION_STATUS_IDLE


def _is_kept(handle: Handle, conn: Backend) -> bool:
    """Return whether no request gets *conn* before the end of *handle*, as far as is known."""
    return handle._is_bound or conn.looked_s > -inf


def _was_bound(conn: Any) -> bool:
    """Return whether the session of *conn* was found a short time ago to be bound to it."""
    return bool(monotonic() - conn.looked_s < BOUND_S)


def end_request() -> None:
    """Look at the connections that the current greenlet's request has used."""
    me = getcurrent()
    with ExitStack() as stack:  # each is looked at if another one fails
        for reference in _used_by.pop(me, ()):
            handle = reference()
            if handle is not None:
                stack.callback(handle._source.end_request, handle, me)


def _roll_back(handle: Handle, conn: Backend) -> None:
    """Roll back what is open, and BEGIN of the application too."""
    if conn.info.transaction_status in (TRANSACTION_STATUS_IDLE, TRANSACTION_STATUS_ACTIVE):
        return  # active: by a cursor that waits for no other greenlet
    log.debug("a request has left a transaction open: rolled back")
    with suppress(Exception):  # the next one to use it gets the error
        is_outer = handle._acquire()
        try:
            # Not by the handle's own method: it would note the request, which has ended, as a user.
            handle._mark += 1
            conn.roll_back_begun()
        finally:
            if is_outer:
                handle._release()


def _collect() -> None:
    """Take back the connections whose handles have ended without a close."""
    global _collector
    if _collector is None:
        _collector = gevent.get_hub().loop.async_()
        _collector.start(lambda: gevent.spawn(_collect))
        _collector.ref = False
    while _dropped:
        pool, conn = _dropped.popleft()
        pool._end_hold(conn)  # at once: the next checkout of the same request does not nest
        gevent.spawn(pool.collect, conn)


def _connect(
    dsn: str, *, application: str = APPLICATION, abandon: Callable[[Any], None]
) -> Backend:
    """
    Connect as the application asks for it.

    :raises PoolTimeout: the server has no connection slot left.
    :raises psycopg2.OperationalError: as libpq words it.
    """
    begun: list[Backend] = []
    given = parameters(dsn)
    # Without a name of the application: the budget must not count it as another's.
    more = {"fallback_application_name": application, **KEEPALIVES}
    dsn = make_dsn(dsn, **{name: value for name, value in more.items() if name not in given})

    def new(_: str) -> Backend:
        begun[:] = [Backend.__new__(Backend)]
        return begun[0]

    try:
        conn: Backend = foreign.connect_once(dsn, new)
        conn.settle()
        return conn
    except BaseException as error:
        for half in begun:
            abandon(half)
        if isinstance(error, psycopg2.OperationalError) and foreign.has_no_slot(error):
            raise PoolTimeout(str(error)) from error
        raise


def _forget() -> None:
    global _opening, _collector
    for each in _pools.values():
        each.is_parents = True
        for handle in each._handles:
            # The greenlet that uses it does not run here, and close() would wait for it.
            handle._owner = None
            vars(handle).pop("_waiters", None)
    _pools.clear()
    _dropped.clear()
    _used_by.clear()
    _collector = None
    _opening = BoundedSemaphore()  # the greenlet that holds it is the parent's


# A child's handles are its parent's: it connects anew.
os.register_at_fork(after_in_child=_forget)
