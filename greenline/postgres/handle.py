"""
The connection that an application holds while its statements run on a pooled one.

A :class:`Handle` is a ``psycopg2.extensions.connection`` for ``isinstance`` and for psycopg2's own
functions, and passes every method and member on to the pooled connection. Each checkout has a
handle of its own: code that keeps a closed one gets InterfaceError, never the connection of another
request. Its cursors are psycopg2's, of the application's class, made on the pooled connection.
"""

import re
from collections.abc import Callable
from functools import wraps
from math import inf
from typing import Any, Protocol, cast
from weakref import ReferenceType, finalize, ref

import gevent
import psycopg2
from gevent import getcurrent
from psycopg2.errors import ObjectInUse
from psycopg2.extensions import (
    STATUS_PREPARED,
    STATUS_READY,
    TRANSACTION_STATUS_IDLE,
    TRANSACTION_STATUS_INERROR,
    ConnectionInfo,
    cursor,
)
from psycopg2.extensions import connection as PsycopgConnection

from greenline.postgres import session
from greenline.postgres.clean import is_dead
from greenline.postgres.connection import Connection
from greenline.postgres.serialize import CopyCursor, InTurn, in_turn, mixed, yield_as_threads
from greenline.postgres.session import Session

# libpq refuses this one before it opens a socket. psycopg2's own initialization with it leaves the
# object closed: whatever reaches it in C ends with an error, and no pointer in it is missing.
# With a user, or libpq looks the process's user up, by name service, before it looks at the hosts.
NOWHERE = "host=a,b hostaddr=1 user=none"
CLOSED = "connection already closed"
CURSOR_CLOSED = "cursor already closed"
NESTED = "the connection cannot be re-entered recursively"
# Settings with a dot in their names, which the server does not list. They are searched for in the
# first bytes of each statement, after its comments. Each alternative begins otherwise than the
# others, so that the time grows with the length of the text only: it has values of clients.
SPACE = rb"(?:\s|/\*(?:[^*]|\*(?!/))*\*/|--[^\n]*\n)"
UNLISTED = re.compile(
    rb"""
    \bset (?: %(s)b+ (?: session (?: %(s)b+ | (?=") ) )? | (?=") )
        (?: "[^".]*\. | (?: "[^"]*" | [^\s"'.,;=()]+ ) %(s)b* \. )
    |
    \b set_config "? %(s)b* \(
        (?! %(s)b* '\w*' %(s)b* , )
        # Not one that ends with the transaction.
        (?! %(s)b* '[^']*' %(s)b* , %(s)b* (?: '[^']*' | [^\s,()']+ ) %(s)b* , %(s)b* true \b )
    """
    % {b"s": SPACE},
    re.VERBOSE,
)
MAX_SEARCHED_BYTES = 2000
COMMENTS = re.compile(rb"%s*" % SPACE)
# Where the search has found something: UPDATE's SET may name a field of a column, and a value have
# any text. What stands in a value is searched if it may be the name of a setting.
TOKENS = re.compile(
    rb"""
    (?: --[^\n]* | /\*(?:[^*]|\*(?!/))*\*/ | "[^"]*" | '[\w.$-]*'(?!') )  # kept
    | (?P<removed> '(?:[^']|'')*(?:'|\Z) )
    """,
    re.VERBOSE,
)
OF_UPDATE = re.compile(rb"\bupdate\b[^;']*?\bset\b")
RESETS = re.compile(rb"\s*(?:reset|discard)\s+all\s*;?\s*", re.IGNORECASE)
# Idle connections of the pools prevent these.
OF_DATABASES = re.compile(rb"\s*(?:alter|create|drop)\s+database\b", re.IGNORECASE)

SET_BY_CODE = "arraysize", "itersize", "row_factory", "tzinfo_factory", "string_types"

_execute = cursor.execute
_commit = PsycopgConnection.commit
# psycopg2's numbers, of which None is the server's default.
LEVELS = {
    "default": None, "read committed": 1, "repeatable read": 2, "serializable": 3,
    "read uncommitted": 4,
}  # fmt: skip
CHARACTERISTICS: dict[str, Any] = {
    "autocommit": PsycopgConnection.autocommit,
    "isolation_level": PsycopgConnection.isolation_level,
}
_set_autocommit, _set_isolation_level = (in_turn(each.__set__) for each in CHARACTERISTICS.values())


