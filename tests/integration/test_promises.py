"""The Postgres pool's promises under faults: limits, deadlines, deaf servers, restarts."""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import gevent
import psycopg2
import pytest
from gevent.event import Event

from embedded.postgres import Postgres as Server
from embedded.postgres import temporary
from greenline import deadline
from greenline.errors import (
    DeadlineExceeded,
    NestedConnection,
    OutcomeUnknown,
    SerializationFailure,
    StoreDown,
    StoreError,
    Unavailable,
)
from greenline.postgres import resolve as resolving
from greenline.postgres.cancel import Canceller
from greenline.postgres.client import Postgres
from greenline.postgres.connect import connect
from greenline.postgres.pool import MAX_CONNECTING, ConnectionPool
from greenline.postgres.resolve import resolve
from tests.proxy import Proxy
from tests.support import wait_until

Make = Callable[..., ConnectionPool]
_numbers = itertools.count()


class Watch:
    """A superuser's look at one application's backends."""

    def __init__(self, server: Server, name: str) -> None:
        self._conn = psycopg2.connect(server.superuser_url)
        self._conn.autocommit = True
        self.name = name

    def count(self, and_also: str = "true") -> int:
        return int(
            self.ask(
                "select count(*) from pg_stat_activity where application_name = %s and " + and_also,
                self.name,
            )
        )

    def ask(self, statement: str, *values: object) -> Any:
        with self._conn.cursor() as cursor:
            cursor.execute(statement, values)
            row = cursor.fetchone()
            return row[0] if row else None

    def close(self) -> None:
        self._conn.close()


@pytest.fixture
def watch(postgres: Server) -> Iterator[Watch]:
    """A look at the backends of an application of this test's own."""
    looking = Watch(postgres, f"promise-{next(_numbers)}")
    yield looking
    looking.close()


@pytest.fixture
def proxy(postgres: Server) -> Iterator[Proxy]:
    """A proxy that can misbehave, before the session's Postgres."""
    with Proxy(postgres.socket) as between:
        yield between


@pytest.fixture
def make(watch: Watch, postgres: Server) -> Iterator[Make]:
    """Make pools whose backends *watch* sees; close them at the end."""
    made: list[tuple[ConnectionPool, Canceller]] = []

    def make(max_size: int = 1, url: str = postgres.url, **options: Any) -> ConnectionPool:
        mark = "&" if "?" in url else "?"
        opener = partial(connect, f"{url}{mark}application_name={watch.name}", 5.0)
        canceller = Canceller(partial(connect, postgres.url, 5.0))
        pool = ConnectionPool(opener, max_size=max_size, canceller=canceller, **options)
        made.append((pool, canceller))
        return pool

    yield make
    for pool, canceller in made:
        pool.close(2.0)
        canceller.close()


def through(proxy: Proxy) -> str:
    return f"postgresql://greenline@127.0.0.1:{proxy.port}/greenline?sslmode=disable"


def run(pool: ConnectionPool, statement: str) -> Any:
    with pool.connection(autocommit=True, reset=False) as conn, conn.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0] if cursor.description else None


# 1: never more than max_size


def test_the_server_never_sees_more_while_connections_are_retired(make: Make, watch: Watch) -> None:
    """Lifetimes end, statements are abandoned, and every sample is in bounds."""
    pool = make(5, max_lifetime_s=0.05)

    def work(number: int) -> None:
        for turn in range(6):
            try:
                with gevent.Timeout(0.02 if (number + turn) % 5 == 0 else None, False):
                    run(pool, "select pg_sleep(0.01 + random() * 0.05)")
            except StoreError:
                pass

    workers = [gevent.spawn(work, number) for number in range(50)]
    samples = []
    while not all(worker.ready() for worker in workers):
        samples.append(watch.count())
        gevent.sleep(0)
    gevent.joinall(workers, raise_error=True)
    assert max(samples) <= 5
    assert len(samples) > 50
    wait_until(lambda: pool.stats()["size"] == pool.stats()["idle"], "the last to leave")


