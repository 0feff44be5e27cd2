"""
Serialize the use of one psycopg2 connection by greenlets, as psycopg2 does for threads.

psycopg2 holds a mutex of the connection while it talks to the server. In green mode it holds the
mutex through the wait callback: a second greenlet gets "execute cannot be used while an
asynchronous query is underway", or, in ``commit()``, blocks the hub in which the first one waits.
Here a greenlet waits until the connection is free before it calls a method that takes the mutex;
first come, first served.

The classes are mixed in below an application's own: :func:`connection_class`, :func:`cursor_class`.
"""

import types
from collections import deque
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import gevent
import psycopg2
from gevent import getcurrent
from gevent.hub import Waiter
from psycopg2.extensions import STATUS_BEGIN, cursor
from psycopg2.extensions import connection as PsycopgConnection

from greenline.hub import deadline
from greenline.hub.cooperate import wake, yield_to_hub
from greenline.hub.lock_waits import LockWait
from greenline.postgres import copying
from greenline.postgres.connection import WatchedConnection
from greenline.postgres.lobject import GreenLobject

# The methods that end a transaction, and commit().
ENDING = {"rollback", "reset", "tpc_prepare", "tpc_commit", "tpc_rollback"}

_execute = cursor.execute
_cursor = PsycopgConnection.cursor
_commit = PsycopgConnection.commit
_close = PsycopgConnection.close
_rowcount: Callable[[cursor], int] = cursor.rowcount.__get__
_connection: Callable[[cursor], Any] = cursor.connection.__get__  # type: ignore[attr-defined]


def yield_as_threads() -> None:
    """Let other greenlets run after a commit that has sent nothing, and so has not waited."""
    # Threads switch here, because psycopg2 releases the interpreter's lock.
    if getcurrent() is not gevent.get_hub():
        yield_to_hub()


def in_turn(method: Any, of_cursor: bool = False) -> Any:
    """
    Return *method* of a connection or a cursor, preceded by a wait until the connection is free.

    :param method: psycopg2's, or one that is written over it.
    :param of_cursor: whether it is a cursor's, bool. Default False: the connection to the server
        is its first argument.
    """
    ends = method.__name__ in ENDING and not of_cursor

    @wraps(method)
    def call_in_turn(self: Any, *args: Any, **kwargs: Any) -> Any:
        conn: InTurn = self.connection if of_cursor else self
        is_outer = conn._acquire()
        try:
            conn._mark += ends
            return method(self if of_cursor else conn._live(), *args, **kwargs)
        finally:
            if is_outer:
                conn._release()

    return call_in_turn


def _property_in_turn(name: str) -> Any:
    """Return the connection's property *name*, whose setter waits until the connection is free."""
    attribute: Any = getattr(PsycopgConnection, name)
    return property(attribute.__get__, in_turn(attribute.__set__), doc=attribute.__doc__)