def _nothing() -> None: ...


class Backend(Connection):
    """A pooled connection under the handles: psycopg2's own, without greenline's errors."""

    # Prepared statements too: their names are the application's.
    reset_statements = "discard all"
    # It has a cursor that does not notice the end of the handle.
    is_spoilt = False
    # The cursors of its borrower by their identities: a class of the application may have no hash.
    # Not a WeakValueDictionary, which costs a tenth of a statement. A cursor has the identity of a
    # collected one again and again, so this grows no more than the memory.
    cursors: dict[int, ReferenceType[cursor]]
    holder: Any = None  # a weak reference to the greenlet of the request that has it
    looked_s = -inf  # when its session was found to be bound to it
    commit = _commit

    def settle(self) -> None:
        """Record that it is connected."""
        super().settle()
        self.cursors = {}

    def leave(self) -> None:
        """Let psycopg2 forget that a with block was entered; the transaction stays as it is."""
        # Its own __exit__ calls commit() at once, also while another greenlet's statement has the
        # connection's mutex: the hub would wait for itself.
        if not self.closed:
            self.commit = _nothing  # type: ignore[method-assign]
            try:
                PsycopgConnection.__exit__(self, None, None, None)
            finally:
                del self.commit

    def __del__(self) -> None:
        """Keep the descriptor: with its handle in a reference cycle it comes back to the pool."""


class Source(Protocol):
    """Where a handle gets its connection from."""

    dsn: str  # as psycopg2 shows it, without the password

    def acquire(self, handle: "Handle", *, waits: bool = True) -> Backend | None: ...

    def give_back(self, handle: "Handle", conn: Backend) -> None: ...

    def drop(self, conn: Backend) -> None: ...

    def admit(self, handle: "Handle", conn: Backend, me: Any) -> None: ...

    def note_user(self, handle: "Handle", me: Any) -> None: ...

    def end_request(self, handle: "Handle", me: Any) -> None: ...

    def close_idle(self) -> bool: ...


def _passed_on(method: Any) -> Any:
    """Return a method that calls the pooled connection's *method* at once."""

    @wraps(method)
    def passed_on(self: "Handle", *args: Any, **kwargs: Any) -> Any:
        return method(self._backend or self._live(), *args, **kwargs)

    return passed_on


def _member(name: str) -> Any:
    """Return a property for a member or a property *name* of the pooled connection."""
    attribute: Any = getattr(PsycopgConnection, name)

    def get(self: "Handle") -> Any:
        # After the end psycopg2's members still have values: those of a connection never made.
        return attribute.__get__(self._backend or (self if self.closed else self._live()))

    return property(get, in_turn(attribute.__set__), doc=attribute.__doc__)


