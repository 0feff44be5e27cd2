"""``psycopg2.connect`` as a checkout from a pool."""

import gc
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import gevent
import psycopg2
import psycopg2.extensions
import psycopg2.extras
import pytest
from gevent.event import Event
from psycopg2 import connect as imported_before
from psycopg2 import sql
from psycopg2.extensions import STATUS_BEGIN, STATUS_READY, TRANSACTION_STATUS_IDLE, connection
from psycopg2.pool import ThreadedConnectionPool

from embedded.postgres import Postgres, temporary
from greenline.errors import ConfigError, DeadlineExceeded, PoolTimeout
from greenline.hub import deadline, request_end, unavailable
from greenline.hub.handlers import Handlers
from greenline.postgres import foreign, session, transparent
from greenline.postgres import open as postgres_open
from greenline.postgres.connect import connect, server_of
from greenline.postgres.handle import Handle, sets_unlisted
from greenline.postgres.limits import read_facts
from greenline.slots import SlotTable
from greenline.slots import path as slot_table_path
from tests.helpers.greenlets import at_once
from tests.helpers.pools import Watch, ask, limited
from tests.helpers.support import free_port, wait_until

LIMIT_S = 30.0
SIZE = 3
# So many that an even share is one connection less than a pool may have.
WORKERS = 8


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server of its own: the session's has the service's connections too."""
    with temporary() as server:
        yield server


@pytest.fixture
def url(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of whose connections a pool may have three."""
    monkeypatch.setenv("WEB_CONCURRENCY", "1")
    monkeypatch.setenv("POSTGRES_POOL_SIZE", str(SIZE))
    monkeypatch.setattr(psycopg2, "_connect", foreign.connect)  # what it is afterwards
    transparent.pool_psycopg2()
    yield postgres.url
    try:
        for used in list(transparent._pools):

            def are_back(used: str = used) -> bool:
                gc.collect()
                return stats(used)["active"] == 0

            wait_until(are_back, "all to be back")
    finally:  # the next test has pools of its own, whatever this one has left
        for pool in list(transparent._pools.values()):
            pool.close()
        transparent._pools.clear()


def request(work: Callable[[], Any]) -> "gevent.Greenlet[..., Any]":
    """Do *work* as a request of the worker does."""

    def respond() -> None:
        try:
            found.append(work())
        finally:
            with suppress(OtherError):
                request_end.run()
            unavailable.forget()

    def run() -> Any:
        # An idle handler still refers to the greenlet that has called it.
        gevent.spawn(Handlers().run, respond).get()
        return found.pop()

    found: list[Any] = []
    return gevent.spawn(run)


class OtherError(Exception):
    """Of another function that is called at the end of a request."""


def stats(url: str) -> dict[str, int]:
    return transparent._pools[url]._pool.stats()


def test_each_form_of_connect_is_a_checkout(url: str, postgres: Postgres) -> None:
    """By keywords, by a URL, by a name imported before, and with a class of the application."""

    class Own(connection):
        made = False

        def __init__(self, dsn: str, async_: int = 0) -> None:
            super().__init__(dsn, async_=async_)
            self.made = True

    given = psycopg2.extensions.parse_dsn(url)
    made = [
        psycopg2.connect(url),
        imported_before(url),
        psycopg2.connect(**given),
        psycopg2.connect(url, connection_factory=Own),
    ]
    for conn in made:
        assert isinstance(conn, Handle)
        assert isinstance(conn, connection)
        assert ask(conn, "select 1") == 1
        conn.close()
    assert made[3].made
    assert type(made[3]).__name__ == "Own"
    assert ask(psycopg2.connect(url, cursor_factory=psycopg2.extras.DictCursor), "select 1") == 1


