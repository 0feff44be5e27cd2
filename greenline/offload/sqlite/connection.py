"""Replace ``sqlite3.Connection`` by a class whose calls run in a native thread of its own."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import fabs, inf
from sqlite3 import dbapi2 as sqlite3  # the package itself is not complete yet
from time import monotonic
from types import BuiltinFunctionType
from typing import Any
from weakref import ref

import gevent

from greenline.hub.cooperate import yield_to_hub
from greenline.hub.thread_locks import main_ident
from greenline.hub.turns import Page
from greenline.offload.sqlite import busy
from greenline.offload.sqlite.busy import (
    FIRST_RETRY_S,
    Retries,
    is_others_turn,
    must_queue,
    upgrades,
    waiting,
    wake,
    would_wait,
    writers,
)
from greenline.offload.sqlite.cursor import Cursor
from greenline.offload.sqlite.quick import (
    CLOSE,
    COMMIT_AFTER,
    CONNECT,
    END_OF_READS,
    MAX_BLOCK_S,
    MAX_CHANGES,
    MAX_COMMITS,
    MIN_QUICK_RUNS,
    OPERATIONS,
    SLOW_RUNS,
    Guard,
    measured,
    paces,
    run_or_hand_over,
)
from greenline.offload.sqlite.statement import COMMIT, READS, ROLLBACK, Statement
from greenline.offload.threads import OwnThread, can_wait, get_ident, is_offloaded, native

# The originals: the names in sqlite3 are replaced later.
_Connection: Any = sqlite3.Connection
_Cursor: Any = sqlite3.Cursor

YIELD_EVERY_S = 0.005
# Of a transaction that holds a lock: others wait for its end, or fail because of it. What computes
# for so long is interrupted in any case.
LOCKED_YIELD_EVERY_S = 0.025
COMMIT_WAIT_S = 0.05  # for readers, in the thread
OFF, NORMAL = 0, 1  # of PRAGMA synchronous
TEMP = 1  # number of the temporary database; those that are attached follow
ENDS = "COMMIT", "ROLLBACK"
LOCKS_NOTHING = "BEGIN", "SAVEPOINT"  # and not the first statement for sqlite, which waits for it
COMMIT_IN_THREAD = COMMIT._replace(key="")
COMMIT_OF_READS = COMMIT._replace(key=END_OF_READS, commits=False)

PARAMETERS = (
    "timeout", "detect_types", "isolation_level", "check_same_thread", "factory",
    "cached_statements", "uri",
)  # fmt: skip


class ThreadedConnection(_Connection):  # type: ignore[misc]
    """
    Open a database, and run the calls of the connection in a native thread.

    :param database: as in :func:`sqlite3.connect`, like all further parameters.
    """

    __module__ = "sqlite3"  # some libraries compare it
    _own: OwnThread | None = None
    _row_factory: Any = None
    _is_closed = False
    _has_read = False  # in this transaction: then sqlite does not wait for the write lock
    _only_reads = False  # in this transaction
    _locked_s = 0.0  # when it took the write lock, 0 where it has not
    _page: Page | None = None  # of what has taken it, or has begun with a read
    _has_begun = False  # something ran since the transaction began
    _has_locks = False  # something ran since that may have taken a lock
    _first_read: str | None = None  # the key of the read that took it, until something is written
    _read_s = 0.0  # when that has run
    turn_s = 0.0  # when it had its turn to write, or to read and write; 0 where it has not
    _checks_thread = True
    _owner = 0
    _has_authorizer = False
    _progress: tuple[Any, int] | None = None  # the application's progress handler
    _is_guarded = False
    _trace: Any = None
    _yielded_s = 0.0
    _changes_before = 0  # total_changes at the begin of the transaction
    _last_change = ""  # of the transaction: its text
    _is_large = False  # whether the transaction may have changed much
    _syncs: bool | None = None  # whether a commit waits for the disk
    _checkpoints = True
    _checkpoint_pages = 0

    def __init__(self, database: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.update(zip(PARAMETERS, args, strict=False))
        timeout_s = max(fabs(kwargs.get("timeout", 5.0)), 0.0)
        checks_thread = bool(kwargs.get("check_same_thread", True))
        # sqlite must not wait itself, and the calls come from several threads.
        kwargs.update(timeout=0, check_same_thread=False)
        own = OwnThread()
        name = _name(database)
        run_or_hand_over(own, name, CONNECT, _initialize, self, database, kwargs)
        # Not earlier: a second call of sqlite3's __init__ clears the attributes.
        self._own = own
        self._timeout_s = timeout_s
        self._checks_thread = checks_thread
        self._owner = main_ident() if is_offloaded() else get_ident()
        self._database = name
        # All databases in memory have the same name, so each has paces of its own.
        self._paces = {} if "memory" in name else paces.setdefault(name, {})
        # A database without a name is of this connection alone.
        is_shared = bool(database) and not name.endswith(":memory:")
        self._writers = writers.setdefault(name, []) if is_shared else []
        self._reference = ref(self)
        self._guard = Guard()

    row_factory = Cursor.row_factory

    @property
    def isolation_level(self) -> Any:
        """The statement that begins a transaction; None is autocommit. Setting None commits."""
        return _Connection.isolation_level.__get__(self)

    @isolation_level.setter
    def isolation_level(self, level: Any) -> None:
        if level is None and self.in_transaction:  # it commits
            self._run(_Connection.isolation_level.__set__, self, level)
        else:
            self._briefly(_Connection.isolation_level.__set__, self, level)

    if hasattr(_Connection, "autocommit"):  # Python 3.12

        @property
        def autocommit(self) -> Any:
            """Whether transactions begin by themselves; setting it commits or begins one."""
            return _Connection.autocommit.__get__(self)

        @autocommit.setter
        def autocommit(self, value: Any) -> None:
            self._run(_Connection.autocommit.__set__, self, value)
            self._begin_anew()

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """Return a cursor."""
        self._check_thread()
        if not args and not kwargs:
            args = (Cursor,)
        cursor = _Connection.cursor(self, *args, **kwargs)
        if self._row_factory is not None:
            cursor.row_factory = self._row_factory
        return cursor

    def execute(self, *args: Any) -> Any:
        """Execute a statement with a new cursor."""
        return ThreadedConnection.cursor(self).execute(*args)

    def executemany(self, *args: Any) -> Any:
        """Execute a statement for each set of parameters with a new cursor."""
        return ThreadedConnection.cursor(self).executemany(*args)

    def executescript(self, *args: Any) -> Any:
        """Execute several statements with a new cursor."""
        return ThreadedConnection.cursor(self).executescript(*args)

    def commit(self) -> None:
        """Commit the transaction; wait for readers whose locks prevent it."""
        if self._has_nothing_to_end():
            _Connection.commit(self)
        else:
            self._run(_Connection.commit, self, statement=COMMIT)
        self._begin_anew()

    def rollback(self) -> None:
        """Roll the transaction back."""
        if self._has_nothing_to_end():
            _Connection.rollback(self)
        else:
            self._run(_Connection.rollback, self, statement=ROLLBACK)
        self._begin_anew()

    def close(self) -> None:
        """Close the connection and give its thread back."""
        self._check_thread()
        own = self._own
        if own is None:
            _Connection.close(self)
            return
        try:
            if can_wait():
                # Another request may open the database meanwhile, so that this connection is not
                # the last: with a write-ahead log, closing the last connection and opening the
                # first cost the most.
                yield_to_hub()
        finally:
            if self._is_closed or not self._closes_quickly():
                # In the thread: this may copy the write-ahead log into the database, or raise.
                own.call(ThreadedConnection._close, self, is_cleanup=True)
            else:
                run_or_hand_over(own, self._database, CLOSE, ThreadedConnection._close, self)
        own.release()
        self._let_next_try(ROLLBACK)

    def _closes_quickly(self) -> bool:
        """Return whether closing writes nothing."""
        if not self.total_changes:
            return True
        own: Any = self._own
        if self.in_transaction or not own.is_idle or not self._may_run_here:
            return False
        try:
            return "wal" not in str(_ask(self, "PRAGMA journal_mode")) and not self._has_others()
        except sqlite3.Error:
            return False

    def _has_others(self) -> bool:
        """Return whether other databases are attached."""
        # Not pragma_database_list: a SELECT of it may have to read the schema, which may be locked.
        listed = _Cursor.execute(_Cursor(self), "PRAGMA database_list").fetchall()
        return any(row[0] > TEMP for row in listed)

    def _close(self) -> None:
        _Connection.close(self)
        # Here, because the greenlet that waits for it may be interrupted.
        self._is_closed = True

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            try:
                ThreadedConnection.commit(self)
            except BaseException:
                ThreadedConnection.rollback(self)
                raise
        else:
            ThreadedConnection.rollback(self)

    def backup(self, *args: Any, **kwargs: Any) -> None:
        """Copy the database into that of another connection; parameters as in sqlite3."""
        self._run(self._waiting_in_sqlite, partial(_Connection.backup, self, *args, **kwargs))

    def blobopen(self, *args: Any, **kwargs: Any) -> Any:
        """Open a blob; parameters as in sqlite3."""
        opened = partial(_Connection.blobopen, self, *args, **kwargs)
        return self._run(self._waiting_in_sqlite, opened)

    def create_function(self, name: Any, narg: Any, func: Any, **kwargs: Any) -> None:
        """Create a function; parameters as in sqlite3."""
        # A Python function might wait, unless it is built in or said to be deterministic. The
        # statements that call it run in the thread; pydal makes two for each connection.
        if not (kwargs.get("deterministic") or isinstance(func, BuiltinFunctionType | None)):
            func = self._guard.watched(func)
        self._briefly(lambda: _Connection.create_function(self, name, narg, func, **kwargs))

    def set_authorizer(self, *args: Any, **kwargs: Any) -> None:
        """Set the callback that allows or denies access; parameters as in sqlite3."""
        # Before and after: another greenlet may run a statement meanwhile.
        self._has_authorizer = True
        self._briefly(lambda: _Connection.set_authorizer(self, *args, **kwargs))
        self._has_authorizer = next(iter((*args, *kwargs.values())), None) is not None

    def set_progress_handler(self, progress_handler: Any, n: Any) -> None:
        """Set the callback of running statements; parameters as in sqlite3."""
        self._briefly(lambda: _Connection.set_progress_handler(self, progress_handler, n))
        self._is_guarded = False
        self._guard.handler = None
        self._progress = None if progress_handler is None or n <= 0 else (progress_handler, n)

    def set_trace_callback(self, *args: Any, **kwargs: Any) -> None:
        """Set the callback that gets each statement; parameters as in sqlite3."""
        trace = next(iter((*args, *kwargs.values())), None)
        self._trace = trace or self._trace
        self._briefly(lambda: _Connection.set_trace_callback(self, *args, **kwargs))
        self._trace = trace

    def _begin_anew(self) -> None:
        """Forget what the last transaction has done."""
        self._has_read = self._has_begun = self._has_locks = False

    def has_ended(self) -> bool:
        """Return whether the transaction that had its turn has ended, perhaps by an error."""
        own = self._own
        if self._is_closed or own is None or not self.turn_s:
            return True
        return not self.in_transaction and own.is_idle

    def has_write_lock(self) -> bool:
        """Return whether the transaction has written."""
        return self._locked_s > 0

    def _has_nothing_to_end(self) -> bool:
        """Return whether a commit or a rollback sends no statement: no transaction has begun."""
        self._check_thread()
        own = self._own
        return own is not None and own.is_idle and not self._is_closed and not self.in_transaction

    @property
    def _may_run_here(self) -> bool:
        """Whether a statement calls no callback of the application, which might wait."""
        return self._trace is None and not self._has_authorizer

    def _set_guard(self) -> None:
        """Have the guard called while a statement runs, in place of the application's handler."""
        operations = OPERATIONS
        self._guard.handler = None
        if self._progress is not None:
            self._guard.handler, most = self._progress
            operations = min(operations, most)
            self._guard.handler_calls = most // operations
        _Connection.set_progress_handler(self, self._guard, operations)
        self._is_guarded = True

    def _remove_guard(self) -> None:
        _Connection.set_progress_handler(self, *(self._progress or (None, OPERATIONS)))
        self._is_guarded = False

    def _check_thread(self) -> None:
        """Refuse calls of another native thread, as sqlite3 does."""
        # Greenlets do not count, and neither do the threads in which calls of theirs run.
        if not self._checks_thread or self._own is None:
            return
        ident = get_ident()
        if ident != self._owner and not is_offloaded():
            raise sqlite3.ProgrammingError(
                "SQLite objects created in a thread can only be used in that same thread. "
                f"The object was created in thread id {self._owner} and this is thread id {ident}."
            )

    def _briefly(self, func: Callable[..., Any], *args: Any) -> Any:
        """Call a function that neither waits nor takes long."""
        # In the thread if that is busy: sqlite's lock would block the hub until the statement ends.
        self._check_thread()
        own = self._own
        if own is None or own.is_idle:
            return func(*args)
        return own.call(func, *args, is_cleanup=True)

    def _run(
        self, func: Callable[..., Any], *args: Any, statement: Statement = COMMIT_IN_THREAD
    ) -> Any:
        """
        Call *func* in the thread or, if it is known to be quick, in the caller's greenlet.

        It is called repeatedly while another connection holds the lock.

        :param statement: what *func* executes, :class:`Statement`. Default: the end of a
            transaction that is not known to be quick.
        """
        self._check_thread()
        own = self._own
        if own is None or self._is_closed:
            return func(*args)  # raises the error of sqlite3
        begins = not self.in_transaction
        if begins:  # an error may have ended the last one, or an attribute that was set
            self._has_read, self._has_locks, self._locked_s = False, False, 0.0
            if self.turn_s or self._first_read is not None:
                self._give_turn_back()
                self._first_read = self._page = None
        # With autocommit=False sqlite3 begins the next transaction where it has ended one.
        is_first = begins or not self._has_begun
        self._has_begun = True
        if is_first and statement.keyword != "SELECT":
            self._changes_before = self.total_changes
            self._is_large = False
            self._last_change = ""
            self._only_reads = begins
        if statement.keyword not in READS or not statement.key:
            self._only_reads = False
        elif statement.commits and self._only_reads and self.total_changes == self._changes_before:
            # It writes nothing, so it does not wait for the disk.
            if statement is COMMIT:
                statement = COMMIT_OF_READS  # made once: it takes as long as a quick statement
            else:
                statement = statement._replace(key=END_OF_READS, commits=False)
        if statement.changes:
            self._last_change = statement.key
        database, keyword, turns = self._database, statement.keyword, self._writers
        writes = statement.begins_to_write
        # Those that wait for the write lock get it first. A connection that holds locks never
        # waits here.
        share = 0.0
        if self._has_locks:
            if writes and self._first_read is not None:
                self._note_upgrade(monotonic() - self._read_s)
        elif writes:
            self._has_locks, share = True, 1.0
        elif keyword not in LOCKS_NOTHING:
            self._has_locks = True
            if keyword == "SELECT" and not begins:
                self._first_read, self._read_s = statement.key, monotonic()
                if upgrades:
                    self._page = page = busy.page()
                    share = busy.upgrade_share(database, page, statement.key)
        is_writer = share > 0 and self._timeout_s > 0
        is_behind = is_writer and (
            (waiting and must_queue(database, writes and self._has_quick_commits()))
            or (turns and self._is_others_turn(writes))
        )
        takes_lock = writes and (is_first or not self._locked_s)
        # One that has read, and was not expected to write, asked for no turn, and has one now.
        takes_turn = (is_writer or takes_lock) and not self.turn_s
        begun_s = monotonic() if takes_lock else 0.0
        if not is_behind:
            if takes_turn:
                self._take_turn(begun_s or self._read_s)
            try:
                result = self._attempt(func, args, statement, begins)
            except BaseException as error:  # any error may have ended the transaction
                if not self._has_to_wait(error, statement):
                    raise
            else:
                self._let_next_try(statement, begun_s)
                return result
        asked_s = monotonic()
        until_s = asked_s + self._timeout_s
        # One that only reads this time has waited in vain.
        patient_until_s = until_s if writes else asked_s + share * self._timeout_s
        with Retries(database, keyword, is_writer) as retries:
            while True:
                retries.wait(until_s)
                self._yielded_s = self._read_s = now_s = monotonic()
                is_patient = is_writer and turns and now_s < patient_until_s
                if is_patient and self._is_others_turn(writes):
                    continue
                if takes_lock:
                    begun_s = now_s
                if takes_turn:
                    self._take_turn(now_s)
                try:
                    result = self._attempt(func, args, statement, begins)
                except BaseException as error:
                    if not self._has_to_wait(error, statement, until_s):
                        raise
                else:
                    break
        self._let_next_try(statement, begun_s)
        return result

    def _has_to_wait(
        self, error: BaseException, statement: Statement, until_s: float = inf
    ) -> bool:
        """Return whether a statement that has failed is to be tried again, until *until_s*."""
        if not busy.is_of_a_lock(error):
            if self.turn_s and self.has_ended():
                self._let_next_try(ROLLBACK)
            return False
        if self.turn_s and not self._locked_s:
            self._give_turn_back()
        if self._timeout_s == 0 or monotonic() >= until_s:
            return False
        return would_wait(error, statement.keyword, self._has_read)

    def _is_others_turn(self, writes: bool) -> bool:
        """Return whether another connection is to write before this one reads, or *writes*."""
        return is_others_turn(self._database, self._writers, self._reference, has_lock=not writes)

    def _note_upgrade(self, after_s: float | None) -> None:
        """Note that the transaction writes *after_s* after it has read, or not at all."""
        if self._page is None:
            self._page = busy.page()
        if self._first_read is not None:
            busy.note_upgrade(self._database, self._page, self._first_read, after_s)
            self._first_read = None

    def _take_turn(self, now_s: float) -> None:
        """Let others that are to write wait for the end of this transaction."""
        turns = self._writers
        if turns:  # those that were collected as garbage have not given theirs back
            turns[:] = [each for each in turns if each() is not None]
        turns.append(self._reference)
        if self._page is None:
            self._page = busy.page()
        self.turn_s = now_s

    def _give_turn_back(self) -> None:
        self.turn_s, self._page = 0.0, None
        if self._reference in self._writers:  # in a forked child it is not
            self._writers.remove(self._reference)

    def _attempt(
        self, func: Callable[..., Any], args: tuple[Any, ...], statement: Statement, begins: bool
    ) -> Any:
        """Call *func* once."""
        own: Any = self._own
        key = statement.key
        pace = self._paces.get(key, 0)
        is_quick = key and pace >= MIN_QUICK_RUNS
        commits = statement.commits or (begins and statement.changes and self._commits_itself())
        if (
            is_quick
            and own.is_idle
            and self._may_be_here(statement, begins, commits)
            and self._is_free_still(own)
            and self._has_run_here(func, args, statement, begins, commits)
        ):
            return None
        if own.is_idle:
            if self._is_guarded:
                self._remove_guard()  # each call of it in the thread needs the interpreter's lock
            if not self._checkpoints and statement.keyword != "SELECT":
                self._set_checkpoints(True)
        self._yielded_s = monotonic()
        # Not interrupted: the end of a transaction is short, and its result matters.
        interrupt = None if statement.keyword in ENDS else self._interrupt
        is_cleanup = statement.keyword == "ROLLBACK"
        if statement.is_large or (statement.changes and not statement.key):
            self._is_large = True
        if commits and self._is_slow_commit():
            key = COMMIT_AFTER + self._last_change
        elif commits and self._is_large:
            key = ""  # says nothing of the small ones
        elif is_quick and commits:
            key = COMMIT.key
        if statement.keyword == "COMMIT" and self._locked_s and self._timeout_s:  # it has written
            func, args = commit_repeatedly, (func, *args)
        if key:
            func, args = measured, (self._paces, key, func, *args)
        self._guard.has_called = False
        try:
            result = own.call(func, *args, interrupt=interrupt, is_cleanup=is_cleanup)
        finally:
            if self._guard.has_called and statement.key:
                self._paces[statement.key] = -SLOW_RUNS
        if statement.changes and self._paces.get(statement.key, 0) <= min(pace, 0):
            self._is_large = True  # it was slow, so its commit may be: an index of texts is written
        return result

    def _may_be_here(self, statement: Statement, begins: bool, commits: bool) -> bool:
        """Return whether a quick statement may run in the caller's greenlet."""
        if not self._may_run_here:
            return False
        if commits:
            return self._is_quick_commit()
        # A change inside a transaction cannot be ended without a loss.
        if begins or not statement.changes or statement.inserts_one_row:
            return True
        return bool(self._paces.get(statement.plan))

    def _commits_itself(self) -> bool:
        """Return whether a change that begins a transaction ends it as well."""
        autocommit = getattr(self, "autocommit", None)
        return autocommit is True or (self.isolation_level is None and autocommit is not False)

    def _is_quick_commit(self) -> bool:
        """Return whether the end of the transaction neither takes long nor waits for the disk."""
        if self._is_large or self.total_changes - self._changes_before > MAX_CHANGES:
            return False
        if self._is_slow_commit():
            return False
        if self._syncs is None:
            has_log = "wal" in str(_ask(self, "PRAGMA journal_mode"))
            (busy.with_log.add if has_log else busy.with_log.discard)(self._database)
            syncs = _ask(self, "PRAGMA synchronous") > (NORMAL if has_log else OFF)
            self._checkpoint_pages = _ask(self, "PRAGMA wal_autocheckpoint")
            self._syncs = syncs or self._has_others()
        return self._has_quick_commits()

    def _is_slow_commit(self) -> bool:
        return self._paces.get(COMMIT_AFTER + self._last_change, 0) < 0

    def _has_quick_commits(self) -> bool:
        return self._syncs is False and self._paces.get(COMMIT.key, 0) >= MIN_QUICK_RUNS

    def _is_free_still(self, own: OwnThread) -> bool:
        """Let others run if this connection was quick for long; return False if one took it."""
        holds_lock = self._locked_s or self._has_read
        limit_s = LOCKED_YIELD_EVERY_S if holds_lock else YIELD_EVERY_S
        if monotonic() - self._yielded_s <= limit_s or not can_wait():
            return True
        # Quick statements in a row never wait, and would keep the other greenlets from running.
        yield_to_hub()
        self._yielded_s = monotonic()
        return own.is_idle and not self._is_closed

    def _has_run_here(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        statement: Statement,
        begins: bool,
        commits: bool,
    ) -> bool:
        """Call *func* in the caller's greenlet; return False if it was too slow and was ended."""
        # Critical section: no greenlet switch between here and the end of the statement, in which
        # another greenlet could give the thread a call.
        known, guard = self._paces, self._guard
        if commits:
            if self._checkpoints and self._checkpoint_pages:
                self._set_checkpoints(False)
            # From time to time two in the thread: the first one does the checkpoint, and the next
            # one, which begins the log anew, waits for the disk.
            count = known.get(COMMIT.key, 0) + 1  # another statement may have cleared it
            known[COMMIT.key] = count if count < MAX_COMMITS else 0
        if not self._is_guarded:
            self._set_guard()
        # Ending a change undoes its transaction, so that must have changed nothing.
        guard.begin(
            is_query=statement.keyword == "SELECT",
            may_end=statement.changes and begins and self.total_changes == self._changes_before,
        )
        guard.is_here = True
        try:
            func(*args)
        except sqlite3.OperationalError:
            if not guard.has_tripped:
                raise
        finally:
            guard.is_here = False
            if guard.has_tripped or guard.is_late():
                # The thread measures it again: it may have been a collection of garbage.
                is_slow = guard.is_late(MAX_BLOCK_S) or guard.was_due
                runs = -SLOW_RUNS if is_slow else MIN_QUICK_RUNS - 1
                if commits:  # others are quick
                    known[COMMIT_AFTER + self._last_change] = min(runs, -1)
                else:
                    known[statement.key] = runs
        return not guard.has_tripped

    def _set_checkpoints(self, does: bool) -> None:
        """Let commits of this connection do checkpoints, which wait for the disk, or not."""
        _ask(self, f"PRAGMA wal_autocheckpoint={self._checkpoint_pages if does else 0}")
        self._checkpoints = does

    def _let_next_try(self, statement: Statement, begun_s: float = 0.0) -> None:
        """
        Wake connections that wait for a lock, if this one may have released its own.

        :param statement: the statement that has ended.
        :param begun_s: when that has taken the write lock, monotonic, float. Default 0: it has not.
        """
        if begun_s:
            self._locked_s = begun_s
        if not (waiting or self.turn_s or self._locked_s or self._first_read is not None):
            return
        # With autocommit=False a transaction has begun after the end of another one.
        if not (statement.ends or self._is_closed or not self.in_transaction):
            return
        if self._first_read is not None and upgrades:
            self._note_upgrade(None)
        if since_s := self.turn_s or self._locked_s:
            busy.note_hold(self._database, self._page or busy.page(), monotonic() - since_s)
            self._locked_s = 0.0
            self._give_turn_back()
        self._first_read = self._page = None
        if waiting:
            wake(self._database, was_reader=statement.keyword == "SELECT")
            if statement.keyword == "COMMIT" and self._syncs and can_wait():
                # The next one first: while it waits for the disk, this greenlet goes on.
                gevent.sleep(0)

    def _interrupt(self) -> None:
        _Connection.interrupt(self)

    def _waiting_in_sqlite(self, func: Callable[..., Any], *args: Any) -> Any:
        """Call a function that cannot be tried again, in the thread; sqlite waits for locks."""
        if self._guard.is_here:  # another greenlet has ended the transaction
            return func(*args)
        # This blocks only the thread of this connection: the holder of the lock has another one.
        _ask(self, f"PRAGMA busy_timeout={self._timeout_s * 1000:.0f}")
        try:
            return func(*args)
        finally:
            with suppress(sqlite3.Error):
                # The application's own PRAGMA may have set another timeout.
                self._timeout_s = _ask(self, "PRAGMA busy_timeout") / 1000
                _ask(self, "PRAGMA busy_timeout=0")