def test_a_server_that_allows_just_the_limit_refuses_nobody(make: Make, watch: Watch) -> None:
    """Closing and connecting again at the server's own limit is never too early."""
    role = f"just_{next(_numbers)}"
    watch.ask(f"create role {role} login connection limit 3; select 1")
    pool = make(3, url=watch_url(watch, role), max_lifetime_s=0.001)

    def work() -> None:
        for _ in range(25):
            run(pool, "create temp table t on commit drop as select generate_series(1, 200)")

    gevent.joinall([gevent.spawn(work) for _ in range(12)], timeout=60, raise_error=True)
    pool.close(5.0)
    watch.ask(f"drop role {role}; select 1")


def watch_url(watch: Watch, role: str) -> str:
    host = watch.ask("show unix_socket_directories")
    return f"postgresql://{role}@/greenline?host={host}"


# 2: one connection a greenlet


def test_a_second_connection_in_one_greenlet_is_refused(make: Make) -> None:
    """Two greenlets that each hold one and want another would wait for each other for ever."""
    pool = make(2)
    with pool.connection(), pytest.raises(NestedConnection), pool.connection():
        pass
    run(pool, "select 1")


# 4: a connection comes back clean


@pytest.mark.parametrize(
    ("leave", "look"),
    [
        ("set search_path to nowhere", "show search_path"),
        ("set role pg_monitor", "select current_user"),
        (
            "select pg_advisory_lock(42)",
            "select count(*) from pg_locks where locktype = 'advisory'",
        ),
        ("create temp table mine (x int)", "select to_regclass('mine')"),
        ("listen news", "select count(*) from pg_listening_channels()"),
        ("declare c cursor with hold for select 1", "select count(*) from pg_cursors"),
    ],
    ids=["setting", "role", "lock", "temp table", "listen", "cursor"],
)
def test_what_one_borrower_sets_never_reaches_the_next(
    make: Make, watch: Watch, leave: str, look: str
) -> None:
    """The session is as new, and it is the same one."""
    pool = make(1)
    watch.ask("grant pg_monitor to greenline; select 1")
    before = run(pool, look)
    with pool.connection() as conn, conn.cursor() as cursor:
        first = conn.pid
        cursor.execute(leave)
    assert run(pool, look) == before
    assert run(pool, "select pg_backend_pid()") == first


def test_no_session_stays_in_a_transaction(make: Make, watch: Watch) -> None:
    """Errors, kills and early ends leave nothing idle in transaction behind."""
    pool = make(4)

    def leave_in_mid_work(number: int) -> None:
        with suppress(StoreError), pool.connection() as conn, conn.cursor() as cursor:
            cursor.execute("select 1")
            if number % 3 == 0:
                cursor.execute("select nonsense")
            if number % 3 == 1:
                gevent.sleep(60)

    workers = [gevent.spawn(leave_in_mid_work, number) for number in range(30)]
    gevent.sleep(0.1)
    while not all(worker.ready() for worker in workers):
        gevent.killall([worker for worker in workers if worker.started], block=True)
    wait_until(
        lambda: watch.count("left(coalesce(state, ''), 7) = 'idle in'") == 0, "no open transaction"
    )


def test_the_statement_timeout_survives_the_reset(make: Make, postgres: Server) -> None:
    """A borrower cannot take away what bounds the statements of all others."""
    pool = ConnectionPool(partial(connect, postgres.url, 5.0, 7.0), max_size=1)
    with pool.connection() as conn, conn.cursor() as cursor:
        cursor.execute("set statement_timeout = 0")
    assert run(pool, "show statement_timeout") == "7s"
    pool.close(2.0)


# 5: a statement that outlives the deadline


@pytest.mark.parametrize("how", ["deadline", "kill"])
def test_the_server_stops_working_for_nobody(make: Make, watch: Watch, how: str) -> None:
    """The caller is answered at once, and the abandoned statement is cancelled."""
    pool = make(1)

    def work() -> None:
        with deadline.limit(0.3):
            run(pool, "select pg_sleep(60)")

    worker = gevent.spawn(work)
    wait_until(lambda: watch.count("state = 'active'") == 1, "the statement to run")
    started = monotonic()
    if how == "kill":
        worker.kill(timeout=5)
    worker.join(5)
    assert monotonic() - started < 1.5
    if how == "deadline":
        assert isinstance(worker.exception, DeadlineExceeded)
    wait_until(lambda: watch.count() == 0, "the backend to be gone", limit_s=5)
    wait_until(lambda: pool.stats()["size"] == 0, "its slot to be free", limit_s=5)