class InTurn:
    """A connection that one greenlet uses at a time, first come, first served."""

    # Class attributes, so that a connection used by one greenlet needs no deque.
    _owner: Any = None
    _user = 0  # the id() of the last owner: a reference would keep what code keeps per thread
    _waiters: Any = ()
    _mark = 0  # the number of transactions that were ended: a large object is of one

    closed: Any

    def _live(self) -> Any:
        """Return the connection to the server."""
        return self

    def lobject(
        self, oid: Any = 0, mode: Any = "", new_oid: Any = 0, new_file: Any = None,
        lobject_factory: type = GreenLobject,
    ) -> GreenLobject:  # fmt: skip
        """
        Return a large object, as psycopg2 does.

        The parameters and their defaults are psycopg2's.
        """
        self._live()
        if self.closed:
            raise psycopg2.InterfaceError("connection already closed")
        made: Any = mixed(lobject_factory, GreenLobject)
        return made(self, oid, mode, new_oid, new_file)  # type: ignore[no-any-return]

    def commit(self) -> None:
        """Commit; let other greenlets run if there is nothing to send."""
        is_outer = self._acquire()
        try:
            conn = self._live()
            is_sent = conn.status == STATUS_BEGIN
            self._mark += 1
            _commit(conn)
        finally:
            if is_outer:
                self._release()
        if not is_sent:
            yield_as_threads()

    rollback = in_turn(PsycopgConnection.rollback)
    reset = in_turn(PsycopgConnection.reset)
    set_session = in_turn(PsycopgConnection.set_session)
    set_isolation_level = in_turn(PsycopgConnection.set_isolation_level)
    set_client_encoding = in_turn(PsycopgConnection.set_client_encoding)
    tpc_begin = in_turn(PsycopgConnection.tpc_begin)
    tpc_prepare = in_turn(PsycopgConnection.tpc_prepare)
    tpc_commit = in_turn(PsycopgConnection.tpc_commit)
    tpc_rollback = in_turn(PsycopgConnection.tpc_rollback)
    tpc_recover = in_turn(PsycopgConnection.tpc_recover)

    def _acquire(self) -> bool:
        """
        Wait until no other greenlet uses the connection; return whether to release it.

        :raises DeadlineExceeded: the request's deadline has passed.
        """
        me = getcurrent()
        owner = self._owner
        # No call between the test and the store: native threads switch at calls only.
        if owner is None:
            self._owner = me
            self._user = id(me)
            return True
        if owner is me:  # an adapter that queries the database itself
            return False
        self._wait(me)
        return True

    def _wait(self, me: Any) -> None:
        """Wait until *me*, the current greenlet, owns the connection."""
        hub = gevent.get_hub()
        # A hub of a native thread that waits for nothing else would raise LoopExit without this.
        alarm = None if hub.main_hub else hub.loop.async_()
        waiter: Waiter[None] = Waiter()
        if alarm is not None:
            alarm.start(waiter.switch, None)
        entry = (me, waiter, alarm)
        # One call in C: of two native threads here, each would otherwise make a deque of its own.
        vars(self).setdefault("_waiters", deque()).append(entry)
        try:
            if self._owner is None:  # a native thread has released it meanwhile
                self._owner = me  # first: another thread may run in the call below
                self._user = id(me)
                self._waiters.remove(entry)
                return
            with deadline.spending("pool"), LockWait():
                deadline.wait_in(waiter.get)
        except BaseException:
            if self._owner is me:  # it was handed over at the same time
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
        # The owner is set here and not by the woken greenlet: the current one may continue with its
        # next statement at once, and must then wait behind it.
        self._owner, waiter, alarm = self._waiters.popleft()
        self._user = id(self._owner)
        if alarm is None:
            wake(waiter)
        else:
            alarm.send()


class SerializedConnection(InTurn, WatchedConnection):
    """A connection that greenlets may share."""

    def cursor(
        self,
        name: Any = None,
        cursor_factory: Any = None,
        withhold: Any = False,
        scrollable: Any = None,
    ) -> Any:
        """
        Return a cursor of the class asked for, which greenlets may use together with others.

        The parameters and their defaults are psycopg2's.
        """
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

    def close(self) -> None:
        """Close, after the statement in progress."""
        is_outer = self._acquire()
        try:
            self.drop_watchers()
            _close(self)
        finally:
            if is_outer:
                self._release()

    autocommit = _property_in_turn("autocommit")
    isolation_level = _property_in_turn("isolation_level")
    readonly = _property_in_turn("readonly")
    deferrable = _property_in_turn("deferrable")