def _ask(conn: Any, sql: str) -> Any:
    """Execute a statement of this module, without the application's callbacks."""
    if conn._trace is not None:
        _Connection.set_trace_callback(conn, None)
    if conn._progress is not None:
        _Connection.set_progress_handler(conn, None, OPERATIONS)
    try:
        return _Cursor.execute(_Cursor(conn), sql).fetchone()[0]
    finally:
        if conn._trace is not None:
            _Connection.set_trace_callback(conn, conn._trace)
        if conn._progress is not None:
            conn._remove_guard()


def _initialize(conn: ThreadedConnection, database: Any, kwargs: dict[str, Any]) -> None:
    _Connection.__init__(conn, database, **kwargs)


def commit_repeatedly(func: Callable[..., Any], *args: Any) -> Any:
    """Call *func*, in a thread; it commits. Try again for a moment, if readers prevent it."""
    # In the hub their ends are noticed a round later. Until the commit no transaction of another
    # connection can begin, and each that has read and begins to write fails.
    until_s = monotonic() + COMMIT_WAIT_S
    while True:
        try:
            return func(*args)
        except sqlite3.OperationalError as error:
            if monotonic() >= until_s or not would_wait(error, "COMMIT", has_read=False):
                raise
        native.sleep(FIRST_RETRY_S)


def _brief(name: str) -> Any:
    """Return a method that calls the original, which neither waits nor takes long."""
    original = getattr(_Connection, name)

    def method(self: ThreadedConnection, *args: Any, **kwargs: Any) -> Any:
        return self._briefly(lambda: original(self, *args, **kwargs))

    method.__name__ = name
    method.__qualname__ = f"ThreadedConnection.{name}"
    method.__doc__ = original.__doc__
    return method


for _method in (
    "create_aggregate", "create_collation", "create_window_function", "deserialize",
    "enable_load_extension", "getlimit", "load_extension", "serialize", "setlimit",
):  # fmt: skip
    if hasattr(_Connection, _method):
        setattr(ThreadedConnection, _method, _brief(_method))


def _name(database: Any) -> str:
    """Return a name that all connections to the same database share."""
    try:
        return os.path.abspath(os.fsdecode(database))
    except (TypeError, ValueError):  # sqlite3 raises the error
        return ""
