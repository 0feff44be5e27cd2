"""The Postgres pool's promises: limits, kills, clean connections, deadlines, deaf servers."""

import random
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import gevent
import psycopg2
import pytest

from embedded.postgres import Postgres as Server
from greenline.errors import (
    DeadlineExceeded,
    NestedConnection,
    PoolTimeout,
    StoreDown,
    StoreError,
)
from greenline.hub import deadline
from greenline.postgres import resolve as resolving
from greenline.postgres.connect import connect
from greenline.postgres.connection import Connection
from greenline.postgres.pool import ConnectionPool
from greenline.postgres.resolve import resolve
from tests.helpers.pools import Make, Watch, a_thousand_go_on, limited, run, through
from tests.helpers.proxy import Proxy
from tests.helpers.support import wait_until

# Longer than a busy machine may take to connect and to begin a statement.
DEADLINE_S = 2.0
SLACK_S = 1.2

# 1: never more than max_size


def test_the_server_never_sees_more_while_connections_are_retired(make: Make, watch: Watch) -> None:
    """Lifetimes end, statements are abandoned, and the server refuses no connection."""
    pool = make(5, url=limited(watch, 5), max_lifetime_s=0.05)

    def work(number: int) -> None:
        for turn in range(6):
            try:
                with gevent.Timeout(0.02 if (number + turn) % 5 == 0 else None, False):
                    run(pool, "select pg_sleep(0.01 + random() * 0.05)")
            except StoreError:
                pass

    workers = [gevent.spawn(work, number) for number in range(50)]
    gevent.joinall(workers, timeout=60, raise_error=True)
    wait_until(lambda: pool.stats()["size"] == pool.stats()["idle"], "the last to leave")


def test_a_server_that_allows_just_the_limit_refuses_no_connection(
    make: Make, watch: Watch
) -> None:
    """Closing and connecting again at the server's own limit is never too early."""
    pool = make(3, url=limited(watch, 3), max_lifetime_s=0.001)

    def work() -> None:
        for _ in range(25):
            run(pool, "create temp table t on commit drop as select generate_series(1, 200)")

    gevent.joinall([gevent.spawn(work) for _ in range(12)], timeout=60, raise_error=True)


# 2: one connection a greenlet


def test_a_second_connection_in_one_greenlet_is_refused(make: Make) -> None:
    """Two greenlets that each hold one and want another would wait for each other for ever."""
    pool = make(2)
    with pool.connection(), pytest.raises(NestedConnection), pool.connection():
        pass
    run(pool, "select 1")


def test_an_overload_that_lasts_does_not_serve_everybody_too_late(make: Make) -> None:
    """In turn, but only who has time left to use it: at twice the capacity it stays in use."""
    pool, done = make(2), []

    def work() -> None:
        with suppress(DeadlineExceeded, PoolTimeout), deadline.limit(1.5):
            run(pool, "select pg_sleep(0.2)")
            done.append(monotonic())

    started, workers = monotonic(), []
    while monotonic() - started < 6:
        workers.append(gevent.spawn(work))
        gevent.sleep(0.05)
    gevent.joinall(workers, timeout=10)
    late = [when for when in done if when - started > 4]
    assert len(late) >= 10  # of 20 that there is room for


# 3: kills at random


def test_kills_at_any_moment_leave_the_counts_right(make: Make, watch: Watch) -> None:
    """Hundreds of greenlets die while waiting, connecting, working, committing or returning."""
    chance = random.Random(4)
    pool = make(3, url=limited(watch, 3), max_lifetime_s=0.2)

    def work() -> None:
        with suppress(StoreError), pool.connection() as conn, conn.cursor() as cursor:
            cursor.execute("select pg_sleep(%s)", (chance.random() * 0.004,))
            cursor.execute("create temp table t (x int) on commit drop")

    for _ in range(60):
        workers = [gevent.spawn(work) for _ in range(8)]
        for worker in chance.sample(workers, 5):
            gevent.sleep(chance.random() * 0.003)
            worker.kill(block=False)
        gevent.joinall(workers, timeout=60)
        assert [worker.exception for worker in workers if not worker.successful()] == []
    wait_until(lambda: pool.stats()["size"] == pool.stats()["idle"], "all to be back or gone")
    assert pool.stats()["waiting"] == 0
    assert run(pool, "select 7") == 7


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
    wait_until(lambda: watch.count("state = 'idle in transaction'") > 0, "one in a transaction")
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
def test_the_server_stops_working_when_the_request_ends(make: Make, watch: Watch, how: str) -> None:
    """The caller is answered at once, and the abandoned statement is cancelled."""
    pool = make(1)

    def work() -> None:
        with deadline.limit(DEADLINE_S):
            run(pool, "select pg_sleep(60)")

    worker = gevent.spawn(work)
    wait_until(lambda: watch.count("state = 'active'") == 1, "the statement to run")
    started = monotonic()
    if how == "kill":
        worker.kill(timeout=5)
    worker.join(5)
    assert monotonic() - started < (0.0 if how == "kill" else DEADLINE_S) + SLACK_S
    if how == "deadline":
        assert isinstance(worker.exception, DeadlineExceeded)
    wait_until(lambda: watch.count() == 0, "the backend to be gone", limit_s=5)
    wait_until(lambda: pool.stats()["size"] == 0, "its slot to be free", limit_s=5)