class Handle(InTurn, PsycopgConnection):
    """
    A connection that a pool has lent to code that connects by itself.

    ``_backend`` is the pooled connection, None after the end and while it is taken over.

    :param dsn: the connection string, as psycopg2 passes it to a class of connections.
    """

    _source: Source
    _backend: Backend | None = None
    _parked: Session | None = None  # what its session had when its connection was taken over
    _user: Any = None  # the greenlet that used it last
    _is_shared = False  # a greenlet that serves no request has used it
    _is_lost = False  # its connection was lost, and has been given back
    _is_entered = False
    _idle_since_s = -inf  # when a request that has used it ended
    _has_unlisted = False  # its session has what the server does not list
    _is_of_a_thread = False  # a native thread has used it

    def __init__(self, dsn: str, **_: Any) -> None:
        try:
            PsycopgConnection.__init__(self, NOWHERE)
        except psycopg2.OperationalError:
            PsycopgConnection.close(self)
        self._requests: set[Any] = set()  # the greenlets whose requests, in progress, have used it
        self._backend = self._source.acquire(self, waits=False)
        if self._backend is None:
            # It waits at its first use. This code may hold a lock that others need in order to give
            # a connection back: that of psycopg2.pool or of peewee, for instance.
            self._parked = Session()

    def __del__(self) -> None:
        # This may run in any thread and in the middle of anything: drop() adds to a list.
        conn = self._backend
        if conn is not None:
            self._backend = None
            self._source.drop(conn)

    def __repr__(self) -> str:
        dsn, closed = self._source.dsn, self.closed
        return f"<connection object at {id(self):#x}; dsn: '{dsn}', closed: {closed}>"

    __str__ = __repr__

    def __enter__(self) -> "Handle":
        conn = self._live()
        if self._is_entered:
            raise psycopg2.ProgrammingError(NESTED)
        # psycopg2 begins a transaction in such a block, with autocommit too.
        PsycopgConnection.__enter__(conn)
        self._is_entered = True
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        # First, as psycopg2 does: the block ends also where the commit fails.
        self._is_entered = False
        if self._backend is not None:
            self._backend.leave()
        # The application's class may have methods of its own.
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def _live(self) -> Backend:
        """
        Return the pooled connection.

        :raises psycopg2.InterfaceError: this connection is closed.
        """
        conn = self._backend or self._resume()
        me = getcurrent()
        return conn if me is self._user else self._begin_use(me, conn)

    def _begin_use(self, me: Any, conn: Backend) -> Backend:
        """Note that the greenlet *me* uses it, in its turn; return the pooled connection."""
        self._source.admit(self, conn, me)
        # Others may have used it meanwhile.
        conn = self._backend or self._resume()
        self._user = me
        self._is_of_a_thread |= not gevent.get_hub().main_hub
        self._source.note_user(self, me)
        return conn

    def _resume(self) -> Backend:
        """Get another connection, and restore on it what the session had."""
        is_outer = self._acquire()
        try:
            kept, conn = self._parked, self._backend
            if conn is not None:  # another greenlet has resumed it meanwhile
                return conn
            if kept is None:
                raise psycopg2.InterfaceError(CLOSED)
            conn = cast("Backend", self._source.acquire(self))  # it waits
            try:
                session.restore(conn, kept)
            except BaseException:
                self._source.give_back(self, conn)
                raise
            self._backend, self._parked = conn, None
            return conn
        finally:
            if is_outer:
                self._release()

    @property
    def _is_bound(self) -> bool:
        """Whether it keeps its connection to its end: a native thread could not get another one."""
        return self._has_unlisted or self._is_of_a_thread

    @property
    def _is_parked(self) -> bool:
        """Whether it is open and has no pooled connection, and so no transaction."""
        return self._backend is None and self._parked is not None

    def close(self) -> None:
        """Give the pooled connection back, after the statement in progress."""
        is_outer = self._acquire()
        try:
            conn, self._backend, self._parked = self._backend, None, None
        finally:
            if is_outer:
                self._release()
        if conn is not None:
            try:
                for each in open_cursors(conn):
                    if _name_of(each) is None:  # psycopg2's would ask the server
                        cursor.close(each)
            finally:
                self._source.give_back(self, conn)

    def cursor(
        self,
        name: Any = None,
        cursor_factory: Any = None,
        withhold: Any = False,
        scrollable: Any = None,
    ) -> Any:
        """
        Return a cursor of the class asked for, on the pooled connection.

        The parameters and their defaults are psycopg2's.
        """
        conn = self._live()
        factory: Any = cursor_factory or self.cursor_factory
        made: Any = PooledCursor if name is None else PooledNamedCursor
        if factory is not None and factory is not cursor:
            made = mixed(factory, made) if isinstance(factory, type) else None
            if made is None or not issubclass(made, PooledCursor):
                return self._foreign_cursor(conn, factory, name, withhold, scrollable)
        found = made(self, name)
        # psycopg2 refuses them without a name, and has another default than the attribute.
        if name is not None or withhold or scrollable is not None:
            found.withhold, found.scrollable = withhold, scrollable
        return found

    def _foreign_cursor(self, conn: Backend, factory: Any, *args: Any) -> Any:
        """Return a cursor made by a function, or of a class that cannot have a base added."""
        name, withhold, scrollable = args
        self._bring_types(conn)
        found = PsycopgConnection.cursor(conn, name, factory, withhold, scrollable)
        base: Any = type(found)
        pooled = PooledCursor if name is None else PooledNamedCursor
        if base is cursor:  # its class cannot be replaced
            return _copy(found, pooled(self, name))
        made = mixed(base, pooled)
        if issubclass(made, PooledCursor):
            found.__class__ = made
            found._bind(self, conn)
            return found
        conn.is_spoilt = True
        finalize(found, type, self).atexit = False  # it keeps the connection, as psycopg2's do
        return found

    def _bring_types(self, conn: Backend) -> None:
        """Give the pooled connection the typecasters that register_type() has put into this one."""
        types = self.string_types
        if types:
            conn.string_types.update(types)

    # Without a pooled connection there is nothing to end: it must not wait for one.
    def commit(self) -> None:
        """Commit; let other greenlets run if there is nothing to send."""
        if self._is_parked:
            yield_as_threads()
        else:
            InTurn.commit(self)

    def rollback(self) -> None:
        """Roll back."""
        if not self._is_parked:
            InTurn.rollback(self)

    def reset(self) -> None:
        """Roll back, and give the session its settings of the beginning."""
        InTurn.reset(self)
        self._has_unlisted = False

    # What is asked while another greenlet's statement is in progress.
    xid = _passed_on(PsycopgConnection.xid)
    cancel = _passed_on(PsycopgConnection.cancel)
    fileno = _passed_on(PsycopgConnection.fileno)
    poll = _passed_on(PsycopgConnection.poll)
    isexecuting = _passed_on(PsycopgConnection.isexecuting)
    get_backend_pid = _passed_on(PsycopgConnection.get_backend_pid)
    get_dsn_parameters = _passed_on(PsycopgConnection.get_dsn_parameters)
    get_native_connection = _passed_on(PsycopgConnection.get_native_connection)
    get_parameter_status = _passed_on(PsycopgConnection.get_parameter_status)

    # What peewee sets when it connects, under a lock that it needs to give a connection back.
    @property
    def autocommit(self) -> bool:
        """psycopg2's, of the pooled connection or of the next one."""
        return bool(self._characteristic("autocommit"))

    @autocommit.setter
    def autocommit(self, value: Any) -> None:
        if not self._keep(autocommit=bool(value)):
            _set_autocommit(self, value)

    @property
    def isolation_level(self) -> int | None:
        """psycopg2's, of the pooled connection or of the next one."""
        return self._characteristic("isolation_level")  # type: ignore[no-any-return]

    @isolation_level.setter
    def isolation_level(self, value: Any) -> None:
        level = LEVELS.get(value.lower(), value) if isinstance(value, str) else value
        if not (level in LEVELS.values() and self._keep(isolation_level=level)):
            _set_isolation_level(self, value)

    def set_isolation_level(self, level: int | None) -> None:
        """
        Roll back, and set the isolation level of the next transactions.

        :param level: 1 to 4, psycopg2's numbers; 0 is autocommit, None the server's default.
        """
        is_known = level == 0 or level in LEVELS.values()
        if not (is_known and self._keep(isolation_level=level or None, autocommit=level == 0)):
            InTurn.set_isolation_level(self, level)

    def set_client_encoding(self, encoding: str) -> None:
        """
        Set the encoding of the session.

        :param encoding: a name that PostgreSQL knows.
        """
        # psycopg2 spells the encodings of connections so.
        if not self._keep(encoding="".join(filter(str.isalnum, encoding)).upper()):
            InTurn.set_client_encoding(self, encoding)

    def _characteristic(self, name: str) -> Any:
        if self._is_parked:
            is_outer = self._acquire()  # a move may be in progress
            try:
                if self._backend is None and self._parked is not None:
                    return self._parked.characteristics.get(name)
            finally:
                if is_outer:
                    self._release()
        conn = self._backend or (self if self.closed else self._live())
        return CHARACTERISTICS[name].__get__(conn)

    def _keep(self, *, encoding: str | None = None, **characteristics: Any) -> bool:
        """Keep these for the next pooled connection; return False if there is one already."""
        is_outer = self._acquire()
        try:
            if self._backend is not None or self._parked is None:
                return False
            self._parked.encoding = encoding or self._parked.encoding
            self._parked.characteristics.update(characteristics)
            return True
        finally:
            if is_outer:
                self._release()

    readonly = _member("readonly")
    deferrable = _member("deferrable")
    notices = _member("notices")
    notifies = _member("notifies")
    encoding = _member("encoding")
    pgconn_ptr = _member("pgconn_ptr")
    protocol_version = _member("protocol_version")
    server_version = _member("server_version")

    @property
    def closed(self) -> int:
        """0 while it is open, 1 after close(), 2 after the loss of the pooled connection."""
        if self._backend is None:
            return 2 if self._is_lost else int(self._parked is None)
        return self._backend.closed

    @property
    def status(self) -> int:
        """psycopg2's status of the pooled connection."""
        return STATUS_READY if self._backend is None else self._backend.status

    @property
    def dsn(self) -> str:
        """The connection string, without the password."""
        return self._source.dsn

    @property
    def info(self) -> ConnectionInfo:
        """What libpq knows about the pooled connection."""
        return PooledInfo(self)

    def get_transaction_status(self) -> int:
        """Return libpq's status of the transaction."""
        return self.info.transaction_status


