"""One psycopg2 connection, used by many greenlets at once, as threads may use it."""

import io
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import gevent
import gevent.event
import gevent.threadpool
import psycopg2
import psycopg2.extras
import pytest
from psycogreen.gevent import gevent_wait_callback
from psycopg2.extensions import (
    TRANSACTION_STATUS_ACTIVE,
    adapt,
    connection,
    cursor,
    get_wait_callback,
    new_type,
    quote_ident,
    register_adapter,
    register_type,
    set_wait_callback,
)

from embedded.postgres import Postgres
from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.postgres.wait import keeping_promises
from tests.helpers.greenlets import at_once
from tests.helpers.pools import ask

LIMIT_S = 20.0


@pytest.fixture
def shared(postgres: Postgres) -> Iterator[connection]:
    """A connection as an application makes it."""
    with closing(psycopg2.connect(postgres.url)) as conn:
        yield conn


@pytest.fixture(params=["greenline", "psycogreen"])
def callback(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each of the callbacks that ``GREENLINE_PG_WAIT`` may name."""
    before = get_wait_callback()
    if request.param == "psycogreen":
        set_wait_callback(keeping_promises(gevent_wait_callback))
    yield request.param
    set_wait_callback(before)


def asleep(conn: connection, seconds: float = 0.1) -> "gevent.Greenlet[..., Any]":
    """Return a greenlet that is in the middle of a statement."""
    sleeping = gevent.spawn(ask, conn, "select pg_sleep(%s)", seconds)
    while conn.info.transaction_status != TRANSACTION_STATUS_ACTIVE:
        gevent.sleep(0)
    return sleeping


@pytest.mark.usefixtures("callback")
def test_fifty_greenlets_share_a_connection(shared: connection) -> None:
    """Each gets its own answer, in the order in which they came."""
    done: list[int] = []

    def work(number: int) -> int:
        answer = ask(shared, "select %s from pg_sleep(0.002)", number)
        done.append(number)
        return int(answer)

    def one(number: int) -> Callable[[], int]:
        return lambda: work(number)

    assert at_once(*map(one, range(50))) == list(range(50))
    assert done == list(range(50))


@pytest.mark.usefixtures("callback")
def test_commits_beside_statements(shared: connection) -> None:
    """Neither blocks the hub, and no COMMIT is sent twice: the server would send a warning."""
    is_over = False

    def commit() -> None:
        while not is_over:
            shared.commit()

    def execute() -> None:
        nonlocal is_over
        for number in range(200):
            assert ask(shared, "select %s", number) == number
            shared.commit()
        is_over = True

    at_once(commit, execute)
    assert shared.notices == []


def test_a_commit_without_a_transaction_lets_others_run(shared: connection) -> None:
    """As a thread does, which releases the interpreter's lock there."""
    has_run = gevent.event.Event()
    gevent.spawn(has_run.set)
    shared.commit()
    assert has_run.is_set()


USES: dict[str, Callable[[connection], Any]] = {
    "execute": lambda conn: ask(conn, "select 1"),
    "executemany": lambda conn: conn.cursor().executemany("select %s", [(1,), (2,)]),
    "callproc": lambda conn: conn.cursor().callproc("now"),
    "commit": lambda conn: conn.commit(),
    "rollback": lambda conn: conn.rollback(),
    "reset": lambda conn: conn.reset(),
    "close": lambda conn: conn.close(),
    "set_client_encoding": lambda conn: conn.set_client_encoding("UTF8"),
    "set_isolation_level": lambda conn: conn.set_isolation_level(0),
    "with": lambda conn: conn.__exit__(None, None, None),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_every_use_waits_for_a_statement_in_progress(
    shared: connection, use: Callable[[connection], Any]
) -> None:
    """The statement goes on to its end, and other greenlets run meanwhile."""
    sleeping = asleep(shared)
    user = gevent.spawn(use, shared)
    gevent.sleep(0)
    assert sleeping.ready() or not user.ready()
    user.join(LIMIT_S)
    assert sleeping.ready()
    assert (sleeping.exception, user.exception) == (None, None)


def test_attributes_wait_for_a_statement_in_progress(shared: connection) -> None:
    """They are set where the mutex is free, and read at any time."""
    shared.autocommit = True
    sleeping = asleep(shared)
    assert shared.autocommit is True

    def set_attributes() -> None:
        shared.autocommit = False
        shared.isolation_level = "SERIALIZABLE"
        shared.readonly = True
        shared.deferrable = False

    at_once(set_attributes)
    assert sleeping.ready()
    assert (shared.autocommit, shared.isolation_level, shared.readonly, shared.deferrable) == (
        False, 3, True, False,
    )  # fmt: skip


def test_named_cursors_of_one_connection(shared: connection) -> None:
    """Each fetch asks the server: several greenlets fetch in turns."""

    def fetch(name: str) -> list[int]:
        with shared.cursor(name) as named:
            named.itersize = 3
            named.execute("select generate_series(1, 20)")
            first = named.fetchone()
            named.scroll(1)
            some = [
                first,
                *named.fetchmany(2),
                *(row for _, row in zip(range(5), named, strict=False)),
            ]
            return [row[0] for row in [*some, *named.fetchall()]]

    answers = at_once(*(lambda name=name: fetch(name) for name in "abcde"))  # type: ignore[misc]
    assert answers == [answers[0]] * 5
    assert answers[0][:4] == [1, 3, 4, 5]
    assert answers[0][-1] == 20


def test_a_greenlet_killed_while_it_waits_leaves_the_queue(shared: connection) -> None:
    """The next one is served."""
    sleeping = asleep(shared)
    killed, last = (gevent.spawn(ask, shared, "select 1") for _ in range(2))
    gevent.sleep(0)
    killed.kill()
    assert last.get(timeout=LIMIT_S) == 1
    assert sleeping.ready()


def test_a_greenlet_killed_when_its_turn_comes_passes_it_on(shared: connection) -> None:
    """It was woken and has not run yet."""
    killed = gevent.spawn(ask, shared, "select 1")
    last = gevent.spawn(ask, shared, "select 2")

    def first() -> None:
        ask(shared, "select pg_sleep(0.1)")
        killed.kill(block=False)

    gevent.spawn(first).join()
    assert last.get(timeout=LIMIT_S) == 2
    assert ask(shared, "select 3") == 3


def test_the_deadline_ends_the_wait_for_a_connection(shared: connection) -> None:
    """And nothing else: the statement in progress is another request's."""
    sleeping = asleep(shared, 1.0)
    with deadline.limit(0.05), pytest.raises(DeadlineExceeded):
        ask(shared, "select 1")
    assert not sleeping.ready()
    sleeping.join()
    assert sleeping.exception is None
    assert ask(shared, "select 1") == 1


def test_a_connection_that_was_closed_meanwhile(shared: connection) -> None:
    """What waits for it gets psycopg2's own error."""
    sleeping = asleep(shared)
    closing_it = gevent.spawn(shared.close)
    gevent.sleep(0)
    with pytest.raises(psycopg2.InterfaceError, match="already closed"):
        ask(shared, "select 1")
    assert sleeping.ready()
    assert closing_it.ready()


def test_an_interrupted_statement_frees_the_connection(shared: connection) -> None:
    """psycopg2 closes it, and those that wait do not wait for ever."""
    sleeping = asleep(shared)
    waiting = gevent.spawn(ask, shared, "select 1")
    gevent.sleep(0)
    sleeping.kill()
    with pytest.raises(psycopg2.InterfaceError):
        waiting.get(timeout=LIMIT_S)


def test_an_adapter_may_use_the_connection(shared: connection) -> None:
    """A statement within the statement of the same greenlet does not wait for itself."""

    class Asked:
        pass

    class Asking:
        def __init__(self, _: Asked) -> None:
            pass

        def getquoted(self) -> bytes:
            return bytes(adapt(ask(shared, "select 41")).getquoted())

    register_adapter(Asked, Asking)
    assert ask(shared, "select %s + 1", Asked()) == 42


def test_native_threads_share_a_connection_with_greenlets(shared: connection) -> None:
    """Those of gevent's pool have hubs of their own."""
    pool = gevent.threadpool.ThreadPool(3)
    sleeping = asleep(shared)
    threads = [pool.spawn(ask, shared, "select %s", number) for number in range(3)]
    with gevent.Timeout(LIMIT_S):
        assert [one.get() for one in threads] == [0, 1, 2]
    assert sleeping.ready()
    pool.kill()


class Own(connection):
    """An application's class that hands in its own cursors, as they do."""

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("cursor_factory", OwnCursor)
        return super().cursor(*args, **kwargs)


class OwnCursor(cursor):
    """A cursor with a method of its own."""

    def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002
        return super().execute(f"/* own */ {query}", vars)


class Slotted(connection):
    """A class without a dictionary."""

    __slots__ = ("more",)


def make_own(dsn: str) -> connection:
    """Connect, as a function that is a connection_factory."""
    return Own(dsn)


def make_own_cursor(*args: Any) -> cursor:
    """Make a cursor, as a function that is a cursor_factory."""
    return OwnCursor(*args)


FACTORIES: dict[str, tuple[dict[str, Any], type, type]] = {
    "none": ({}, connection, cursor),
    "DictConnection": (
        {"connection_factory": psycopg2.extras.DictConnection},
        psycopg2.extras.DictConnection, psycopg2.extras.DictCursor,
    ),
    "RealDictCursor": (
        {"cursor_factory": psycopg2.extras.RealDictCursor},
        connection, psycopg2.extras.RealDictCursor,
    ),
    "NamedTupleCursor": (
        {"cursor_factory": psycopg2.extras.NamedTupleCursor},
        connection, psycopg2.extras.NamedTupleCursor,
    ),
    "own classes": ({"connection_factory": Own}, Own, OwnCursor),
    "slots": ({"connection_factory": Slotted}, Slotted, cursor),
    "functions": (
        {"connection_factory": make_own, "cursor_factory": make_own_cursor}, Own, OwnCursor,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "connection_type", "cursor_type"), FACTORIES.values(), ids=FACTORIES.keys()
)
def test_factories_of_the_application(
    postgres: Postgres, arguments: dict[str, Any], connection_type: type, cursor_type: type
) -> None:
    """Their classes make the connection and its cursors, which greenlets share all the same."""
    with closing(psycopg2.connect(postgres.url, **arguments)) as conn:
        assert isinstance(conn, connection_type)

        def work(number: int) -> Any:
            with conn.cursor() as one:
                assert isinstance(one, cursor_type)
                assert one.connection is conn
                one.execute("select %s as a from pg_sleep(0.001)", (number,))
                row = one.fetchone()
                return list(row.values() if isinstance(row, dict) else row)

        answers = at_once(*(lambda number=number: work(number) for number in range(9)))  # type: ignore[misc]
        assert answers == [[number] for number in range(9)]


def test_the_logging_connection(postgres: Postgres) -> None:
    """It sees each statement, and is found under its own name."""
    lines = io.StringIO()
    log = logging.Logger("statements")
    log.addHandler(logging.StreamHandler(lines))
    with closing(
        psycopg2.connect(postgres.url, connection_factory=psycopg2.extras.LoggingConnection)
    ) as conn:
        assert type(conn).__name__ == "LoggingConnection"
        conn.initialize(log)  # type: ignore[attr-defined]
        assert at_once(lambda: ask(conn, "select 1"), lambda: ask(conn, "select 2")) == [1, 2]
    assert lines.getvalue() == "b'select 1'\nb'select 2'\n"


def test_functions_of_psycopg2_take_the_connection(shared: connection) -> None:
    """Those that are in C look at its type."""
    assert quote_ident('a"b', shared) == '"a""b"'
    register_type(new_type((23,), "doubled", lambda value, _: int(value) * 2), shared)
    assert ask(shared, "select 21") == 42
    psycopg2.extras.register_uuid(conn_or_curs=shared)
    with shared, shared.cursor() as one:
        psycopg2.extras.execute_values(one, "select * from (values %s) t", [(1,), (2,)])
        assert one.fetchall() == [(2,), (4,)]
    assert "closed: 0" in repr(shared)