def test_a_cancelling_connection_that_died_is_replaced(make: Make, watch: Watch) -> None:
    """After a restart the first abandoned statement is stopped as soon as the hundredth."""
    pool = make(1)
    for _ in range(2):
        with pytest.raises(DeadlineExceeded), deadline.limit(0.2):
            run(pool, "select pg_sleep(60)")
        started = monotonic()
        wait_until(lambda: watch.count() == 0, "the backend to be gone")
        assert monotonic() - started < 2
        watch.ask(
            "select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity "
            "where query like 'select pg_cancel_backend%%'"
        )


def test_where_the_time_went_is_reported(make: Make) -> None:
    """The error counts what was spent in the queue, connecting and in Postgres."""
    pool = make(1)
    with pytest.raises(DeadlineExceeded) as caught, deadline.limit(DEADLINE_S):
        run(pool, "select pg_sleep(60)")
    spent = caught.value.spent_s
    assert set(spent) == {"connecting", "postgres"}
    assert 0.1 < spent["postgres"] < DEADLINE_S + SLACK_S


# 6: servers that accept and never answer


@pytest.mark.parametrize("stage", ["connecting", "in a statement"])
def test_a_deaf_server_costs_no_more_than_the_deadline(
    make: Make, proxy: Proxy, stage: str
) -> None:
    """The waiting greenlet gets an error in time, and a thousand others go on meanwhile."""
    pool = make(1, url=through(proxy))
    if stage == "in a statement":
        run(pool, "select 1")
    proxy.deafen()
    with a_thousand_go_on():
        started = monotonic()
        with pytest.raises((DeadlineExceeded, StoreDown)), deadline.limit(0.5):
            run(pool, "select 1")
        assert monotonic() - started < 2
    proxy.pass_on()


def test_a_connect_that_was_given_up_keeps_its_slot_until_the_server_lets_go(proxy: Proxy) -> None:
    """A waiter gets an error in time; the next does not connect beyond the limit."""
    limit_s = 0.3

    def opener(**options: Any) -> Connection:
        return connect(through(proxy), limit_s, **options)

    pool = ConnectionPool(opener, max_size=1, timeout_s=1.5)
    proxy.deafen()
    started = monotonic()
    with pytest.raises(StoreDown):
        run(pool, "select 1")
    assert monotonic() - started < 1.3
    with pytest.raises(PoolTimeout):
        run(pool, "select 1")
    assert proxy.accepted == 1
    limit_s = 5.0  # this connect is to succeed
    proxy.pass_on()
    assert run(pool, "select 7") == 7
    assert pool.close(5.0)


def test_a_name_that_resolves_slowly_blocks_no_other_greenlet(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq never gets a name to resolve: the hub does, and the deadline bounds it."""
    monkeypatch.setattr(resolving.gevent.socket, "getaddrinfo", lambda *_, **__: gevent.sleep(60))
    pool = make(1, url="postgresql://greenline@slow.example/greenline")
    ticks = []
    ticker = gevent.spawn(lambda: [ticks.append(gevent.sleep(0.01)) for _ in range(1000)])
    started = monotonic()
    with pytest.raises((DeadlineExceeded, StoreDown)), deadline.limit(DEADLINE_S):
        run(pool, "select 1")
    assert monotonic() - started < DEADLINE_S + SLACK_S
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