class PooledInfo(ConnectionInfo):
    """
    What libpq knows about the connection under a handle, and nothing after the handle's end.

    :param handle: the connection of the application.
    """

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle)
        self._handle = handle

    @property
    def transaction_status(self) -> int:
        """libpq's status of the transaction."""
        if self._handle._is_parked:
            return TRANSACTION_STATUS_IDLE
        return int(_transaction_status.__get__(self._of_the_backend()))

    def parameter_status(self, name: str) -> str | None:
        """
        Return what the server has reported of a setting.

        :param name: the setting.
        """
        return self._of_the_backend().parameter_status(name)

    def _of_the_backend(self) -> ConnectionInfo:
        handle = self._handle
        # A handle itself is never connected.
        return ConnectionInfo(handle if handle.closed and not handle._backend else handle._live())


_transaction_status: Any = ConnectionInfo.transaction_status


def _known(name: str) -> Any:
    attribute: Any = getattr(ConnectionInfo, name)
    return property(lambda self: attribute.__get__(self._of_the_backend()), doc=attribute.__doc__)


for _name in vars(ConnectionInfo):
    if not _name.startswith("_") and _name not in vars(PooledInfo):
        setattr(PooledInfo, _name, _known(_name))


def _copy(found: Any, made: "PooledCursor") -> "PooledCursor":
    """Return *made* with what psycopg2's own cursor *found*, which is new, was given."""
    for name in SET_BY_CODE:
        setattr(made, name, getattr(found, name))
    if made.name is not None:
        made.withhold, made.scrollable = found.withhold, found.scrollable
    return made