class CopyCursor(cursor):
    """A cursor that copies in green mode; its methods are called when the connection is free."""

    _copied: tuple[Any, int | None] = (None, None)

    @property
    def rowcount(self) -> int:
        """The number of rows of the last statement, -1 where there is none."""
        query, count = self._copied
        if count is not None and query is self.query:
            return count
        return _rowcount(self)

    def copy_expert(self, sql: Any, file: Any, size: int = copying.READ_BYTES) -> None:
        """
        Execute a COPY statement, as psycopg2 does.

        :param sql: the statement.
        :param file: a file to read or to write.
        :param size: how much is read at a time, int. Default 8192.
        """
        count = copying.copy_expert(self, sql, file, size)
        self._copied = (self.query, count)

    def copy_from(
        self,
        file: Any,
        table: str,
        sep: str = "\t",
        null: str = "\\N",
        size: int = copying.READ_BYTES,
        columns: Any = None,
    ) -> None:
        """
        Copy the rows of a file into a table, as psycopg2 does.

        The parameters and their defaults are psycopg2's.
        """
        self._copy(file, "read", "FROM stdin", table, sep, null, columns, size)

    def copy_to(
        self, file: Any, table: str, sep: str = "\t", null: str = "\\N", columns: Any = None
    ) -> None:
        """
        Copy the rows of a table into a file, as psycopg2 does.

        The parameters and their defaults are psycopg2's.
        """
        self._copy(file, "write", "TO stdout", table, sep, null, columns)

    def _copy(
        self, file: Any, needed: str, direction: str, table: str, sep: str, null: str, columns: Any,
        size: int = copying.READ_BYTES,
    ) -> None:  # fmt: skip
        if not hasattr(file, needed):
            raise TypeError(f"argument 1 must have a .{needed}() method")
        sql = copying.copy_from_sql(_connection(self), table, sep, null, columns, direction)
        CopyCursor.copy_expert(self, sql, file, size)


class SerializedCursor(CopyCursor):
    """A cursor of a :class:`SerializedConnection`, which has all rows after ``execute``."""

    def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002  (psycopg2's name)
        """
        Execute a statement when the connection is free.

        :param query: as for psycopg2's ``execute``.
        :param vars: as for psycopg2's ``execute``. Default None.
        """
        # The same as _acquire() and _release() without two calls, because every statement comes
        # here.
        conn: Any = self.connection
        me = getcurrent()
        owner = conn._owner
        if owner is None:
            conn._owner = me
            conn._user = id(me)
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

    executemany = in_turn(cursor.executemany, of_cursor=True)
    callproc = in_turn(cursor.callproc, of_cursor=True)
    copy_expert = in_turn(CopyCursor.copy_expert, of_cursor=True)
    copy_from = in_turn(CopyCursor.copy_from, of_cursor=True)
    copy_to = in_turn(CopyCursor.copy_to, of_cursor=True)


class SerializedNamedCursor(SerializedCursor):
    """A server-side cursor, each fetch of which asks the server."""

    fetchone = in_turn(cursor.fetchone, of_cursor=True)
    fetchmany = in_turn(cursor.fetchmany, of_cursor=True)
    fetchall = in_turn(cursor.fetchall, of_cursor=True)
    scroll = in_turn(cursor.scroll, of_cursor=True)
    close = in_turn(cursor.close, of_cursor=True)
    __next__ = in_turn(cursor.__next__, of_cursor=True)


def connection_class(base: type, mixin: type = SerializedConnection) -> type:
    """
    Return a class of connections that greenlets may share.

    :param base: the application's class of connections.
    :param mixin: the class whose methods are used below those of *base*. Default
        :class:`SerializedConnection`.
    """
    return mixin if base is PsycopgConnection else mixed(base, mixin)


def cursor_class(base: type, is_named: bool) -> type:
    """
    Return a class of cursors that wait until their connection is free.

    :param base: the application's class of cursors.
    :param is_named: whether the cursors are on the server's side, bool.
    """
    mixin = SerializedNamedCursor if is_named else SerializedCursor
    return mixin if base is cursor else mixed(base, mixin)


@lru_cache(maxsize=256)
def mixed(base: type, mixin: type) -> type:
    """
    Return a class of *base* over *mixin*, under the name of *base*.

    :returns: *base* if it has *mixin* already, or cannot be a base.
    """
    if issubclass(base, mixin):
        return base
    # Under the name that the application knows, which logs show for instance.
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    try:
        return types.new_class(
            base.__name__, (base, mixin), exec_body=lambda body: body.update(names)
        )
    except TypeError:  # it cannot be subclassed in this way: one greenlet alone may use it
        return base


def adopt(made: Any, to_class: Callable[..., type], *args: Any) -> Any:
    """
    Change the class of an object that an application's function returned to a serialized one.

    :param made: a connection or a cursor.
    :param to_class: returns the class for the present one and *args*.
    :param args: the further arguments of *to_class*.
    :returns: *made*.
    """
    base = type(made)
    if base not in (PsycopgConnection, cursor):  # the class of these two cannot be replaced
        made.__class__ = to_class(base, *args)
    return made
