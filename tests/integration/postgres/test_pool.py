"""greenline.postgres.pool on a real server: counts, order, and what comes back."""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from types import SimpleNamespace
from typing import Any

import gevent
import psycopg2
import pytest
from gevent.event import Event
from psycopg2.extensions import (
    TRANSACTION_STATUS_ACTIVE,
    TRANSACTION_STATUS_IDLE,
    TRANSACTION_STATUS_UNKNOWN,
)

from embedded.postgres import Postgres
from greenline.errors import (
    Conflict,
    ConnectionLost,
    DeadlineExceeded,
    PoolClosed,
    PoolTimeout,
    StoreDown,
    StoreError,
    TooManyWaiting,
)
from greenline.hub import deadline
from greenline.postgres.clean import clean
from greenline.postgres.connect import connect
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.pool import ConnectionPool
from tests.helpers.support import wait_until

MakePool = Callable[..., ConnectionPool]
IDLE = {"size": 1, "active": 0, "idle": 1, "leaving": 0, "waiting": 0}
NONE = {"size": 0, "active": 0, "idle": 0, "leaving": 0, "waiting": 0}


@pytest.fixture
def make_pool(postgres: Postgres) -> Iterator[MakePool]:
    """Make pools on the session's server; close them at the end."""
    made: list[ConnectionPool] = []
    control = Control(partial(connect, postgres.url, 5.0))

    def make(max_size: int = 1, **options: object) -> ConnectionPool:
        opener = options.pop("connect", partial(connect, postgres.url, 5.0))
        made.append(ConnectionPool(opener, max_size=max_size, control=control, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for pool in made:
        pool.close(0)
    control.close()


def counts(pool: ConnectionPool) -> dict[str, int]:
    return {name: value for name, value in pool.stats().items() if name != "max"}


def backend(conn: Connection) -> int:
    return conn.info.backend_pid


def hold(pool: ConnectionPool, until: Event) -> None:
    with pool.connection(autocommit=True):
        until.wait()


def holding(pool: ConnectionPool, count: int = 1) -> tuple[list[gevent.Greenlet], Event]:
    """Return *count* greenlets that have a connection each, and what lets them go."""
    release = Event()
    holders = [gevent.spawn(hold, pool, release) for _ in range(count)]
    wait_until(lambda: pool.stats()["active"] == count, "the connections to be taken")
    wait_until(lambda: pool.stats()["waiting"] == 0, "each to have got its own")
    # A connect that is in progress is active as well.
    wait_until(lambda: len(pool._holders) == count, "the connects to be done")
    wait_until(lambda: all(not holder.ready() for holder in holders), "the holders to hold")
    return holders, release


def test_the_server_never_sees_more_than_the_limit(make_pool: MakePool, postgres: Postgres) -> None:
    """Fifty greenlets share five connections, and all fifty are served."""
    opened: list[int] = []

    def count_open(**options: Any) -> Connection:
        conn = connect(postgres.url, 5.0, **options)
        opened.append(backend(conn))
        return conn

    pool = make_pool(5, connect=count_open)
    highest = 0

    def work() -> int:
        nonlocal highest
        with pool.connection(autocommit=True) as conn, conn.cursor() as cursor:
            # Else the others may be done before the last connect.
            wait_until(lambda: len(opened) >= 5, "all to be connected")
            highest = max(highest, pool.stats()["active"])
            cursor.execute("select pg_sleep(0.01), 7")
            return int(cursor.fetchone()[1])

    workers = [gevent.spawn(work) for _ in range(50)]
    gevent.joinall(workers, timeout=40, raise_error=True)
    assert [worker.value for worker in workers] == [7] * 50
    assert (len(opened), highest) == (5, 5)
    assert counts(pool) == {"size": 5, "active": 0, "idle": 5, "leaving": 0, "waiting": 0}


def test_the_slot_is_reserved_while_the_connection_is_being_made(make_pool: MakePool) -> None:
    """A slow connect counts: no other may begin beyond the limit meanwhile."""
    connecting, go = [], Event()

    def slow(**_: Any) -> Connection:
        connecting.append(1)
        go.wait()
        raise StoreDown

    pool = make_pool(2, connect=slow)
    borrowers = [gevent.spawn(hold, pool, go) for _ in range(10)]
    wait_until(lambda: len(connecting) == 2, "two connects")
    assert counts(pool) == {"size": 2, "active": 2, "idle": 0, "leaving": 0, "waiting": 8}
    go.set()
    gevent.joinall(borrowers, timeout=40)
    assert all(isinstance(borrower.exception, StoreDown) for borrower in borrowers)
    wait_until(lambda: counts(pool) == NONE, "the backend to be gone")


def test_who_waits_longest_is_served_first(make_pool: MakePool) -> None:
    """The order of asking is the order of getting."""
    pool, order = make_pool(1), []
    _, release = holding(pool)

    def borrow(number: int) -> None:
        with pool.connection():
            order.append(number)

    borrowers = []
    for number in range(20):
        borrowers.append(gevent.spawn(borrow, number))
        wait_until(lambda: pool.stats()["waiting"] == len(borrowers), "the next in the queue")
    release.set()
    gevent.joinall(borrowers, timeout=40, raise_error=True)
    assert order == list(range(20))


def test_waiting_in_vain_ends_in_time(make_pool: MakePool) -> None:
    """PoolTimeout comes after timeout_s, and the queue is empty again."""
    pool = make_pool(1, min_size=1, timeout_s=0.1)
    pool.fill()  # else the holder would not wait for its connect for longer, either
    _, release = holding(pool)
    with gevent.Timeout(2), pytest.raises(PoolTimeout), pool.connection():
        pass
    assert pool.stats()["waiting"] == 0
    release.set()
    wait_until(lambda: counts(pool) == IDLE, "the connection to come back")


def test_the_requests_deadline_bounds_the_wait(make_pool: MakePool) -> None:
    """A waiter gives up, by itself, when its request's time is over, and says where it went."""
    pool = make_pool(1)
    _, release = holding(pool)
    with gevent.Timeout(2), pytest.raises(DeadlineExceeded) as caught, deadline.limit(0.1):
        with pool.connection():
            pass
    assert set(caught.value.spent_s) == {"pool"}
    release.set()


def test_one_too_many_is_refused_at_once(make_pool: MakePool) -> None:
    """max_waiting is a bound on the queue, and its length is named."""
    pool = make_pool(1, max_waiting=2)
    _, release = holding(pool)
    waiting = [gevent.spawn(hold, pool, release) for _ in range(2)]
    wait_until(lambda: pool.stats()["waiting"] == 2, "a full queue")
    with (
        gevent.Timeout(2),
        pytest.raises(TooManyWaiting, match="2 requests are already waiting"),
        pool.connection(),
    ):
        pass
    release.set()
    gevent.joinall(waiting, timeout=40, raise_error=True)


def test_a_failed_connect_fails_only_those_that_waited_when_it_began(
    make_pool: MakePool, postgres: Postgres
) -> None:
    """A request that joins during the attempt gets an attempt of its own."""
    connecting: list[int] = []
    fails = Event()

    def fail_first(**options: Any) -> Connection:
        connecting.append(1)
        if len(connecting) > 1:
            return connect(postgres.url, 5.0, **options)
        fails.wait()
        raise StoreDown

    pool, done = make_pool(1, connect=fail_first), Event()
    done.set()
    first = gevent.spawn(hold, pool, done)
    wait_until(lambda: connecting, "the first connect")
    first.kill()
    late = gevent.spawn(hold, pool, done)
    wait_until(lambda: len(pool._queue) == 1, "the late one")
    fails.set()
    late.get(timeout=40)
    assert len(connecting) == 2


def test_an_error_before_the_wait_leaves_no_waiter(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot table's file may be full, for instance."""
    pool = make_pool(1)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(pool._slots, "take", lambda: (_ for _ in ()).throw(OSError("full")))
        with pool.connection():
            pass
    assert len(pool._queue) == 0
    with pool.connection(autocommit=True) as conn:
        assert backend(conn)


@pytest.mark.parametrize("gift", ["connection", "slot"])
def test_a_waiter_killed_in_the_moment_it_was_served_passes_it_on(
    make_pool: MakePool, gift: str
) -> None:
    """A hand-over without a waiter goes to the next in the queue and is never lost."""
    pool, release = make_pool(1), Event()
    with pool.connection(autocommit=True):
        first = gevent.spawn(hold, pool, release)
        second = gevent.spawn(hold, pool, release)
        wait_until(lambda: pool.stats()["waiting"] == 2, "two in the queue")
        # From here to the hand-over nothing else runs: the kill comes first, and finds the gift.
        first.kill(block=False)
        if gift == "slot":
            pool.resize(2)
    first.join(5)
    release.set()
    second.join(5)
    assert second.successful()
    assert isinstance(first.value, gevent.GreenletExit)
    wait_until(lambda: pool.stats()["active"] == 0, "everything to come back")
    assert pool.stats()["waiting"] == 0
    assert pool.stats()["size"] == pool.stats()["idle"]


@pytest.mark.parametrize("stage", ["waiting", "in a statement", "in a transaction", "holding"])
def test_a_killed_greenlet_leaves_the_counts_right(make_pool: MakePool, stage: str) -> None:
    """Whatever it was doing, its slot serves the next one."""
    pool = make_pool(1)
    reached = Event()

    def borrow() -> None:
        with pool.connection() as conn, conn.cursor() as cursor:
            if stage == "in a transaction":
                cursor.execute("create temp table t (x int)")
            reached.set()
            if stage == "in a statement":
                cursor.execute("select pg_sleep(60)")
            gevent.sleep(60)

    release = Event()
    if stage == "waiting":
        _, release = holding(pool)
    victim = gevent.spawn(borrow)
    if stage == "waiting":
        wait_until(lambda: pool.stats()["waiting"] == 1, "the victim to wait")
    else:
        assert reached.wait(5)
        gevent.sleep(0)
    victim.kill(block=True, timeout=5)
    release.set()
    with gevent.Timeout(5), pool.connection() as conn, conn.cursor() as cursor:
        cursor.execute("select to_regclass('t')")
        assert cursor.fetchone() == (None,)
    wait_until(lambda: counts(pool) == IDLE, "one idle connection")


def test_a_transaction_is_committed_at_the_end_and_rolled_back_on_an_error(
    make_pool: MakePool,
) -> None:
    """The block is one transaction; an error inside leaves nothing behind."""
    pool = make_pool(1)
    with pool.connection(reset=False) as conn, conn.cursor() as cursor:
        cursor.execute("create temp table kept (x int)")
    with (
        pytest.raises(ZeroDivisionError),
        pool.connection(reset=False) as conn,
        conn.cursor() as cursor,
    ):
        cursor.execute("insert into kept values (1)")
        raise ZeroDivisionError
    with pool.connection(reset=False) as conn, conn.cursor() as cursor:
        cursor.execute("select count(*) from kept")
        assert cursor.fetchone() == (0,)


def test_a_statement_that_fails_costs_no_connection(make_pool: MakePool) -> None:
    """After an SQL error the same connection is clean and lent again."""
    pool = make_pool(1)
    with pool.connection() as conn:
        first = backend(conn)
    with pytest.raises(StoreError), pool.connection() as conn, conn.cursor() as cursor:
        cursor.execute("select nonsense")
    with pool.connection() as conn:
        assert backend(conn) == first


def test_a_conflict_names_the_constraint(make_pool: MakePool) -> None:
    """A violated constraint is reported by its name, with the driver's error as the cause."""
    with pytest.raises(Conflict, match="pair_unique") as caught:
        with make_pool(1).connection() as conn, conn.cursor() as cursor:
            cursor.execute("create temp table p (x int constraint pair_unique unique)")
            cursor.execute("insert into p values (1), (1)")
    assert caught.value.constraint == "pair_unique"
    assert isinstance(caught.value.__cause__, psycopg2.errors.UniqueViolation)


def test_an_idle_connection_that_died_costs_no_request(
    make_pool: MakePool, postgres: Postgres
) -> None:
    """A backend that was ended while idle is noticed before it is lent."""
    pool = make_pool(1)
    with pool.connection() as conn:
        first = backend(conn)
    admin = psycopg2.connect(postgres.superuser_url)
    with admin.cursor() as cursor:
        cursor.execute("select pg_terminate_backend(%s, 5000)", (first,))
    admin.close()
    with pool.connection() as conn, conn.cursor() as cursor:
        cursor.execute("select 1")
        assert backend(conn) != first
    wait_until(lambda: counts(pool) == IDLE, "one idle connection")


def test_a_statement_beyond_the_deadline_is_interrupted_and_its_connection_closed(
    make_pool: MakePool,
) -> None:
    """The caller has DeadlineExceeded; the connection, of unknown state, is not lent again."""
    pool = make_pool(1)
    with pool.connection(autocommit=True):
        pass  # the connect itself may take longer than the deadline
    with gevent.Timeout(5), pytest.raises(DeadlineExceeded), deadline.limit(0.1):
        with pool.connection(autocommit=True) as conn, conn.cursor() as cursor:
            cursor.execute("select pg_sleep(60)")
    wait_until(lambda: counts(pool) == NONE, "the backend to be gone")


def test_a_greenlet_that_waits_for_the_server_lets_the_others_run(make_pool: MakePool) -> None:
    """Ten sleeping queries take the time of one."""
    pool = make_pool(10)

    def sleep() -> None:
        with pool.connection(autocommit=True) as conn, conn.cursor() as cursor:
            cursor.execute("select pg_sleep(1)")

    with gevent.Timeout(5):
        gevent.joinall([gevent.spawn(sleep) for _ in range(10)], raise_error=True)


def test_growing_serves_those_who_wait(make_pool: MakePool) -> None:
    """A slot that resize() adds goes to the head of the queue."""
    pool = make_pool(1)
    _, release = holding(pool)
    waiting = [gevent.spawn(hold, pool, release) for _ in range(3)]
    wait_until(lambda: pool.stats()["waiting"] == 3, "three in the queue")
    pool.resize(3)
    wait_until(lambda: pool.stats()["waiting"] == 1, "two of them to be served")
    release.set()
    gevent.joinall(waiting, timeout=40, raise_error=True)


@pytest.mark.parametrize("lent", [True, False], ids=["lent", "idle"])
def test_shrinking_closes_what_is_too_much(make_pool: MakePool, lent: bool) -> None:
    """Idle connections go at once, lent ones as they come back."""
    pool = make_pool(4)
    holders, release = holding(pool, 4)
    if lent:
        pool.resize(1)
    release.set()
    gevent.joinall(holders, timeout=40, raise_error=True)
    if not lent:
        pool.resize(1)
    wait_until(lambda: counts(pool) == IDLE, "one idle connection")


@pytest.mark.parametrize(
    ("status", "kept"),
    [
        (TRANSACTION_STATUS_IDLE, True),
        (TRANSACTION_STATUS_ACTIVE, False),
        (TRANSACTION_STATUS_UNKNOWN, False),
    ],
    ids=["idle", "active", "unknown"],
)
def test_a_connection_of_unknown_state_is_not_lent_again(status: int, kept: bool) -> None:
    """What psycopg2 cannot vouch for is closed; no server leaves it in these states at will."""
    conn = SimpleNamespace(closed=0, info=SimpleNamespace(transaction_status=status))
    assert clean(conn, False) is kept  # type: ignore[arg-type]


def test_close_sends_the_waiting_away_and_leaves_no_connection(make_pool: MakePool) -> None:
    """Waiters get PoolClosed, borrowers finish, later borrowers are refused."""
    pool = make_pool(1)
    holders, release = holding(pool)
    waiter = gevent.spawn(hold, pool, release)
    wait_until(lambda: pool.stats()["waiting"] == 1, "a waiter")
    closing = gevent.spawn(pool.close)
    waiter.join(5)
    assert isinstance(waiter.exception, PoolClosed)
    release.set()
    gevent.joinall([*holders, closing], timeout=40, raise_error=True)
    assert closing.value is True
    assert counts(pool) == NONE
    with pytest.raises(PoolClosed), pool.connection():
        pass


def test_close_before_a_connect_has_begun_leaves_nothing(make_pool: MakePool) -> None:
    """The slot was taken in the same turn of the loop: it would not be freed any more."""
    pool, release = make_pool(2), Event()
    waiter, closing = gevent.spawn(hold, pool, release), gevent.spawn(pool.close, 2.0)
    gevent.joinall([waiter, closing], timeout=40)
    assert isinstance(waiter.exception, PoolClosed)
    assert closing.value is True
    assert counts(pool) == NONE


def test_a_server_that_is_not_there_is_reported_as_such() -> None:
    """A refused connect is StoreDown, in one line without advice."""
    with pytest.raises(StoreDown) as caught:
        connect("postgresql://127.0.0.1:1/none", 5.0)
    assert str(caught.value).startswith("Postgres: ")
    assert "\n" not in str(caught.value)


def test_the_state_can_be_read(make_pool: MakePool) -> None:
    """A repr shows what stats() tells."""
    assert repr(make_pool(3)) == "<ConnectionPool max=3 size=0 active=0 idle=0 leaving=0 waiting=0>"


def test_what_the_pool_does_is_counted(make_pool: MakePool, postgres: Postgres) -> None:
    """Requests, those that waited, those that failed, the use, and connections made and lost."""
    pool = make_pool(1)
    (holder,), release = holding(pool)
    waiter = gevent.spawn(hold, pool, release)
    wait_until(lambda: pool.stats()["waiting"] == 1, "a waiter")
    until = monotonic() + 0.06
    wait_until(lambda: monotonic() >= until, "the time that is counted")
    waiter.kill()
    release.set()
    holder.join()
    with pool.connection(autocommit=True) as conn:
        pid = backend(conn)
    with pytest.raises(ConnectionLost), pool.connection() as conn:
        conn.close()
        conn.cursor()
    counted = pool.get_stats()
    # The first one waited as well, for its connect.
    for name, value in {
        "requests_num": 4,
        "requests_queued": 2,
        "requests_errors": 1,
        "returns_bad": 1,
        "connections_num": 1,
        "connections_errors": 0,
        "connections_lost": 0,
    }.items():
        assert counted[name] == value, name
    assert counted["requests_wait_ms"] >= 50
    assert counted["usage_ms"] >= 50
    assert counted["connections_ms"] <= counted["requests_wait_ms"]
    assert counted.items() >= pool.stats().items()

    wait_until(lambda: pool.stats()["size"] == 0, "the closed one to be gone")
    assert pool.pop_stats()["requests_num"] == 4
    with pool.connection(autocommit=True) as conn:
        pid = backend(conn)
    watch = psycopg2.connect(postgres.superuser_url)
    with watch.cursor() as cursor:
        cursor.execute("select pg_terminate_backend(%s, 5000)", (pid,))
    watch.close()
    with pool.connection(autocommit=True) as conn:
        assert backend(conn) != pid
    counted = pool.get_stats()
    assert (counted["requests_num"], counted["requests_errors"]) == (2, 0)
    assert (counted["connections_num"], counted["connections_lost"]) == (2, 1)


def test_a_failed_connect_is_counted(make_pool: MakePool) -> None:
    """An attempt, an error of it, and an error of the request that waited for it."""
    pool = make_pool(connect=partial(connect, "postgresql://127.0.0.1:1/none", 5.0))
    with pytest.raises(StoreDown), pool.connection():
        pass
    counted = pool.get_stats()
    assert (counted["connections_num"], counted["connections_errors"]) == (1, 1)
    assert (counted["requests_num"], counted["requests_errors"]) == (1, 1)


def test_the_log_names_the_pool(make_pool: MakePool, caplog: pytest.LogCaptureFixture) -> None:
    """Each DEBUG line carries it: growth, checkout, return and close; without DEBUG none."""
    quiet, pool = make_pool(), make_pool(name="books")
    with quiet.connection(autocommit=True):
        pass
    assert not caplog.messages
    assert quiet.name.startswith("pool-")
    with caplog.at_level(logging.DEBUG, "greenline.postgres"):
        with pool.connection(autocommit=True) as conn:
            pid = backend(conn)
        pool.close()
    assert [
        text.partition(";")[0].partition(" after ")[0]
        for text in caplog.messages
        if text.startswith("books: ")
    ] == [
        "books: connecting",
        f"books: connected backend {pid}",
        f"books: checked out backend {pid}",
        f"books: backend {pid} returned clean",
        f"books: closing backend {pid}",
        f"books: backend {pid} has ended",
    ]