def test_a_wrong_budget_ends_the_start(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not each request."""
    monkeypatch.setenv("POSTGRES_POOL_SIZE", "many")
    with pytest.raises(ConfigError, match="POSTGRES_POOL_SIZE: 'many'"):
        transparent.pool_psycopg2()


def test_a_closed_one_comes_back(url: str) -> None:
    """The next one has its backend; the closed one has none any more."""
    first = psycopg2.connect(url)
    cursor = first.cursor()
    pid = first.get_backend_pid()
    first.close()
    second = psycopg2.connect(url)
    assert second.get_backend_pid() == pid
    assert (first.closed, second.closed, cursor.closed) == (1, 0, True)
    for use in (first.cursor, first.commit, first.rollback, first.fileno, first.get_backend_pid):
        with pytest.raises(psycopg2.InterfaceError, match="already closed"):
            use()
    for statement in (cursor.execute, cursor.mogrify):
        with suppress(psycopg2.InterfaceError):
            assert statement("select 1") == b"select 1"
    first.close()
    assert ask(second, "select 1") == 1


def test_a_thousand_dropped_ones_come_back(url: str) -> None:
    """Without a close, by the end of their last reference; in reference cycles too."""
    for number in range(1000):
        conn = psycopg2.connect(url)
        assert ask(conn, "select 1") == 1
        if number % 10 == 0:
            cycle: list[Any] = [conn]
            cycle.append(cycle)
            del cycle
            gc.collect(0)
        del conn
    gc.collect()
    wait_until(lambda: stats(url)["active"] == 0, "all to be back")
    assert stats(url)["size"] <= SIZE


def test_what_a_native_thread_drops_comes_back(url: str) -> None:
    """Its last reference may end there."""
    held = [psycopg2.connect(url) for _ in range(SIZE)]
    assert stats(url)["active"] == SIZE
    gevent.get_hub().threadpool.apply(held.clear)
    wait_until(lambda: stats(url)["active"] == 0, "all to be back")


def leave_a_setting(conn: Any) -> None:
    ask(conn, "set application_name = 'left'; select 1")


def leave_a_table(conn: Any) -> None:
    ask(conn, "create temp table left_behind (a int); select 1")


def leave_a_type(conn: Any) -> None:
    ask(conn, "create domain pg_temp.left_behind as int; select 1")


def leave_a_lock(conn: Any) -> None:
    ask(conn, "select pg_advisory_lock(1)")


def leave_a_statement(conn: Any) -> None:
    ask(conn, "prepare left_behind as select 1; select 1")


def leave_a_listener(conn: Any) -> None:
    ask(conn, "listen left_behind; select 1")


def leave_a_role(conn: Any) -> None:
    ask(conn, "set role greenline; select 1")


def leave_a_cursor(conn: Any) -> None:
    conn.cursor("left_behind", withhold=True).execute("select 1")


def leave_own_setting(conn: Any) -> None:
    ask(conn, "set kept.behind = 'x'; select 1")


KEPT = [
    leave_a_setting, leave_a_table, leave_a_type, leave_a_lock, leave_a_statement,
    leave_a_listener, leave_a_role, leave_a_cursor, leave_own_setting,
]  # fmt: skip
LEFT = """
select current_setting('application_name') = 'left'
  or to_regclass('pg_temp.left_behind') is not null
  or to_regtype('pg_temp.left_behind') is not null
  or exists (select from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())
  or exists (select from pg_prepared_statements)
  or exists (select from pg_listening_channels())
  or current_setting('role') <> 'none'
  or exists (select from pg_cursors)
  or current_setting('kept.behind', true) <> ''
"""


@pytest.mark.parametrize("leave", KEPT, ids=lambda each: each.__name__)
@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "in a transaction"])
def test_it_comes_back_clean(url: str, leave: Callable[[Any], None], is_committed: bool) -> None:
    """Nothing that a session keeps is there for the next one."""
    conn = psycopg2.connect(url)
    pid = conn.get_backend_pid()
    leave(conn)
    if is_committed:
        conn.commit()
    conn.close()
    again = psycopg2.connect(url)
    assert again.get_backend_pid() == pid
    assert not ask(again, LEFT)


@pytest.mark.parametrize("connected", [psycopg2.connect, foreign.connect], ids=["pooled", "not"])
def test_a_type_counts_from_the_next_answer_on(url: str, connected: Callable[[str], Any]) -> None:
    """It is registered while a cursor is open, whose methods ask the server again."""
    conn = connected(url)
    with conn.cursor("named") as named, conn.cursor() as plain:
        named.execute("select 7 from generate_series(1, 2)")
        assert named.fetchone() == (7,)
        plain.callproc("abs", (7,))
        assert plain.fetchone() == (7,)
        twice = psycopg2.extensions.new_type((23,), "TWICE", lambda value, _: value * 2)
        psycopg2.extensions.register_type(twice, conn)
        assert named.fetchone() == ("77",)
        plain.callproc("abs", (7,))
        assert plain.fetchone() == ("77",)
    conn.close()


def test_a_peer_that_vanishes_is_noticed(url: str) -> None:
    """By keepalives, of which the application's own count first."""
    with closing(psycopg2.connect(url)) as conn:
        assert conn.get_dsn_parameters()["keepalives_idle"] == "10"
    with closing(psycopg2.connect(url, keepalives_idle=99)) as conn:
        assert conn.get_dsn_parameters()["keepalives_idle"] == "99"
        assert conn.get_dsn_parameters()["keepalives_count"] == "3"


def test_psycopgs_own_state_is_not_kept_either(url: str) -> None:
    """Encoding, isolation, autocommit, typecasters, factories and messages."""
    conn = psycopg2.connect(url)
    conn.set_session(isolation_level="serializable", readonly=True)
    conn.cursor_factory = psycopg2.extras.DictCursor
    psycopg2.extensions.register_type(
        psycopg2.extensions.new_type((23,), "TWICE", lambda value, _: value * 2), conn
    )
    ask(conn, "do $$begin raise notice 'left'; end$$; select 1")
    assert ask(conn, "select 7") == "77"
    assert len(conn.notices) == 1
    conn.close()
    again = psycopg2.connect(url)
    state = again.isolation_level, again.readonly, again.autocommit, again.cursor_factory
    assert (*state, again.notices, again.encoding) == (None, None, False, None, [], "UTF8")
    assert ask(again, "select 7") == 7
    again.set_client_encoding("LATIN1")
    again.close()
    assert psycopg2.connect(url).encoding == "UTF8"


def used(url: str) -> Any:
    """Return a connection of the application in a transaction: it has one of the pool's."""
    conn = psycopg2.connect(url)
    ask(conn, "select 1")
    return conn


def test_over_the_budget_it_waits_in_turn(url: str) -> None:
    """Thirty at once share three, in the order in which they came."""
    order: list[int] = []

    def use(number: int) -> None:
        with closing(psycopg2.connect(url)) as conn:
            assert conn.get_backend_pid()  # it waits for a connection
            order.append(number)
            ask(conn, "select pg_sleep(0.05)")

    at_once(*[lambda number=number: use(number) for number in range(30)])  # type: ignore[misc]
    assert order == list(range(30))
    assert stats(url)["size"] == SIZE


def test_none_in_time_is_too_many_connections(url: str) -> None:
    """The code handles it as it handles the server's refusal."""
    hasty = f"{url}&connect_timeout=2"  # in which the others connect
    held = [used(hasty) for _ in range(SIZE)]
    begin_s = monotonic()
    with pytest.raises(psycopg2.OperationalError, match="too many clients") as caught:
        used(hasty)
    assert 1.9 < monotonic() - begin_s < 4
    assert len(held) == SIZE
    assert caught.value.pgcode == "53300"
    assert isinstance(caught.value.__cause__, PoolTimeout)


def test_a_pool_that_connects_under_its_lock_is_no_deadlock(url: str) -> None:
    """psycopg2.pool, with more connections than there are: putconn() needs the lock too."""
    own = ThreadedConnectionPool(1, 4 * SIZE, url)

    def use() -> int:
        conn = own.getconn()
        found = ask(conn, "select count(pg_sleep(0.02))")
        conn.commit()
        own.putconn(conn)
        return int(found)

    for _ in range(3):
        assert at_once(*[use] * (4 * SIZE)) == [1] * (4 * SIZE)
    assert stats(url)["size"] == SIZE
    own.closeall()


def test_nothing_but_a_use_waits_for_a_connection(url: str) -> None:
    """Without one there is no transaction; autocommit is kept for the one that comes."""
    held = [used(url) for _ in range(SIZE)]
    conn = psycopg2.connect(url)
    assert (conn.closed, conn.status, conn.autocommit) == (0, STATUS_READY, False)
    assert conn.info.transaction_status == TRANSACTION_STATUS_IDLE
    conn.commit()
    conn.rollback()
    conn.autocommit = True
    assert conn.autocommit
    assert conn._backend is None
    held.pop().close()
    ask(conn, "select 1")
    assert conn.autocommit
    assert conn.info.transaction_status == TRANSACTION_STATUS_IDLE
    assert len(held) == SIZE - 1


def test_an_error_of_the_server_is_libpqs(url: str) -> None:
    """As psycopg2 words it, and the pool is not harmed."""
    with pytest.raises(psycopg2.OperationalError, match='database "none" does not exist'):
        psycopg2.connect(url.replace("/greenline?", "/none?"))
    with pytest.raises(psycopg2.OperationalError, match=r"nowhere\.invalid"):
        psycopg2.connect("host=nowhere.invalid connect_timeout=2")


def test_idle_ones_of_another_pool_keep_nobody_waiting(url: str) -> None:
    """Twelve are held on three: each finds what it has set, time after time."""
    held = []
    for number in range(4 * SIZE):
        conn = psycopg2.connect(url)
        conn.autocommit = number % 2 == 0
        ask(conn, f"set application_name = 'held {number}'; select 1")
        conn.commit()
        held.append(conn)
    for _ in range(3):
        found = at_once(
            *[lambda conn=conn: _name_of(conn) for conn in held]  # type: ignore[misc]
        )
        assert found == [(f"held {number}", number % 2 == 0) for number in range(4 * SIZE)]
    assert stats(url)["size"] == SIZE
    assert [conn.closed for conn in held] == [0] * len(held)


def _name_of(conn: Any) -> tuple[str, bool]:
    name = ask(conn, "show application_name")
    conn.commit()
    return name, conn.autocommit


def test_its_connections_are_the_budgets_own(url: str) -> None:
    """For every process that reads the limits; under another name for those that know the slots."""
    held = [psycopg2.connect(url) for _ in range(SIZE)]
    pool = transparent._pools[url]
    with closing(connect(url, 5.0)) as conn:
        conn.autocommit = True
        assert read_facts(conn).others_of_role == 0
        for each in held:
            ask(each, "set application_name = 'of the application'; select 1")
            each.commit()
        assert read_facts(conn).others_of_role == SIZE
        table = pool._pool._slots._slot_table
        assert table is not None
        assert read_facts(conn, table.pids()).others_of_role == 0


def test_taking_over_can_be_turned_off(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be seen in a session then stays where it is."""
    monkeypatch.setenv("GREENLINE_POOL_TAKE_OVER", "0")
    hasty = f"{url}&connect_timeout=2"  # in which the others connect
    held = [psycopg2.connect(hasty) for _ in range(SIZE)]
    with pytest.raises(psycopg2.OperationalError, match="too many clients"):
        used(hasty)
    assert all(conn._backend is not None for conn in held)


def test_a_request_keeps_its_connection_where_none_is_taken_over(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses one that an earlier request has got, and there is room for no further request."""
    monkeypatch.setenv("GREENLINE_POOL_TAKE_OVER", "0")
    nesting, go_on = note_nesting(url), Event()

    def keep() -> Any:
        conn = used(url)
        conn.commit()
        return conn

    def hold() -> None:
        with closing(used(url)):
            go_on.wait(LIMIT_S)

    conn = request(keep).get(timeout=LIMIT_S)
    pid = conn.get_backend_pid()
    holding = [request(hold) for _ in range(SIZE - 1)]
    wait_until(lambda: nesting._taken == SIZE - 1, "the others to be held")
    assert request(lambda: ask(conn, "select pg_backend_pid()")).get(timeout=LIMIT_S / 3) == pid
    go_on.set()
    gevent.joinall(holding, timeout=LIMIT_S, raise_error=True)


def test_another_pool_gets_the_slots_of_idle_ones(
    watch: Watch, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the server allows are held, by code that uses none of them."""
    monkeypatch.delenv("POSTGRES_POOL_SIZE")
    limited_url = limited(watch, 40)
    held: list[Any] = []
    while not held or stats(limited_url)["size"] < stats(limited_url)["max"]:
        held.append(psycopg2.connect(limited_url))
        ask(held[-1], "select 1")  # in a transaction: not to be taken over yet
    assert len(held) > SIZE
    for conn in held:
        conn.rollback()
    with (
        closing(postgres_open(limited_url)) as other,
        other.connection(autocommit=True) as conn,
    ):
        assert ask(conn, "select 1") == 1
    del conn
    assert [ask(each, "select 1") for each in held] == [1] * len(held)


def test_psycopgs_state_moves_along(url: str) -> None:
    """Encoding, isolation and typecasters are the handle's, on whatever connection."""
    conn = psycopg2.connect(url)
    conn.set_client_encoding("LATIN1")
    conn.isolation_level = "serializable"
    psycopg2.extensions.register_type(
        psycopg2.extensions.new_type((23,), "TWICE", lambda value, _: value * 2), conn
    )
    pid = conn.get_backend_pid()
    others = [psycopg2.connect(url) for _ in range(SIZE)]
    for other in others:
        assert ask(other, "select 7") == 7
    assert conn._backend is None
    others.pop().close()
    assert conn.get_backend_pid() != 0
    assert (conn.encoding, conn.isolation_level, conn.closed) == ("LATIN1", 3, 0)
    assert ask(conn, "select 7") == "77"
    assert ask(conn, "show transaction_isolation") == "serializable"
    assert pid


@pytest.fixture
def roles(postgres: Postgres) -> Iterator[None]:
    """Each new session begins with the role reader, since ALTER ROLE precedes ALTER DATABASE."""
    with closing(foreign.connect(postgres.superuser_url)) as conn, conn.cursor() as cursor:
        cursor.execute("create role reader; create role writer; grant reader, writer to greenline")
        cursor.execute("alter database greenline set role to writer")
        cursor.execute("alter role greenline set role to reader")
        conn.commit()
        yield
        cursor.execute("alter database greenline reset role; alter role greenline reset role")
        cursor.execute("drop role reader, writer")
        conn.commit()


@pytest.mark.usefixtures("roles")
def test_the_role_of_a_new_session_does_not_bind_it(url: str) -> None:
    """Another one does."""
    conns = [psycopg2.connect(url) for _ in range(SIZE + 1)]
    for conn in conns:
        assert ask(conn, "select current_user") == "reader"
        conn.commit()
    assert conns[0]._backend is None
    assert ask(conns[0], "set role to writer; select current_user") == "writer"
    conns[0].commit()
    for conn in conns[1:]:
        ask(conn, "select 1")
        conn.commit()
    assert ask(conns[0], "select current_user") == "writer"


def test_another_session_user_binds_a_session(postgres: Postgres, url: str) -> None:
    """A superuser's SET SESSION AUTHORIZATION."""
    conns = [psycopg2.connect(postgres.superuser_url) for _ in range(SIZE + 1)]
    assert ask(conns[0], "set session authorization greenline; select user") == "greenline"
    conns[0].commit()
    for conn in conns[1:]:
        ask(conn, "select 1")
        conn.commit()
    assert conns[0]._backend is not None
    assert conns[1]._backend is None


def test_what_a_pgbouncer_has_prepared_does_not_bind_a_session(url: str) -> None:
    """It has done so for other clients, whose turns the sessions of its server have had."""
    conn = psycopg2.connect(url)
    with conn.cursor() as cursor:
        cursor.execute('prepare "PGBOUNCER_7" as select 1')
    conn.commit()
    others = [psycopg2.connect(url) for _ in range(SIZE)]
    for other in others:
        assert ask(other, "select 7") == 7
    assert conn._backend is None


@pytest.mark.parametrize(
    "leave", [each for each in KEPT if each is not leave_a_setting], ids=lambda each: each.__name__
)
def test_a_session_that_cannot_move_is_not_taken(url: str, leave: Callable[[Any], None]) -> None:
    """Whatever waits; it is given back when it is closed."""
    conn = psycopg2.connect(url)
    leave(conn)
    conn.commit()
    others = [psycopg2.connect(url) for _ in range(SIZE - 1)]
    for other in others:
        ask(other, "select 1")
    waiting = gevent.spawn(used, url)
    assert not waiting.ready()
    with pytest.raises(gevent.Timeout):
        waiting.get(timeout=0.5)
    assert ask(conn, LEFT)
    conn.close()
    assert ask(waiting.get(timeout=LIMIT_S), "select 1") == 1


def test_one_in_use_is_not_taken(url: str) -> None:
    """A transaction, a statement in progress, and a cursor that the code still has."""
    in_transaction, busy, with_cursor = (psycopg2.connect(url) for _ in range(SIZE))
    ask(in_transaction, "select 1")
    busy.autocommit = with_cursor.autocommit = True
    cursor = with_cursor.cursor()
    cursor.execute("select generate_series(1, 3)")
    asking = gevent.spawn(ask, busy, "select pg_sleep(600)")
    with pytest.raises(gevent.Timeout):
        gevent.spawn(used, url).get(timeout=0.5)
    assert cursor.fetchall() == [(1,), (2,), (3,)]
    assert not asking.ready()
    busy.cancel()
    with pytest.raises(psycopg2.extensions.QueryCanceledError):
        asking.get(timeout=LIMIT_S)
    del cursor
    wait_until(lambda: stats(url)["waiting"] == 0, "the idle one to be taken over")


def test_the_end_of_a_request_leaves_the_transaction_of_another_one(
    url: str, empty_database: str
) -> None:
    """Several share a connection of the module; the last of them rolls back what is open."""
    conn = psycopg2.connect(empty_database)
    ask(conn, "create table shared (number int); select 1")
    conn.commit()
    conn.close()
    conn = request(lambda: psycopg2.connect(empty_database)).get(timeout=LIMIT_S)
    go_on = Event()

    def insert() -> None:
        ask(conn, "insert into shared values (1) returning 1")
        go_on.wait()
        conn.commit()
        ask(conn, "insert into shared values (2) returning 1")

    inserting = request(insert)
    wait_until(lambda: conn.status == STATUS_BEGIN, "the transaction")
    for _ in range(3):
        assert request(lambda: ask(conn, "select count(*) from shared")).get(timeout=LIMIT_S) == 1
    go_on.set()
    inserting.get(timeout=LIMIT_S)
    assert conn.status != STATUS_BEGIN
    assert ask(conn, "select count(*) from shared") == 1
    conn.close()


def test_each_request_ends_what_it_leaves_in_the_connection_of_an_earlier_one(url: str) -> None:
    """Not the first one alone; and none counts as a user of the connection afterwards."""
    conn = request(lambda: psycopg2.connect(url)).get(timeout=LIMIT_S)
    for _ in range(3):
        request(lambda: ask(conn, "select 1")).get(timeout=LIMIT_S)
        assert conn._backend.info.transaction_status == TRANSACTION_STATUS_IDLE
        assert conn._requests == set()
        assert conn._backend.holder is None
    assert not transparent._used_by


def test_a_begin_of_the_application_ends_with_its_request(url: str) -> None:
    """With autocommit psycopg2 knows of no transaction."""

    def begin() -> Any:
        conn = psycopg2.connect(url)
        conn.autocommit = True
        ask(conn, "begin; select 1")
        return conn

    conn = request(begin).get(timeout=LIMIT_S)
    assert conn.info.transaction_status == TRANSACTION_STATUS_IDLE


def test_the_end_of_a_request_ends_its_hold(url: str) -> None:
    """On connections that it has not used, has dropped, or has passed on to another request."""
    passed_on: list[Any] = []
    go_on = Event()

    def begin() -> None:
        passed_on.extend(psycopg2.connect(url) for _ in range(SIZE - 1))

    def drop() -> None:
        for _ in range(SIZE):
            ask(psycopg2.connect(url), "select 1")

    def use() -> None:
        ask(passed_on[0], "select 1")
        go_on.wait()

    request(drop).get(timeout=LIMIT_S)
    nesting = transparent._pools[url]._nesting
    assert nesting._max_held == 1
    # One that is being reset is in use: begin() would leave its handles without a connection.
    wait_until(lambda: stats(url)["active"] == 0, "the dropped ones to be back")
    request(begin).get(timeout=LIMIT_S)
    using = request(use)
    wait_until(lambda: passed_on[0].status == STATUS_BEGIN, "its use")
    assert passed_on[1]._backend.holder is None
    assert nesting._taken == 1
    go_on.set()
    using.get(timeout=LIMIT_S)
    assert nesting._taken == 0


def test_an_unused_connection_keeps_none_waiting(url: str) -> None:
    """Its request may wait for a lock, which code that waits for a connection holds."""
    go_on = Event()

    def connect_and_wait() -> Any:
        connected.append(psycopg2.connect(url))
        go_on.wait()
        return ask(connected.pop(), "select 1")

    connected: list[Any] = []
    waiting = [request(connect_and_wait) for _ in range(2 * SIZE)]
    wait_until(lambda: len(connected) == 2 * SIZE, "them to wait")
    with closing(request(lambda: used(url)).get(timeout=LIMIT_S / 2)) as conn:
        assert not conn.closed
    go_on.set()
    assert [each.get(timeout=LIMIT_S) for each in waiting] == [1] * (2 * SIZE)


@pytest.mark.parametrize("autocommit", [False, True], ids=["in transactions", "autocommit"])
def test_the_first_deadlock_is_found_and_others_prevented(url: str, autocommit: bool) -> None:
    """
    After many single checkouts, requests hold all connections, and each needs one more.

    It is none where the connections are idle, between two transactions.
    """
    for _ in range(20 * SIZE):
        request(lambda: used(url).close()).get(timeout=LIMIT_S)
    kept = [request(lambda: used(url)).get(timeout=LIMIT_S) for _ in range(SIZE)]
    go_on = Event()

    def use_two(conn: Any) -> str | None:
        try:
            conn.autocommit = autocommit
            ask(conn, "select 1")
            go_on.wait()
            with closing(psycopg2.connect(url)) as other:
                ask(other, "select 2")
        except psycopg2.OperationalError as error:
            return f"{error.pgcode}: {error}"
        finally:
            conn.rollback()
        return None

    using = [request(partial(use_two, conn)) for conn in kept]
    wait_until(lambda: transparent._pools[url]._nesting._taken >= SIZE, "them to hold all")
    go_on.set()
    found = [each.get(timeout=LIMIT_S / 2) for each in using]
    failures = [each for each in found if each is not None]
    assert len(failures) == (0 if autocommit else 1)
    for failure in failures:
        assert failure.startswith("53300: ")
        assert "each connection is held by a request that waits for another one" in failure
    using = [request(partial(use_two, conn)) for conn in kept]
    assert [each.get(timeout=LIMIT_S / 2) for each in using] == [None] * SIZE


def test_a_connection_that_is_being_taken_over_is_waited_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others are held by requests that wait for another one: it is no deadlock."""
    read, is_read, go_on = session.read, Event(), Event()

    def read_slowly(conn: Any) -> Any:
        is_read.set()
        go_on.wait(LIMIT_S)
        return read(conn)

    def use_two() -> int:
        with closing(psycopg2.connect(url)) as conn:
            ask(conn, "select 1")
            began.append(conn)
            is_read.wait(LIMIT_S)
            with closing(psycopg2.connect(url)) as other:
                return int(ask(other, "select 2"))

    for _ in range(20 * SIZE):  # afterwards none is reserved
        request(lambda: used(url).close()).get(timeout=LIMIT_S)
    began: list[Any] = []
    using = [request(use_two) for _ in range(SIZE - 1)]
    wait_until(lambda: len(began) == SIZE - 1, "all to have one")
    began.clear()
    kept = request(lambda: used(url)).get(timeout=LIMIT_S)
    monkeypatch.setattr(session, "read", read_slowly)
    nesting = transparent._pools[url]._nesting
    nesting.note_needed(SIZE)
    waiting = gevent.spawn(lambda: used(url).close())
    nested = nesting._nested_line
    wait_until(lambda: len(nested) == SIZE - 1, "all to wait for another one")
    go_on.set()
    assert [each.get(timeout=LIMIT_S) for each in using] == [2] * (SIZE - 1)
    waiting.get(timeout=LIMIT_S)
    assert not kept.closed


def listen(url: str) -> Any:
    """Connect as a greenlet that serves no request, and keep the connection."""
    conn = psycopg2.connect(url)
    conn.autocommit = True
    ask(conn, "listen news; select 1")
    return conn


def keep_a_setting(url: str) -> Any:
    """Leave a connection with a session that cannot be moved in a pool of the application."""

    def use() -> Any:
        conn = psycopg2.connect(url)
        ask(conn, "set \"app.user\" = 'Ada'; select 1")
        conn.commit()
        return conn

    return request(use).get(timeout=LIMIT_S)


@pytest.mark.parametrize(
    ("held", "needed", "code", "keep"),
    [
        ([1, 1], 1, "53300", None),
        ([2], 1, "53300", None),
        ([1], 3, None, None),
        ([1], 1, "53300", listen),
        ([1], 1, "53300", keep_a_setting),
    ],
    ids=["one each", "two at a time", "one is left", "one listens", "one cannot be moved"],
)
def test_a_deadlock_through_a_row_is_found(
    url: str, held: list[int], needed: int, code: str | None, keep: Callable[[str], Any] | None
) -> None:
    """
    A request has locked a row and needs another connection; others have the rest and wait for it.

    It gets what is left, or an error; then the others go on.
    """
    for _ in range(20 * SIZE):  # afterwards none is reserved
        request(lambda: used(url).close()).get(timeout=LIMIT_S)
    nesting = transparent._pools[url]._nesting
    has_locked, go_on = Event(), Event()
    with closing(psycopg2.connect(url)) as conn:
        ask(conn, "create table if not exists locked as select 1 as number; select 1")
        conn.commit()
    kept = keep(url) if keep else None

    def lock(conn: Any) -> None:
        ask(conn, "select number from locked for update")

    def lock_and_need_another() -> str | None:
        with closing(psycopg2.connect(url)) as conn:
            lock(conn)
            has_locked.set()
            go_on.wait(LIMIT_S)
            try:
                with closing(psycopg2.connect(url)) as other:
                    ask(other, "select 1")
            except psycopg2.OperationalError as error:
                return error.pgcode
        return None

    def wait_for_it(count: int) -> None:
        with ExitStack() as stack:
            conns = [stack.enter_context(closing(psycopg2.connect(url))) for _ in range(count)]
            for conn in conns[1:]:
                ask(conn, "select 1")
            lock(conns[0])

    first = request(lock_and_need_another)
    assert has_locked.wait(LIMIT_S)
    others = [request(partial(wait_for_it, count)) for count in held]
    wait_until(lambda: nesting._taken == 1 + sum(held), "them to hold their connections")
    nesting.note_needed(needed)
    with closing(connect(url, 5.0)) as watching:
        watching.autocommit = True
        waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        wait_until(lambda: ask(watching, waits) == len(held), "them to wait for the row")
    go_on.set()
    assert first.get(timeout=LIMIT_S / 3) == code
    assert [each.get(timeout=LIMIT_S / 3) for each in others] == [None] * len(held)
    del kept


def test_a_deadlock_is_found_beside_a_request_that_waits_for_another_process(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That request is admitted and has no connection: no other one can wait for its end."""
    monkeypatch.setenv("WEB_CONCURRENCY", str(WORKERS))
    go_on = Event()
    with closing(psycopg2.connect(url)) as conn:
        ask(conn, "create table if not exists locked as select 1 as number; select 1")
        conn.commit()
    pool = transparent._pools[url]
    plan, nesting, acquiring = pool._share.plan, pool._nesting, pool._share.acquiring
    assert plan is not None
    assert (plan.worker, plan.max_pool_size) == (SIZE - 1, SIZE)
    for _ in range(20 * SIZE):  # afterwards none is reserved
        request(lambda: used(url).close()).get(timeout=LIMIT_S)

    def lock(conn: Any) -> None:
        ask(conn, "select number from locked for update")

    def lock_and_need_another() -> str | None:
        with closing(psycopg2.connect(url)) as conn:
            lock(conn)
            go_on.wait(LIMIT_S)
            with pytest.raises(psycopg2.OperationalError) as caught:
                used(url)
        return caught.value.pgcode

    def wait_for_it() -> None:
        with closing(psycopg2.connect(url)) as conn:
            lock(conn)

    first = request(lock_and_need_another)
    wait_until(lambda: nesting._taken == 1, "it to lock the row")
    blocked = request(wait_for_it)
    wait_until(lambda: nesting._taken == SIZE - 1 and not acquiring, "another one to need the row")
    with closing(SlotTable(slot_table_path(server_of(url)))) as other_process:
        other_process.resize(pool._share.slot_table.capacity, pool._share.slot_table.reserved)
        while other_process.take():
            pass
        admitted = request(lambda: used(url).close())
        wait_until(lambda: len(acquiring) == 1, "the last one to wait")
        go_on.set()
        assert first.get(timeout=LIMIT_S / 3) == "53300"
        gevent.joinall([blocked, admitted], timeout=LIMIT_S / 3, raise_error=True)
    assert blocked.ready()
    assert admitted.ready()


def note_nesting(url: str) -> Any:
    """Have a request use two connections; return the admission, which reserves none at first."""

    def use_two() -> None:
        with closing(used(url)), closing(used(url)):
            pass

    for _ in range(20 * SIZE):
        request(lambda: used(url).close()).get(timeout=LIMIT_S)
    request(use_two).get(timeout=LIMIT_S)
    return transparent._pools[url]._nesting


def test_a_connection_of_a_greenlet_without_a_request_is_waited_for(url: str) -> None:
    """Two requests hold the others, and each needs one more: none is refused for a short job."""
    nesting, go_on = note_nesting(url), Event()

    def nested() -> int:
        with closing(used(url)):
            go_on.wait(LIMIT_S)
            with closing(psycopg2.connect(url)) as other:
                return int(ask(other, "select 1"))

    def job() -> None:
        with closing(psycopg2.connect(url)) as conn:
            ask(conn, "select 1 from pg_sleep(1)")

    requests = [request(nested) for _ in range(SIZE - 1)]
    wait_until(lambda: nesting._taken == SIZE - 1, "them to hold one each")
    working = gevent.spawn(job)
    wait_until(lambda: nesting.others == 1, "the job to begin")
    go_on.set()
    assert [each.get(timeout=LIMIT_S / 3) for each in requests] == [1] * (SIZE - 1)
    working.get(timeout=LIMIT_S)


def test_a_connection_counts_for_the_request_that_uses_it(url: str) -> None:
    """One that goes on has put it back into a pool of the application, and ends before it."""
    nesting, returned, ends, go_on = note_nesting(url), Event(), Event(), Event()
    pool: list[Any] = []

    def give_back_and_go_on() -> None:
        conn = used(url)
        conn.rollback()
        pool.append(conn)
        returned.set()
        ends.wait(LIMIT_S)

    def nested(conn: Any) -> int:
        ask(conn, "select 1")
        go_on.wait(LIMIT_S)
        with closing(psycopg2.connect(url)) as other:
            found = int(ask(other, "select 1"))
        conn.rollback()
        return found

    first = request(give_back_and_go_on)
    assert returned.wait(LIMIT_S)
    requests = [request(lambda: nested(pool[0]))]
    wait_until(lambda: pool[0].status == STATUS_BEGIN, "it to be used")
    ends.set()
    first.get(timeout=LIMIT_S)
    assert nesting._taken == 1
    requests += [request(lambda: nested(psycopg2.connect(url))) for _ in range(SIZE - 1)]
    gevent.sleep(0)
    go_on.set()
    assert [each.get(timeout=LIMIT_S / 3) for each in requests] == [1] * SIZE


def test_others_that_wait_elsewhere_are_no_deadlock(url: str) -> None:
    """One of them does not wait for the row: the request gets its connection when it ends."""
    for _ in range(20 * SIZE):
        request(lambda: used(url).close()).get(timeout=LIMIT_S)

    def sleep() -> None:
        with closing(psycopg2.connect(url)) as conn:
            ask(conn, "select 1 from pg_sleep(1)")

    def use_two() -> int | None:
        with closing(used(url)) as conn, closing(psycopg2.connect(url)) as other:
            return int(ask(conn, "select 1") + ask(other, "select 1"))

    sleeping = [request(sleep) for _ in range(SIZE - 1)]
    nesting = transparent._pools[url]._nesting
    wait_until(lambda: nesting._taken == SIZE - 1, "them to sleep")
    assert request(use_two).get(timeout=LIMIT_S / 3) == 2
    gevent.joinall(sleeping, timeout=LIMIT_S, raise_error=True)


@pytest.mark.parametrize("checkouts", [0, 100], ids=["at first", "later"])
def test_a_request_that_waits_elsewhere_keeps_no_idle_connection(url: str, checkouts: int) -> None:
    """Between two transactions it has one that it does not use, and other requests may need it."""
    go_on = Event()

    def call_another_service(conn: Any) -> list[Any]:
        conn.autocommit = True
        found = [ask(conn, "select 1")]
        busy.append(conn)
        go_on.wait()
        return [*found, ask(conn, "select 2")]

    busy: list[Any] = []
    for _ in range(checkouts):
        request(lambda: psycopg2.connect(url).close()).get(timeout=LIMIT_S)
        request(lambda: used(url).close()).get(timeout=LIMIT_S)
    calling = [
        request(lambda: call_another_service(psycopg2.connect(url))) for _ in range(2 * SIZE)
    ]
    wait_until(lambda: len(busy) == 2 * SIZE, "all of them to wait")
    request(lambda: used(url).close()).get(timeout=LIMIT_S / 2)
    go_on.set()
    assert [each.get(timeout=LIMIT_S) for each in calling] == [[1, 2]] * (2 * SIZE)
    assert transparent._pools[url]._nesting._taken == 0


def test_a_connection_that_was_taken_over_meanwhile_is_not_used(url: str) -> None:
    """A request waits for the connection of a greenlet that then loses it to another one."""
    shared = psycopg2.connect(url)
    shared.autocommit = True
    go_on = Event()

    def hold() -> None:
        with closing(used(url)):
            go_on.wait()

    holding = [request(hold) for _ in range(SIZE - 2)]
    nesting = transparent._pools[url]._nesting
    wait_until(lambda: nesting._taken == SIZE - 2, "them to hold all but the reserved ones")
    asking = gevent.spawn(ask, shared, "select pg_sleep(0.3)")
    wait_until(lambda: shared._owner is not None, "its statement")
    giving_up = request(lambda: shared.cursor().close())
    using = gevent.spawn(lambda: ask(shared, "select 1"))
    found = request(lambda: (shared.get_backend_pid(), shared.info.backend_pid))
    wait_until(lambda: len(shared._waiters) > 0, "the requests to wait")
    other = gevent.spawn(used, url)
    asking.get(timeout=LIMIT_S)
    go_on.set()
    gevent.joinall([giving_up, using, *holding], timeout=LIMIT_S, raise_error=True)
    first, second = found.get(timeout=LIMIT_S)
    other.get(timeout=LIMIT_S)
    assert second in (first, shared.info.backend_pid)


def test_the_hold_of_a_session_that_cannot_move_ends_with_its_request(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request ends while its session is read."""
    reading, read_on = Event(), Event()
    read = session.read

    def read_slowly(conn: Any) -> Any:
        reading.set()
        read_on.wait()
        return read(conn)

    monkeypatch.setattr(session, "read", read_slowly)
    go_on = Event()

    def lock() -> Any:
        conn = psycopg2.connect(url)
        conn.autocommit = True
        ask(conn, "select pg_advisory_lock(1)")
        go_on.wait()
        return conn

    locking = request(lock)
    wait_until(lambda: url in transparent._pools and stats(url)["active"] == 1, "its lock")
    others = [used(url) for _ in range(SIZE - 1)]
    waiting = gevent.spawn(used, url)
    assert reading.wait(LIMIT_S)
    go_on.set()
    conn = locking.get(timeout=LIMIT_S)
    read_on.set()
    wait_until(lambda: conn._backend is not None, "it to be left where it was")
    nesting = transparent._pools[url]._nesting
    assert (nesting._taken, nesting._held) == (0, {})
    assert request(lambda: ask(conn, "select 1")).get(timeout=LIMIT_S) == 1
    assert nesting._max_held == 1
    del others
    waiting.get(timeout=LIMIT_S)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_the_connection_that_was_idle_for_the_longest_is_taken_over(
    url: str, order: tuple[int, ...]
) -> None:
    """A pool that gives out what came back last finds a connection under it."""

    def use(conn: Any) -> None:
        ask(conn, "select 1")
        conn.commit()

    kept = [psycopg2.connect(url) for _ in range(SIZE)]
    for number in order:
        request(partial(use, kept[number])).get(timeout=LIMIT_S)
    request(lambda: use(psycopg2.connect(url))).get(timeout=LIMIT_S)
    assert [kept[number]._backend is None for number in order] == [True, False, False]


def test_one_connection_is_taken_over_for_one_greenlet(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two greenlets look for idle ones, and requests end, while the server is slow to answer."""
    read = session.read

    def read_slowly(conn: Any) -> Any:
        gevent.sleep(3 * transparent.WATCH_S)
        return read(conn)

    def use(conn: Any) -> Any:
        ask(conn, "select 1")
        conn.commit()
        return conn

    monkeypatch.setattr(session, "read", read_slowly)
    kept = [request(lambda: use(psycopg2.connect(url))).get(timeout=LIMIT_S) for _ in range(SIZE)]
    for number in range(SIZE - 1):
        waiting = request(lambda: use(psycopg2.connect(url)))
        wait_until(lambda number=number: kept[number]._backend is None, "a takeover")
        request(partial(use, kept[SIZE - 1])).get(timeout=LIMIT_S)
        kept.append(waiting.get(timeout=LIMIT_S))
        parked = [conn._backend is None for conn in kept]
        assert parked == [each <= number for each in range(len(kept))]


def test_a_server_that_does_not_answer_keeps_no_others_waiting(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection under the first idle handle is closed, and another one taken over."""
    read = session.read

    def read_of_a_deaf_one(conn: Any) -> Any:
        if conn is deaf:
            with connection.cursor(conn) as cursor:
                cursor.execute("select pg_sleep(60)")
        return read(conn)

    monkeypatch.setattr(session, "read", read_of_a_deaf_one)
    monkeypatch.setattr(transparent, "MOVE_S", 0.5)
    kept = [psycopg2.connect(url) for _ in range(SIZE)]
    for conn in kept:
        ask(conn, "select 1")
        conn.commit()
    deaf = kept[0]._backend
    assert ask(request(lambda: used(url)).get(timeout=LIMIT_S / 2), "select 1") == 1
    assert kept[0].closed == 2
    wait_until(lambda: stats(url)["leaving"] == 0, "its statement to be cancelled")


def test_what_admits_nobody_is_not_taken_over(url: str) -> None:
    """A request waits for those that hold connections; one is left for what they may need."""

    def hold() -> None:
        conn = psycopg2.connect(url)
        ask(conn, "select 1")
        go_on.wait()
        conn.close()

    for _ in range(20 * SIZE):
        request(lambda: used(url).close()).get(timeout=LIMIT_S)
    nesting = transparent._pools[url]._nesting
    nesting.note_needed(2)
    kept = request(lambda: used(url)).get(timeout=LIMIT_S)
    go_on = Event()
    holding = [request(hold) for _ in range(SIZE - 1)]
    wait_until(lambda: nesting._taken == SIZE - 1, "them to hold all but one")
    waiting = request(hold)
    wait_until(nesting.waiting, "a request to wait")
    with pytest.raises(gevent.Timeout):
        waiting.get(timeout=3 * transparent.WATCH_S)
    assert kept._backend is not None
    assert nesting.waiting()
    go_on.set()
    gevent.joinall([*holding, waiting], timeout=LIMIT_S, raise_error=True)


def test_requests_with_a_kept_connection_may_need_another_one(url: str) -> None:
    """Each holds what an earlier request has got; a connection is left for the second one."""
    kept = [request(lambda: psycopg2.connect(url)).get(timeout=LIMIT_S) for _ in range(2 * SIZE)]

    def use_two(conn: Any) -> list[Any]:
        with closing(psycopg2.connect(url)) as other:
            found = [ask(conn, "select 1, pg_sleep(0.05)"), ask(other, "select 2")]
        conn.rollback()
        return found

    for _ in range(3):
        using = [request(partial(use_two, conn)) for conn in kept]
        assert [each.get(timeout=LIMIT_S / 2) for each in using] == [[1, 2]] * (2 * SIZE)


def test_a_temporary_table_of_another_session_binds_none(url: str) -> None:
    """It was dropped when that one gave its connection back; its schema stays."""
    conn = psycopg2.connect(url)
    leave_a_table(conn)
    conn.commit()
    pid = conn.get_backend_pid()
    conn.close()
    conn = used(url)
    assert conn.get_backend_pid() == pid
    conn.rollback()
    assert [ask(used(url), "select 1") for _ in range(2 * SIZE)] == [1] * (2 * SIZE)
    others = [psycopg2.connect(url) for _ in range(SIZE - 1)]
    for other in others:
        ask(other, "select 1")
    assert gevent.spawn(used, url).get(timeout=LIMIT_S / 2).closed == 0


def test_each_function_is_called_at_the_end_of_a_request(url: str) -> None:
    """Another one fails before."""
    conn = psycopg2.connect(url)

    def begin() -> None:
        ask(conn, "select 1")
        request_end.functions.append(fail)

    def fail() -> None:
        request_end.functions.remove(fail)
        raise OtherError

    request(begin).get(timeout=LIMIT_S)
    assert fail not in request_end.functions
    assert conn.info.transaction_status == TRANSACTION_STATUS_IDLE


def test_an_interrupted_close_gives_back(url: str) -> None:
    """Its rollback is cut off: the connection is closed, and its slot is free."""
    for _ in range(2 * SIZE):
        conn = psycopg2.connect(url)
        ask(conn, "select 1")
        closing_ = gevent.spawn(conn.close)
        gevent.sleep(0)
        closing_.kill()
        del conn
    wait_until(lambda: stats(url)["active"] == 0, "all to be back")


def test_the_end_of_a_pool_closes_idle_connections(url: str, watch: Watch) -> None:
    """Of handles that an application keeps: a stopping worker leaves no slot to be waited for."""
    named = f"{url}&application_name=kept"
    held = [psycopg2.connect(named) for _ in range(SIZE)]
    for conn in held:
        ask(conn, "select 1")
        conn.commit()
    transparent._pools[named].close()
    kept = "select count(*) from pg_stat_activity where application_name = 'kept'"
    assert watch.ask(kept) == 0
    # At the exit of the process, for instance: those that are kept, and new ones.
    with closing(psycopg2.connect(named)) as conn:
        assert [ask(each, "select 1") for each in (conn, held[0])] == [1, 1]


def test_lost_connections_keep_nobody_waiting(url: str, postgres: Postgres) -> None:
    """The server has ended those of idle handles, which are closed then."""
    held = [psycopg2.connect(url) for _ in range(SIZE)]
    for conn in held:
        ask(conn, "select 1")
        conn.commit()
    with closing(foreign.connect(postgres.superuser_url)) as admin:
        for conn in held:
            ask(admin, "select pg_terminate_backend(%s)", conn.get_backend_pid())
    others = [gevent.spawn(psycopg2.connect, url) for _ in range(SIZE)]
    assert [ask(other.get(timeout=LIMIT_S / 2), "select 1") for other in others] == [1] * SIZE
    assert [conn.closed for conn in held] == [2] * SIZE
    with pytest.raises(psycopg2.InterfaceError):
        held[0].cursor()


def test_a_server_that_is_away_keeps_no_slot(url: str) -> None:
    """A worker that ends afterwards leaves no slot taken that only the server could free."""
    away = f"host=127.0.0.1 port={free_port()} user=nobody dbname=none"
    with pytest.raises(psycopg2.OperationalError, match="refused"):
        psycopg2.connect(away).cursor()
    assert not transparent._pools[away]._share.slot_table._slots


def test_a_server_that_is_away_is_no_lack_of_connections(url: str) -> None:
    """Also where killed workers have left all slots taken, which only the server could free."""
    away = f"host=127.0.0.1 port={free_port()} user=nobody dbname=none connect_timeout=4"
    left = SlotTable(slot_table_path(server_of(away)))
    left.resize(10)
    for for_control in (True, False):
        while left.take(for_control=for_control):
            pass
    left.close()
    with pytest.raises(psycopg2.OperationalError, match="refused"):
        psycopg2.connect(away).cursor()


def test_garbage_that_holds_connections_is_collected(url: str) -> None:
    """Each request leaks a connection with its cursor in a reference cycle, time after time."""

    def leak() -> None:
        cursor = psycopg2.connect(url).cursor()
        cursor.execute("select 1")
        cycle: list[Any] = [cursor]
        cycle.append(cycle)

    gc.disable()
    try:
        with gevent.Timeout(6):  # a collection a second would take 20
            at_once(*[leak] * (20 * SIZE))
    finally:
        gc.enable()


def test_a_closed_cursor_keeps_no_connection(url: str) -> None:
    """It lives on with an exception, as Django's cursors do; the handle is idle all the same."""
    held, failures = [], []
    for number in range(SIZE):
        conn = psycopg2.connect(url)
        with pytest.raises(psycopg2.Error) as failed:
            with conn.cursor("named" if number == 0 else None) as cursor:
                cursor.execute("select 1 / 0")
                cursor.fetchone()
        conn.rollback()
        held.append(conn)
        failures.append((failed.value, cursor))
        del cursor
    assert ask(gevent.spawn(used, url).get(timeout=LIMIT_S / 2), "select 1") == 1
    assert [cursor.closed for _, cursor in failures] == [True] * SIZE
    assert ask(held[0], "select 1") == 1


class Lasting(psycopg2.extensions.cursor):
    """A cursor of an application that does not pass its end on, and has no hash."""

    def __del__(self) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def name(self) -> str:  # type: ignore[override]
        """Of the application, and not the one of a cursor on the server's side."""
        raise OtherError


@pytest.mark.parametrize("ends", ["close", "clear"])
def test_the_end_of_a_cursor_is_seen_whatever_its_class_does(url: str, ends: str) -> None:
    """It is closed or gone: the connection under it can be taken over."""
    held = [psycopg2.connect(url) for _ in range(SIZE)]
    cursors = [conn.cursor(cursor_factory=Lasting) for conn in held]
    for conn, each in zip(held, cursors, strict=True):
        each.execute("select 1")
        conn.rollback()
    waiting = gevent.spawn(used, url)
    waiting.join(0.2)
    assert not waiting.ready()
    if ends == "close":
        cursors[0].close()
    else:
        del each
        cursors.clear()
    waiting.get(timeout=LIMIT_S / 2).close()


@pytest.mark.parametrize(
    ("name", "factory"), [(None, None), ("named", None), (None, Lasting)],
    ids=["plain", "named", "of the application"],
)  # fmt: skip
def test_after_the_end_no_row_is_fetched(url: str, name: str | None, factory: Any) -> None:
    """As psycopg2's: the cursors of a closed connection are closed."""
    conn = psycopg2.connect(url)
    cursor = conn.cursor(name, cursor_factory=factory)
    cursor.execute("select 1 union select 2")
    assert cursor.fetchone() == (1,)
    conn.close()
    for fetch in (cursor.fetchone, cursor.fetchmany, cursor.fetchall):
        with pytest.raises(psycopg2.InterfaceError, match="cursor already closed"):
            fetch()


def test_the_deadline_of_the_wait_is_too_many_connections(url: str) -> None:
    """With the SQLSTATE that code for a full server looks for."""
    held = [used(url) for _ in range(SIZE)]
    with (
        deadline.limit(0.2),
        pytest.raises(psycopg2.OperationalError, match="too many clients") as failed,
    ):
        used(url)
    assert len(held) == SIZE
    assert failed.value.pgcode == "53300"
    assert isinstance(failed.value.__cause__, DeadlineExceeded)


def test_what_was_kept_shows_nothing_of_the_next_one(url: str) -> None:
    """The object with what libpq knows."""
    first = psycopg2.connect(url)
    info = first.info
    assert (info.dbname, info.parameter_status("server_encoding")) == (
        psycopg2.extensions.parse_dsn(url)["dbname"], "UTF8",
    )  # fmt: skip
    first.close()
    second = psycopg2.connect(url)
    ask(second, "select 1")
    assert (info.status, info.transaction_status, info.backend_pid) == (1, 4, 0)
    assert second.info.transaction_status == 2


def test_a_statement_is_executed_once(url: str, empty_database: str) -> None:
    """What fails because something is in use is tried again for databases alone."""
    conn = psycopg2.connect(empty_database)
    conn.autocommit = True
    ask(conn, "create table executed (number int); select 1")
    ask(conn, """
        create procedure execute() language plpgsql as $$ begin
          insert into executed values (1); commit;
          raise exception 'in use' using errcode = '55006'; end $$; select 1
    """)  # fmt: skip
    with pytest.raises(psycopg2.errors.ObjectInUse):
        ask(conn, "call execute()")
    assert ask(conn, "select count(*) from executed") == 1
    conn.close()


@pytest.mark.parametrize(
    ("statement", "is_unlisted"),
    [
        ("set app.user = 'x'", True),
        ('set "app.user" = 1', True),
        ('set session "app".user to 1', True),
        ("set /* of the request */ app.user = 1", True),
        ("set -- of the request\n app.user = 1", True),
        ("select set_config ('app.user', %s, false)", True),
        (f"/* {'x' * 4000} */ -- y\nset app.user = 1", True),
        ('set"app".user = 1', True),
        ("set größe.x = 1", True),
        ("set a$b.x = 1", True),
        ("set session app.user = 1", True),
        ("select \"set_config\"('app.user', 'x', false)", True),
        ("select set_config('app'||'.user', 'x', false)", True),
        ("select set_config('app.user', 'it''s', true)", False),
        ("select set_config('app.user', 'it''s', false)", True),
        ("-- it's the request's\nset app.user = 1", True),
        ("/* it's */ set app.user = 1", True),
        ('select 1 as "it\'s"; set app.user = 1', True),
        ("do $$ begin update t set a = 'x'; set app.user = 1; end $$", True),
        ("select * from t where a = '' for update; set app.user = 1", True),
        ("select set_config('app.user', 'x', true)", False),
        ("select set_config('app.user', 42::text, true)", False),
        ("set local app.user = 1", False),
        # A value of a client: the search takes no longer than for other text.
        (f"insert into t values ('set{'/**/' * 300}!')", False),
        (f"insert into t values ('{'set' * 300} {'set ( ' * 80} {'set -- ' * 80}')", False),
        ("select set_config('timezone', 'utc', false)", False),
        ("set timezone = 'utc'", False),
        ("update app.user set name = 'app.user'", False),
        ("update t as x set address.city = 'x'", False),
        ("insert into t values (1) on conflict (a) do update set address.city = 'x'", False),
        ("insert into notes values ('please set www.example.com''s name')", False),
        ("insert into notes values (E'set www.example.com \\\\ ''x''')", False),
        ("insert into notes values ('set/**/www.example.com')", False),
        (f"insert into notes values ('set www.example.com {'x' * 4000}')", False),
    ],
)
def test_settings_that_the_server_does_not_list(statement: str, is_unlisted: bool) -> None:
    """They have a dot in their names."""
    assert sets_unlisted(statement.encode()) is is_unlisted


@pytest.mark.parametrize(
    "reset",
    [lambda conn: ask(conn, "DISCARD ALL"), lambda conn: conn.reset()],
    ids=["discard", "reset()"],
)
def test_a_session_that_was_reset_is_not_bound(url: str, reset: Callable[[Any], Any]) -> None:
    """As pony does after each session of its own."""
    conn = psycopg2.connect(url)
    conn.autocommit = True
    ask(conn, "set kept.behind = 'x'; select 1")
    reset(conn)
    others = [used(url) for _ in range(SIZE)]
    assert conn._backend is None
    assert others


def test_a_reset_that_is_rolled_back_is_none(url: str) -> None:
    """The session has its setting again."""
    conn = psycopg2.connect(url)
    ask(conn, "set kept.behind = 'x'; select 1")
    conn.commit()
    ask(conn, "reset all")
    conn.rollback()
    others = [used(url) for _ in range(SIZE - 1)]
    waiting = gevent.spawn(used, url)
    with pytest.raises(gevent.Timeout):
        waiting.get(timeout=0.5)
    assert ask(conn, "select current_setting('kept.behind')") == "x"
    others.clear()
    waiting.get(timeout=LIMIT_S)


def test_a_connection_that_waits_for_its_turn_has_its_characteristics_at_once(url: str) -> None:
    """Nothing of them asks the server: the code may hold a lock that others need."""
    others = [used(url) for _ in range(SIZE)]
    first, second = psycopg2.connect(url), psycopg2.connect(url)
    with gevent.Timeout(LIMIT_S / 3):
        first.set_client_encoding("latin-1")
        first.set_isolation_level(3)
        assert (first.isolation_level, first.autocommit) == (3, False)
        second.isolation_level = "Repeatable Read"
        assert second.isolation_level == 2
        second.set_isolation_level(0)
        assert (second.isolation_level, second.autocommit) == (None, True)
    others.clear()
    assert ask(first, "show client_encoding") == "LATIN1"
    assert ask(first, "show transaction_isolation") == "serializable"
    ask(second, "select 1")
    assert second.info.transaction_status == TRANSACTION_STATUS_IDLE
    with pytest.raises(ValueError, match="isolation"):
        second.isolation_level = "none"
    with pytest.raises(ValueError, match="between 0 and 4"):
        second.set_isolation_level(9)


def test_a_parked_handle_keeps_its_pool(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unused pool is closed; one whose handle will need a connection again is not."""
    monkeypatch.setattr(transparent, "UNUSED_S", 0.0)
    held = psycopg2.connect(url)
    ask(held, "select 1")
    held.commit()
    others: list[Any] = []
    while len(others) < SIZE:
        others.append(psycopg2.connect(url))
        ask(others[-1], "select 1")  # in a transaction: it is not taken over
    assert held._backend is None
    others.clear()
    psycopg2.connect(f"{url}&application_name=other").close()
    gevent.sleep(0)
    assert ask(held, "select 1") == 1


def test_a_child_leaves_its_parents_connections_alone(url: str, empty_database: str) -> None:
    """A script forks: a close in the child sends nothing over the parent's socket."""
    conn = psycopg2.connect(empty_database)
    ask(conn, "create table kept (number int); select 1")
    conn.commit()
    ask(conn, "insert into kept values (1) returning 1")
    child = os.fork()
    if not child:
        conn.close()
        gevent.sleep(0.1)
        os._exit(0)
    os.waitpid(child, 0)
    conn.commit()
    assert ask(conn, "select count(*) from kept") == 1
    conn.close()


def test_a_child_closes_a_connection_in_use(url: str) -> None:
    """The greenlet that executes a statement on it is not in the child."""
    conn = psycopg2.connect(url)
    asking = gevent.spawn(ask, conn, "select 1, pg_sleep(1)")
    wait_until(lambda: conn._owner is not None, "the statement")
    child = os.fork()
    if not child:
        with gevent.Timeout(LIMIT_S / 3, False):
            conn.close()
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert asking.get(timeout=LIMIT_S) == 1
    conn.close()


def test_requests_that_use_kept_connections_again_and_again_keep_no_request_waiting(
    url: str,
) -> None:
    """The connections of an application's pool are more than there are, and never idle for long."""
    kept: dict[int, Any] = {}
    answered = [0] * (2 * SIZE)
    until_s = monotonic() + LIMIT_S

    def ask_again(number: int) -> None:
        def use() -> None:
            if number not in kept:
                kept[number] = psycopg2.connect(url)
            conn = kept[number]
            ask(conn, "select pg_sleep(0.002)")
            conn.commit()
            answered[number] += 1

        # Until each has been answered often enough, and all go on meanwhile.
        while min(answered) <= 10 and monotonic() < until_s:
            request(use).get(timeout=LIMIT_S)

    gevent.joinall(
        [gevent.spawn(ask_again, number) for number in range(2 * SIZE)], raise_error=True
    )
    assert min(answered) > 10, answered


def test_greenlets_share_one(url: str) -> None:
    """As threads may share a connection of psycopg2."""
    conn = psycopg2.connect(url)
    found = at_once(*[lambda n=n: ask(conn, "select %s", n) for n in range(50)])  # type: ignore[misc]
    assert found == list(range(50))


def test_psycopgs_own_functions_take_it(url: str) -> None:
    """Those that look into a connection's structure."""
    conn = psycopg2.connect(url)
    assert psycopg2.extensions.quote_ident('a"b', conn) == '"a""b"'
    encrypted = psycopg2.extensions.encrypt_password("a", "b", conn, "scram-sha-256")
    assert encrypted.startswith("SCRAM-SHA-256$")
    query = sql.SQL("select {} as {}").format(sql.Literal("\u017e"), sql.Identifier("a b"))
    assert query.as_string(conn) == "select '\u017e' as \"a b\""
    quoted: Any = psycopg2.extensions.QuotedString("a")
    quoted.prepare(conn)
    assert quoted.encoding == "utf_8"
    adapted: Any = psycopg2.extensions.adapt("a")
    adapted.prepare(conn)
    assert adapted.encoding == "utf_8"


def test_nothing_reaches_the_structure_below(url: str) -> None:
    """A handle is never connected: each of psycopg2's own methods on it ends with an error."""
    conn = psycopg2.connect(url)
    for name in sorted(set(dir(connection)) - set(dir(object))):
        attribute = getattr(connection, name)
        for arguments in ((), ("a",), ("a", "b"), (None, None, None)):
            with suppress(psycopg2.Error, TypeError, AttributeError):
                found = attribute(conn, *arguments)
                assert name in ("__exit__", "close", "isexecuting", "get_transaction_status"), found
    for kind in (psycopg2.extensions.cursor, psycopg2.extras.RealDictCursor):
        direct = kind(conn)
        with pytest.raises(psycopg2.InterfaceError, match="already closed"):
            direct.execute("select 1")
        assert direct.cast(25, "a") == "a"
    info = psycopg2.extensions.ConnectionInfo(conn)
    assert info.status == 1
    with pytest.raises(psycopg2.OperationalError):
        psycopg2.extensions.lobject(conn)
    assert ask(conn, "select 1") == 1


def test_a_transaction_of_a_with_block_does_not_outlive_a_close_in_it(url: str) -> None:
    """psycopg2 counts the block in the connection, which the next one has."""
    conn = psycopg2.connect(url)
    with pytest.raises(psycopg2.InterfaceError), conn:
        conn.close()
    again = psycopg2.connect(url)
    with again:
        assert ask(again, "select 1") == 1
    assert again.info.transaction_status == 0


# A program of its own, which ends itself: psycopg2's mutex would stop all greenlets for good.
PROGRAM = """
import faulthandler, os, sys
from greenline.patch import patch_all
patch_all()
import gevent, psycopg2
from greenline.hub import deadline
from greenline.postgres.transparent import pool_psycopg2
pool_psycopg2()
faulthandler.dump_traceback_later(20, exit=True)
conn = psycopg2.connect(sys.argv[1])
def sleep(cursor=None):
    cursor = cursor or conn.cursor()
    cursor.execute("select pg_sleep(1)")
    return cursor.fetchone()
def first_in_turn():
    other = gevent.spawn(sleep)
    with conn:  # nothing is sent
        pass
    return other.get()
def waits_longer_than_it_may():
    other = gevent.spawn(sleep)
    gevent.sleep(0.1)
    try:
        with deadline.limit(0.2), conn:
            conn.cursor().execute("select 1")
    except deadline.DeadlineExceeded:
        with conn:  # it was left
            return other.get()
def a_cursor_by_a_function():
    make = lambda conn, name=None: psycopg2.extensions.cursor(conn)
    cursor = psycopg2.connect(sys.argv[1]).cursor(cursor_factory=make)
    others = [gevent.spawn(psycopg2.connect, sys.argv[1]) for _ in range(3)]
    return sleep(cursor)
class Fixed(type(psycopg2.extensions.cursor)):
    def __call__(self, *args, **kwargs): return type.__call__(self, *args, **kwargs)
    def __new__(meta, name, bases, body):
        if len(bases) > 1: raise TypeError("it has one base")
        return type.__new__(meta, name, bases, body)
class OneBase(psycopg2.extensions.cursor, metaclass=Fixed): pass
def a_cursor_whose_class_cannot_be_changed():
    mine = psycopg2.connect(sys.argv[1])
    cursor = mine.cursor(cursor_factory=OneBase)
    other = gevent.spawn(sleep, cursor)
    gevent.sleep(0.1)
    mine.close()
    return other.get()
print(globals()[sys.argv[2]]())
"""


@pytest.mark.parametrize(
    "what",
    [
        "first_in_turn",
        "waits_longer_than_it_may",
        "a_cursor_by_a_function",
        "a_cursor_whose_class_cannot_be_changed",
    ],
)
def test_no_end_of_a_block_or_a_connection_stops_all_greenlets(url: str, what: str) -> None:
    """While another greenlet's statement is in progress on the connection."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, what], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("('',)\n", 0), done.stderr


def test_a_cursor_that_a_function_makes_is_one_of_the_pool(url: str) -> None:
    """psycopg2's own class, which takes no turns, is replaced; what the function sets is kept."""

    def make(conn: Any, name: str | None = None) -> Any:
        found = psycopg2.extensions.cursor(conn, name)
        found.arraysize, found.itersize = 7, 9
        return found

    conn = psycopg2.connect(url)
    for name in (None, "named"):
        found = conn.cursor(name, cursor_factory=make)
        assert (found.name, found.arraysize, found.itersize) == (name, 7, 9)
        assert found.connection is conn
        found.execute("select generate_series(1, 10)")
        assert len(found.fetchmany()) == 7


def test_a_transaction_ends_with_its_request_after_a_use_by_none(url: str) -> None:
    """A connection that was used at import; one that a background job has begun is left alone."""
    conn = psycopg2.connect(url)
    ask(conn, "select 1")
    conn.commit()

    def leave_open() -> None:
        ask(conn, "select 1")

    request(leave_open).get(timeout=LIMIT_S)
    assert conn.info.transaction_status == TRANSACTION_STATUS_IDLE
    ask(conn, "select 1")  # of this greenlet, which serves no request
    request(leave_open).get(timeout=LIMIT_S)
    assert conn.info.transaction_status != TRANSACTION_STATUS_IDLE


def test_rows_are_copied(url: str) -> None:
    """By a cursor of the application's class too; the cursor has their number."""
    with (
        closing(psycopg2.connect(url)) as conn,
        conn.cursor(cursor_factory=psycopg2.extras.DictCursor) as cursor,
    ):
        cursor.execute("create temp table copied (number int, body text)")
        cursor.copy_from(io.StringIO("1\ta\n2\tb\n"), "copied")
        assert cursor.rowcount == 2
        sink = io.StringIO()
        cursor.copy_to(sink, "copied", columns=["body"])
        assert (cursor.rowcount, sink.getvalue()) == (2, "a\nb\n")
        cursor.copy_expert("copy copied to stdout (format csv)", sink)
        assert sink.getvalue().endswith("1,a\n2,b\n")


def test_an_interrupted_copy_leaves_no_connection_in_the_pool(url: str) -> None:
    """All of its connections were in the middle of one: none of them is lent again."""
    held = [psycopg2.connect(url) for _ in range(SIZE)]
    before = {conn.get_backend_pid() for conn in held}

    def copy(conn: Any) -> None:
        with deadline.limit(0.3), conn.cursor() as cursor:
            cursor.copy_expert(
                "copy (select generate_series(1, 1000000000)) to stdout", io.StringIO()
            )

    for running in [gevent.spawn(copy, conn) for conn in held]:
        with pytest.raises(DeadlineExceeded):
            running.get(timeout=LIMIT_S)
    for conn in held:
        with pytest.raises(psycopg2.InterfaceError, match="closed"):
            conn.cursor().execute("select 1")
        conn.close()
    again = [psycopg2.connect(url) for _ in range(SIZE)]
    assert not before & {conn.get_backend_pid() for conn in again}
    assert [ask(conn, "select 1") for conn in again] == [1] * SIZE


def test_asynchronous_ones_pass_by(url: str) -> None:
    """No pool can lend them, nor those for replication; they are counted."""
    before = foreign._stats()["unpooled"]
    conn = psycopg2.connect(url, async_=True)
    assert not isinstance(conn, Handle)
    assert foreign._stats()["unpooled"] == before + 1
    psycopg2.extras.wait_select(conn)
    conn.close()
    with suppress(psycopg2.Error):  # the server may allow none
        psycopg2.connect(
            url, connection_factory=psycopg2.extras.LogicalReplicationConnection
        ).close()
    assert foreign._stats()["unpooled"] == before + 2


def test_a_service_is_pooled(
    url: str, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection string that names a service of a file."""
    file = tmp_path / "services"
    given = "".join(f"{key}={value}\n" for key, value in psycopg2.extensions.parse_dsn(url).items())
    file.write_text(f"[green]\n{given}")
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    conn = psycopg2.connect(service="green")
    assert isinstance(conn, Handle)
    assert ask(conn, "select 1") == 1
    conn.close()


def test_types_are_registered_for_one_connection(url: str, empty_database: str) -> None:
    """As register_hstore() does, here with a type of that name: the server may have no hstore."""
    conn = psycopg2.connect(empty_database)
    ask(conn, "create type hstore as (of text); select 1")
    psycopg2.extras.register_hstore(conn)
    oid = ask(conn, "select 'hstore'::regtype::oid::int")
    assert conn.cursor().cast(oid, '"a"=>"1"') == {"a": "1"}
    conn.rollback()


def test_those_of_threads_of_the_application_are_pooled_too(url: str) -> None:
    """Its threads are greenlets."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(psycopg2.connect(url)))
    thread.start()
    thread.join()
    assert isinstance(found[0], Handle)


def test_one_that_a_native_thread_uses_is_not_taken_over(url: str) -> None:
    """It could not get another connection; one that was taken over before says so."""
    apply = gevent.get_hub().threadpool.apply
    conn = psycopg2.connect(url)
    assert apply(ask, (conn, "select 1")) == 1
    conn.rollback()
    others: list[Any] = [psycopg2.connect(url) for _ in range(SIZE)]
    (taken,) = [each for each in others if each._backend is None]
    assert conn._backend is not None
    with pytest.raises(psycopg2.OperationalError, match="native thread"):
        apply(ask, (taken, "select 1"))
    others.clear()
    assert apply(ask, (conn, "select 1")) == ask(taken, "select 1") == 1


def test_the_pool_of_an_earlier_password_is_closed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once nobody has used it for a while, and the next string comes."""
    monkeypatch.setattr(transparent, "UNUSED_S", 0.0)
    rotated = [f"{url}&password={number}" for number in range(3)]
    kept = psycopg2.connect(rotated[0])
    psycopg2.connect(rotated[1]).close()
    pool = transparent._pools[rotated[1]]
    assert ask(psycopg2.connect(rotated[2]), "select 1") == 1
    assert rotated[1] not in transparent._pools
    wait_until(lambda: pool._pool.stats()["size"] == 0, "its connections to be closed")
    assert ask(kept, "select 1") == 1


def test_a_database_can_be_dropped(url: str, postgres: Postgres) -> None:
    """psycopg2 has no connection to it any more after the closes; the pool has."""
    admin = psycopg2.connect(postgres.superuser_url)
    admin.autocommit = True
    with admin.cursor() as cursor:
        cursor.execute("create database to_be_dropped")
    psycopg2.connect(url.replace("/greenline?", "/to_be_dropped?")).close()
    with admin.cursor() as cursor:
        cursor.execute("drop database to_be_dropped")
    assert ask(admin, "select count(*) from pg_database where datname = 'to_be_dropped'") == 0