def test_where_the_time_went_is_told(make: Make) -> None:
    """The error counts what was spent in the queue, connecting and in Postgres."""
    pool = make(1)
    with pytest.raises(DeadlineExceeded) as caught, deadline.limit(0.3):
        run(pool, "select pg_sleep(60)")
    spent = caught.value.spent_s
    assert set(spent) == {"connecting", "postgres"}
    assert 0.1 < spent["postgres"] <= 0.6


# 6: servers that accept and never answer


@pytest.mark.parametrize("stage", ["connecting", "in a statement"])
def test_a_deaf_server_costs_no_more_than_the_deadline(
    make: Make, proxy: Proxy, stage: str
) -> None:
    """The one who waits is told in time, and a thousand others go on meanwhile."""
    pool = make(1, url=through(proxy))
    if stage == "in a statement":
        run(pool, "select 1")
    proxy.deafen()
    steps = itertools.count()

    def go_on() -> None:
        while True:
            next(steps)
            gevent.sleep(0.01)

    others = [gevent.spawn(go_on) for _ in range(1000)]
    started = monotonic()
    with pytest.raises((DeadlineExceeded, StoreDown)), deadline.limit(0.5):
        run(pool, "select 1")
    assert monotonic() - started < 2
    gevent.killall(others)
    assert next(steps) > 5_000
    proxy.pass_on()


