"""
Serialize what greenlets do on one psycopg2 connection, as psycopg2 does it for threads.

psycopg2 holds a mutex of the connection while it talks to the server. In green mode it holds the
mutex through the wait callback: a second greenlet gets "execute cannot be used while an
asynchronous query is underway", or, in ``commit()``, blocks the hub in which the first one waits.
The methods that take the mutex take the greenlets in turn here, first come, first served.

The classes are mixed in below an application's own: :func:`connection_class`, :func:`cursor_class`.
"""

import types
from collections import deque
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import gevent
from gevent import getcurrent
from gevent.hub import Waiter
from psycopg2.extensions import STATUS_BEGIN, cursor
from psycopg2.extensions import connection as PsycopgConnection

from greenline.hub import deadline
from greenline.hub.cooperate import wake, yield_to_hub
from greenline.hub.lock_waits import LockWait
from greenline.postgres.connection import WatchedConnection

_execute = cursor.execute
_cursor = PsycopgConnection.cursor
_commit = PsycopgConnection.commit
_close = PsycopgConnection.close


def _in_turn(method: Any, of_cursor: bool = False) -> Any:
    """Return *method* of a connection, or of a cursor, which waits for the connection's turn."""

    @wraps(method)
    def in_turn(self: Any, *args: Any, **kwargs: Any) -> Any:
        conn: SerializedConnection = self.connection if of_cursor else self
        is_outer = conn._acquire()
        try:
            return method(self, *args, **kwargs)
        finally:
            if is_outer:
                conn._release()

    return in_turn


def _property_in_turn(name: str) -> Any:
    """Return the connection's property *name*, which waits for its turn to be set."""
    attribute: Any = getattr(PsycopgConnection, name)
    return property(attribute.__get__, _in_turn(attribute.__set__), doc=attribute.__doc__)


class SerializedConnection(WatchedConnection):
    """A connection that may be shared by greenlets."""

    # Both are instance attributes once they are set; without a second greenlet there is no deque.
    _owner: Any = None
    _waiters: Any = ()

    def cursor(
        self,
        name: Any = None,
        cursor_factory: Any = None,
        withhold: Any = False,
        scrollable: Any = None,
    ) -> Any:
        """Return a cursor of the class asked for, which may be used together with others."""
        factory: Any = cursor_factory or self.cursor_factory
        if factory is None:
            factory = cursor
        if factory is cursor and name is None:
            return _cursor(self, None, SerializedCursor, withhold, scrollable)
        is_named = name is not None
        if isinstance(factory, type):
            made = cursor_class(factory, is_named)
            return _cursor(self, name, made, withhold, scrollable)
        return adopt(_cursor(self, name, factory, withhold, scrollable), cursor_class, is_named)

    def commit(self) -> None:
        """Commit; let other greenlets run if there is nothing to send."""
        is_outer = self._acquire()
        try:
            is_sent = self.status == STATUS_BEGIN
            _commit(self)
        finally:
            if is_outer:
                self._release()
        # Threads change over here, because psycopg2 releases the interpreter's lock.
        if not is_sent and getcurrent() is not gevent.get_hub():
            yield_to_hub()

    def close(self) -> None:
        """Close, after the statement in progress."""
        is_outer = self._acquire()
        try:
            self.drop_watchers()
            _close(self)
        finally:
            if is_outer:
                self._release()

    rollback = _in_turn(PsycopgConnection.rollback)
    reset = _in_turn(PsycopgConnection.reset)
    set_session = _in_turn(PsycopgConnection.set_session)
    set_isolation_level = _in_turn(PsycopgConnection.set_isolation_level)
    set_client_encoding = _in_turn(PsycopgConnection.set_client_encoding)
    tpc_begin = _in_turn(PsycopgConnection.tpc_begin)
    tpc_prepare = _in_turn(PsycopgConnection.tpc_prepare)
    tpc_commit = _in_turn(PsycopgConnection.tpc_commit)
    tpc_rollback = _in_turn(PsycopgConnection.tpc_rollback)
    tpc_recover = _in_turn(PsycopgConnection.tpc_recover)
    autocommit = _property_in_turn("autocommit")
    isolation_level = _property_in_turn("isolation_level")
    readonly = _property_in_turn("readonly")
    deferrable = _property_in_turn("deferrable")

    def _acquire(self) -> bool:
        """
        Wait until no other greenlet uses the connection; return whether to release it.

        :raises DeadlineExceeded: the request's deadline has passed.
        """
        me = getcurrent()
        owner = self._owner
        # No call stands between the look and the store: native threads do not change over there.
        if owner is None:
            self._owner = me
            return True
        if owner is me:  # an adapter that asks the database on its part
            return False
        self._wait(me)
        return True

    def _wait(self, me: Any) -> None:
        """Wait for the turn of *me*, the current greenlet."""
        hub = gevent.get_hub()
        # A native thread's hub has nothing else to wait for: it would raise LoopExit.
        alarm = None if hub.main_hub else hub.loop.async_()
        waiter: Waiter[None] = Waiter()
        if alarm is not None:
            alarm.start(waiter.switch, None)
        entry = (me, waiter, alarm)
        if not self._waiters:
            self._waiters = deque()
        self._waiters.append(entry)
        try:
            if self._owner is None:  # a native thread has released it meanwhile
                self._waiters.remove(entry)
                self._owner = me
                return
            with deadline.spending("queued"), LockWait():
                deadline.wait_in(waiter.get)
        except BaseException:
            if self._owner is me:  # its turn came in the same moment
                self._release()
            else:
                self._waiters.remove(entry)
            raise
        finally:
            if alarm is not None:
                alarm.close()

    def _release(self) -> None:
        """Hand the connection to the greenlet that has waited longest, if there is one."""
        if not self._waiters:
            self._owner = None
            return
        # The owner is set here and not by the woken greenlet: the current one, which may go on
        # with its next statement at once, stands at the end of the queue then.
        self._owner, waiter, alarm = self._waiters.popleft()
        if alarm is None:
            wake(waiter)
        else:
            alarm.send()