def _checked(method: Any) -> Any:
    """Return a cursor's *method* that uses the connection, once that is free."""

    @wraps(method)
    def checked(self: "PooledCursor", *args: Any, **kwargs: Any) -> Any:
        handle = self._handle
        is_outer = handle._acquire()
        try:
            self._require_open()
            handle._bring_types(self._backend)
            found = method(self, *args, **kwargs)
            self._note_settings()
            return found
        finally:
            if is_outer:
                handle._release()

    return checked


class PooledCursor(CopyCursor):
    """
    A cursor of a :class:`Handle`, which has all rows after ``execute``.

    :param handle: the connection of the application.
    :param name: the name of a cursor on the server's side. Default None.
    """

    _handle: Handle
    _backend: Backend

    def __init__(self, handle: Handle, name: str | None = None) -> None:
        conn = handle._live()
        cursor.__init__(self, conn, name)
        self._bind(handle, conn)

    def _bind(self, handle: Handle, conn: Backend) -> None:
        """Prevent that *conn* is taken over from *handle* before this cursor is closed."""
        self._handle, self._backend = handle, conn
        conn.cursors[id(self)] = ref(self)

    @property
    def connection(self) -> Handle:  # type: ignore[override]
        """The connection of the application."""
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether the cursor or its connection is closed."""
        return bool(self._handle._backend is not self._backend or _is_closed(self))

    def _require_open(self) -> None:
        """Prove that the handle still has the connection on which this cursor was made."""
        handle = self._handle
        if handle._backend is not self._backend:
            raise psycopg2.InterfaceError(CURSOR_CLOSED)
        me = getcurrent()
        if me is not handle._user:
            handle._begin_use(me, self._backend)

    def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002  (psycopg2's name)
        """
        Execute a statement when the connection is free.

        :param query: as for psycopg2's ``execute``.
        :param vars: as for psycopg2's ``execute``. Default None.
        """
        # The same as _checked() without three calls, because every statement comes here.
        handle: Any = self._handle
        me = getcurrent()
        owner = handle._owner
        if owner is None:
            handle._owner = me
        elif owner is not me:
            handle._wait(me)
        try:
            if handle._backend is not self._backend or handle._user is not me:
                self._require_open()
            if handle.string_types:
                handle._bring_types(self._backend)
            try:
                _execute(self, query, vars)
            except ObjectInUse:
                is_again = self._backend.autocommit and OF_DATABASES.match(self.query or b"")
                if not is_again or not handle._source.close_idle():
                    raise
                _execute(self, query, vars)
            self._note_settings()
        finally:
            if owner is me:
                pass  # an adapter that queries the database itself
            elif handle._waiters:
                handle._release()
            else:
                handle._owner = None

    def _note_settings(self) -> None:
        """Note whether the session may have what the server does not list."""
        handle, statement = self._handle, self.query or b""
        if sets_unlisted(statement):
            handle._has_unlisted = True
        elif handle._has_unlisted and RESETS.fullmatch(statement):
            # In a transaction it may be rolled back.
            status = self._backend.info.transaction_status
            handle._has_unlisted = status != TRANSACTION_STATUS_IDLE

    def cast(self, oid: int, text: Any) -> Any:
        """
        Convert a value as psycopg2 does.

        :param oid: the type's number at the server.
        :param text: the value, None for null.
        """
        if self._handle._backend is self._backend:
            self._handle._bring_types(self._backend)
        return cursor.cast(self, oid, text)

    executemany = _checked(cursor.executemany)
    callproc = _checked(cursor.callproc)
    copy_from = _checked(CopyCursor.copy_from)
    copy_to = _checked(CopyCursor.copy_to)
    copy_expert = _checked(CopyCursor.copy_expert)


class PooledNamedCursor(PooledCursor):
    """A server-side cursor, each fetch of which asks the server."""

    fetchone = _checked(cursor.fetchone)
    fetchmany = _checked(cursor.fetchmany)
    fetchall = _checked(cursor.fetchall)
    scroll = _checked(cursor.scroll)
    __next__ = _checked(cursor.__next__)

    def close(self) -> None:
        """Close it on the server, unless its connection was given back, which does that too."""
        if self._handle._backend is self._backend:
            _close_named(self)


_close_named = _checked(cursor.close)
# Psycopg2's own: the application's class may have others.
_is_closed: Callable[[cursor], bool] = cursor.closed.__get__
_name_of: Callable[[cursor], str | None] = cursor.name.__get__


def sets_unlisted(statement: bytes) -> bool:
    """Return whether *statement* may set what the server does not list."""
    if len(statement) > MAX_SEARCHED_BYTES:
        comments = COMMENTS.match(statement)
        begin = comments.end() if comments else 0
        statement = statement[begin : begin + MAX_SEARCHED_BYTES]
    text = statement.lower()
    if b"set" not in text or UNLISTED.search(text) is None:
        return False
    text = TOKENS.sub(lambda each: b"''" if each["removed"] else each[0], text)
    return UNLISTED.search(OF_UPDATE.sub(b"", text)) is not None


def is_usable(handle: Handle) -> bool:
    """Return whether a statement can be executed on it, as far as is known without one."""
    conn = handle._backend
    if conn is None:
        return handle._is_parked
    return not is_dead(conn) and conn.info.transaction_status != TRANSACTION_STATUS_INERROR


def is_lost(handle: Handle) -> bool:
    """Return whether its connection was lost, and no greenlet uses it."""
    return handle._owner is None and handle._backend is not None and bool(handle._backend.closed)


def is_idle(handle: Handle) -> bool:
    """Return whether no greenlet uses the pooled connection, and it can be taken over."""
    return handle._owner is None and is_movable(handle)


def is_movable(handle: Handle) -> bool:
    """Return whether no cursor is open on the pooled connection, and nothing else binds it."""
    conn = handle._backend
    return (
        conn is not None
        and not conn.closed
        and not conn.is_spoilt
        and conn.status != STATUS_PREPARED
        and not handle._is_bound
        and not handle._is_entered
        and not open_cursors(conn)
    )


def open_cursors(conn: Backend) -> list[cursor]:
    """Return the cursors of its borrower that are neither closed nor collected."""
    found = []
    for key, reference in list(conn.cursors.items()):  # a native thread may open one meanwhile
        each = reference()
        if each is not None and not _is_closed(each):
            found.append(each)
        elif conn.cursors.get(key) is reference:
            del conn.cursors[key]
    return found