def test_a_name_that_resolves_slowly_blocks_nobody(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq never gets a name to resolve: the hub does, and the deadline bounds it."""
    monkeypatch.setattr(resolving.gevent.socket, "getaddrinfo", lambda *_, **__: gevent.sleep(60))
    pool = make(1, url="postgresql://greenline@slow.example/greenline")
    ticks = []
    ticker = gevent.spawn(lambda: [ticks.append(gevent.sleep(0.01)) for _ in range(1000)])
    started = monotonic()
    with pytest.raises((DeadlineExceeded, StoreDown)), deadline.limit(0.5):
        run(pool, "select 1")
    assert monotonic() - started < 2
    ticker.kill()
    assert len(ticks) > 10


def test_names_become_addresses_and_stay_for_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every address of every name is tried, under its name; one bad name spoils nothing."""

    def answers(host: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
        if host == "bad":
            raise OSError("unknown")
        return [(0, 0, 0, "", (f"10.0.0.{n}", 0)) for n in (1, 2)]

    monkeypatch.setattr(resolving.gevent.socket, "getaddrinfo", answers)
    found = psycopg2.extensions.parse_dsn(resolve("postgresql://good:1,bad:2,[::1]:3/d"))
    assert found["host"] == "good,good,::1"
    assert found["hostaddr"] == "10.0.0.1,10.0.0.2,::1"
    assert found["port"] == "1,1,3"
    with pytest.raises(StoreDown, match="bad does not resolve"):
        resolve("postgresql://bad/d")


@pytest.mark.parametrize(
    "url", ["postgresql:///d", "postgresql://h/d?hostaddr=1.2.3.4", "postgresql:///d?host=/tmp"]
)
def test_what_needs_no_resolving_is_left_alone(url: str) -> None:
    """A socket folder, libpq's default and an address that was given."""
    assert resolve(url) == url


def test_the_second_host_is_tried_when_the_first_refuses(make: Make, proxy: Proxy) -> None:
    """libpq's next address is a new socket under the same number: no watcher is kept meanwhile."""
    with Proxy("/nowhere") as first:
        first.refuse()
        url = f"postgresql://greenline@127.0.0.1:{first.port},127.0.0.1:{proxy.port}/greenline"
        with gevent.Timeout(10):
            assert run(make(1, url=f"{url}?sslmode=disable"), "select 7") == 7


# 7: a restart, and a lost COMMIT


def test_backends_that_all_end_are_an_honest_outage_and_soon_over() -> None:
    """Errors are Unavailable, only while the server is away; then all is as before."""
    with temporary(50) as server:
        url = server.url
        canceller = Canceller(partial(connect, url, 5.0))
        client = Postgres(
            ConnectionPool(partial(connect, url, 5.0), max_size=5, canceller=canceller)
        )
        errors: list[BaseException] = []
        good, stop = itertools.count(), Event()

        def work() -> None:
            while not stop.is_set():
                try:
                    client.fetch("seven", "select 7", {})
                    next(good)
                except Unavailable as error:
                    errors.append(error)
                    gevent.sleep(0.01)

        workers = [gevent.spawn(work) for _ in range(20)]
        wait_until(lambda: next(good) > 200, "some work")
        watching = psycopg2.connect(server.superuser_url)
        with watching.cursor() as cursor:
            cursor.execute(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity "
                "where usename = 'greenline'"
            )
        watching.close()
        before = next(good)
        wait_until(lambda: next(good) > before + 200, "work after it")
        stop.set()
        gevent.joinall(workers, timeout=10, raise_error=True)
        canceller.close()


def test_few_connect_at_a_time(make: Make, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that begins is not asked by the whole pool at once."""
    pool, most, now = make(30), 0, 0
    opening = pool._connect

    def counted() -> Any:
        nonlocal most, now
        now += 1
        most = max(most, now)
        try:
            return opening()
        finally:
            now -= 1

    monkeypatch.setattr(pool, "_connect", counted)
    borrowers = [gevent.spawn(run, pool, "select pg_sleep(0.5)") for _ in range(30)]
    gevent.joinall(borrowers, timeout=20, raise_error=True)
    assert watch.count() == 30
    assert most == MAX_CONNECTING


def test_a_transaction_that_may_be_repeated_outlives_a_conflict(make: Make, watch: Watch) -> None:
    """Twenty that read and then write the same row in serializable transactions all succeed."""
    table = f"counter_{next(_numbers)}"
    watch.ask(f"create table {table} as select 0 as n; grant all on {table} to public; select 1")
    client = Postgres(make(5))
    attempts = []

    def add(conn: Any) -> int:
        attempts.append(1)
        with conn.cursor() as cursor:
            cursor.execute("set transaction isolation level serializable")
            cursor.execute(f"select n from {table}")
            number = int(cursor.fetchone()[0])
            cursor.execute(f"update {table} set n = %s", (number + 1,))
            return number

    workers = [gevent.spawn(client.repeat, add) for _ in range(10)]
    gevent.joinall(workers, timeout=30)
    done = [worker for worker in workers if worker.successful()]
    assert watch.ask(f"select n from {table}") == len(done)
    assert len(attempts) > len(workers)
    assert len(done) > 5
    watch.ask(f"drop table {table}; select 1")


def test_a_conflict_is_not_repeated_when_nobody_said_so(make: Make, watch: Watch) -> None:
    """An ordinary transaction reports it, as something that may be tried again."""
    pool = make(1)
    with pytest.raises(SerializationFailure) as caught, pool.connection() as conn:
        with conn.cursor() as cursor:
            cursor.execute("do $$ begin raise exception using errcode = '40001'; end $$")
    assert caught.value.retryable


# 3: kills at random


def test_kills_at_any_moment_leave_the_counts_right(make: Make, watch: Watch) -> None:
    """Hundreds of greenlets die while waiting, connecting, working, committing or returning."""
    pool, chance = make(3, max_lifetime_s=0.2), random.Random(4)

    def work() -> None:
        with suppress(StoreError), pool.connection() as conn, conn.cursor() as cursor:
            cursor.execute("select pg_sleep(%s)", (chance.random() * 0.004,))
            cursor.execute("create temp table t (x int) on commit drop")

    for _ in range(60):
        workers = [gevent.spawn(work) for _ in range(8)]
        for worker in chance.sample(workers, 5):
            gevent.sleep(chance.random() * 0.003)
            worker.kill(block=False)
        gevent.joinall(workers, timeout=20)
        assert all(worker.ready() for worker in workers)
    wait_until(lambda: pool.stats()["size"] == pool.stats()["idle"], "all to be back or gone")
    assert pool.stats()["waiting"] == 0
    assert run(pool, "select 7") == 7


def test_a_read_on_a_connection_that_died_in_between_is_tried_again(
    make: Make, proxy: Proxy
) -> None:
    """A connection cut after it was lent costs a read nothing."""
    pool = make(1, url=through(proxy))
    client = Postgres(pool)
    assert client.fetch("one", "select 1", {}) == [(1,)]
    cut = pool.connection

    def lend_and_cut(**options: Any) -> Any:
        context = cut(**options)
        pool.connection = cut  # type: ignore[method-assign]
        proxy.cut()
        return context

    pool.connection = lend_and_cut  # type: ignore[method-assign]
    assert client.fetch("one", "select 1", {}) == [(1,)]


@pytest.mark.parametrize("how", ["deadline", "cut"])
def test_a_commit_whose_answer_is_lost_is_of_unknown_outcome_and_never_repeated(
    make: Make, proxy: Proxy, watch: Watch, how: str
) -> None:
    """The row is there exactly once, and the error does not invite to try again."""
    table = f"lost_{next(_numbers)}"
    watch.ask(f"create table {table} (x int); grant all on {table} to public; select 1")
    pool = make(1, url=through(proxy))

    def write() -> None:
        with deadline.limit(2 if how == "deadline" else 20), pool.connection() as conn:
            with conn.cursor() as cursor:
                cursor.execute(f"insert into {table} values (1)")
            proxy.mute()

    writer = gevent.spawn(write)
    wait_until(lambda: watch.ask(f"select count(*) from {table}") == 1, "the row")
    if how == "cut":
        proxy.cut()
    writer.join(10)
    assert isinstance(writer.exception, OutcomeUnknown)
    assert not writer.exception.retryable
    assert watch.ask(f"select count(*) from {table}") == 1
    watch.ask(f"drop table {table}; select 1")


# 8: failover


def test_a_server_that_became_read_only_evicts_every_connection(make: Make, watch: Watch) -> None:
    """After a failover the old primary's connections are not used again."""
    pool = make(3)
    gevent.joinall([gevent.spawn(run, pool, "select pg_sleep(0.1)") for _ in range(3)])
    assert pool.stats()["idle"] == 3
    with pytest.raises(StoreDown), pool.connection() as conn, conn.cursor() as cursor:
        cursor.execute("set transaction read only")
        cursor.execute("create table never (x int)")
    wait_until(lambda: watch.count() == 0, "all of them to be gone")


# 9: lifetime and idleness


def test_old_connections_are_retired_one_at_a_time_and_not_in_mid_work(
    make: Make, watch: Watch
) -> None:
    """One that is lent finishes its work although its life is over."""
    pool = make(2, max_lifetime_s=0.1)
    assert run(pool, "select pg_sleep(0.5), 7") is not None
    wait_until(lambda: watch.count() == 0, "the old connection to be gone")


def test_idle_connections_are_retired_down_to_the_least(make: Make, watch: Watch) -> None:
    """min_size stay, and are made again when they are lost."""
    pool = make(5, min_size=2, max_idle_s=0.2)
    gevent.joinall([gevent.spawn(run, pool, "select pg_sleep(0.1)") for _ in range(5)])
    wait_until(lambda: watch.count() == 2, "three of five to be retired")
    watch.ask(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = %s",
        watch.name,
    )
    pool.check()
    wait_until(lambda: watch.count() == 2 and pool.stats()["idle"] == 2, "two new ones")


# 10: the end


def test_close_waits_for_borrowers_up_to_its_limit(make: Make, watch: Watch) -> None:
    """It says whether nothing is left; afterwards the server sees none of ours."""
    pool, release = make(2), Event()

    def hold() -> None:
        with pool.connection():
            release.wait()

    holder = gevent.spawn(hold)
    wait_until(lambda: watch.count() == 1, "the connection")
    assert pool.close(0.1) is False
    release.set()
    assert pool.close(5.0) is True
    holder.join(5)
    assert watch.count() == 0


def test_waiting_while_one_leaves_ends_when_it_is_gone(make: Make) -> None:
    """A slot that is being freed goes to the one who waits for it."""
    pool = make(1, timeout_s=5)
    with pytest.raises(DeadlineExceeded), deadline.limit(0.1):
        run(pool, "select pg_sleep(60)")
    assert run(pool, "select 7") == 7


def test_copy_is_refused_with_advice(make: Make) -> None:
    """psycopg2 cannot copy in green mode: the error says what to use."""
    with pytest.raises(StoreError, match="execute_values"):
        with make(1).connection() as conn, conn.cursor() as cursor:
            cursor.copy_expert("copy books to stdout", None)