class SerializedCursor(cursor):
    """A cursor of a :class:`SerializedConnection`. Its rows are here after ``execute``."""

    def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002  (psycopg2's name)
        """Execute a statement, when the connection is free."""
        # What _acquire() and _release() do, without two calls: every statement passes here.
        conn: Any = self.connection
        me = getcurrent()
        owner = conn._owner
        if owner is None:
            conn._owner = me
        elif owner is me:
            return _execute(self, query, vars)
        else:
            conn._wait(me)
        try:
            return _execute(self, query, vars)
        finally:
            if conn._waiters:
                conn._release()
            else:
                conn._owner = None

    executemany = _in_turn(cursor.executemany, of_cursor=True)
    callproc = _in_turn(cursor.callproc, of_cursor=True)


class SerializedNamedCursor(SerializedCursor):
    """A cursor on the server's side: each fetch asks the server."""

    fetchone = _in_turn(cursor.fetchone, of_cursor=True)
    fetchmany = _in_turn(cursor.fetchmany, of_cursor=True)
    fetchall = _in_turn(cursor.fetchall, of_cursor=True)
    scroll = _in_turn(cursor.scroll, of_cursor=True)
    close = _in_turn(cursor.close, of_cursor=True)
    __next__ = _in_turn(cursor.__next__, of_cursor=True)


def connection_class(base: type, mixin: type = SerializedConnection) -> type:
    """Return *base*, a class of connections, with the methods of *mixin* under its own."""
    return mixin if base is PsycopgConnection else _mixed(base, mixin)


def cursor_class(base: type, is_named: bool) -> type:
    """Return *base*, a class of cursors, whose cursors of one connection take turns."""
    mixin = SerializedNamedCursor if is_named else SerializedCursor
    return mixin if base is cursor else _mixed(base, mixin)


@lru_cache(maxsize=256)
def _mixed(base: type, mixin: type) -> type:
    if issubclass(base, mixin):
        return base
    # Logs, for instance, show the class under the name that the application knows.
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    try:
        return types.new_class(
            base.__name__, (base, mixin), exec_body=lambda body: body.update(names)
        )
    except TypeError:  # it cannot be subclassed, or not in this way: one greenlet alone may use it
        return base


def adopt(made: Any, to_class: Callable[..., type], *args: Any) -> Any:
    """Give *made*, which an application's function returned, the class that takes turns."""
    base = type(made)
    if base not in (PsycopgConnection, cursor):  # the class of these two cannot be replaced
        made.__class__ = to_class(base, *args)
    return made
