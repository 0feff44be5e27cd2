"""The Postgres pool when the server goes away: restarts, lost answers, failovers."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event
from psycopg2.extensions import parse_dsn

from embedded.postgres import temporary
from greenline.errors import (
    ConnectionLost,
    DeadlineExceeded,
    OutcomeUnknown,
    PoolClosed,
    SerializationFailure,
    StoreDown,
    Unavailable,
)
from greenline.hub import deadline
from greenline.postgres.backends import MAX_PARALLEL_CONNECTS, RETRY_JITTER_S
from greenline.postgres.client import Postgres
from greenline.postgres.connect import connect
from greenline.postgres.control import Control
from greenline.postgres.pool import ConnectionPool
from tests.helpers.pools import Make, Watch, limited, run, through
from tests.helpers.proxy import Proxy
from tests.helpers.support import wait_until

_numbers = itertools.count()


# 7: a restart


class Load:
    """Twenty greenlets that read without a pause, and what came of it."""

    def __init__(self, client: Postgres) -> None:
        self._client = client
        self._stop = Event()
        self.good = 0
        self.errors: list[Unavailable] = []
        self._workers = [gevent.spawn(self._work) for _ in range(20)]

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                assert self._client.fetch("seven", "select 7", {}) == [(7,)]
                self.good += 1
            except Unavailable as error:
                self.errors.append(error)
                gevent.sleep(0.01)

    def goes_on(self) -> None:
        """Wait until each of them may have had several answers more."""
        before = self.good
        wait_until(lambda: self.good > before + 200, "more answers")

    def end(self) -> None:
        """Stop; anything but an answer or an Unavailable is raised here."""
        self._stop.set()
        gevent.joinall(self._workers, timeout=40, raise_error=True)


@contextmanager
def client_of(url: str) -> Iterator[Postgres]:
    control = Control(partial(connect, url, 5.0))
    pool = ConnectionPool(partial(connect, url, 5.0), max_size=5, control=control)
    yield Postgres(pool)
    assert pool.close(10.0)
    control.close()


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_restart_under_load_is_an_honest_outage_and_soon_over(tmp_path: Path, how: str) -> None:
    """Errors are Unavailable and end when the server is back; no request is needed to notice."""
    sockets = tmp_path / "sockets"
    with temporary(50) as server:
        sockets.symlink_to(Path(server.socket).parent)
        url = server.url.replace(str(Path(server.socket).parent), str(sockets))
        with client_of(url) as client:
            load = Load(client)
            load.goes_on()
            assert not load.errors
            getattr(server, "kill" if how == "killed" else "stop")()
            sockets.unlink()
            wait_until(lambda: len(load.errors) > 40, "the outage to be noticed by all")
            server.start()
            sockets.symlink_to(Path(server.socket).parent)
            load.goes_on()
            before = len(load.errors)
            load.goes_on()
            assert len(load.errors) == before
            load.end()
            assert all(error.retry_after_s > 0 for error in load.errors)


def test_backends_that_all_end_cost_few_requests(make: Make, watch: Watch) -> None:
    """The server ends every session, and a read whose connection was idle notices nothing."""
    client = Postgres(make(5))
    load = Load(client)
    load.goes_on()
    watch.ask(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = %s",
        watch.name,
    )
    load.goes_on()
    load.end()
    assert len(load.errors) <= 5


def test_attempts_on_a_server_that_is_away_do_not_come_at_once(make: Make) -> None:
    """After a failed connect each further one waits for a moment of its own."""
    pool = make(8)
    moments: list[float] = []

    def fail(**_: Any) -> Any:
        moments.append(gevent.get_hub().loop.now())
        raise StoreDown

    pool._backends._connect = fail
    gevent.spawn(run, pool, "select 1").join(5)

    def has_spread() -> bool:
        moments.clear()
        gevent.joinall([gevent.spawn(run, pool, "select 1") for _ in range(8)], timeout=40)
        assert len(moments) == 8
        return RETRY_JITTER_S / 10 < max(moments) - min(moments) < 2

    # On a busy machine the hub may sleep through all the moments of one try.
    assert any(has_spread() for _ in range(20))


def test_few_connect_at_a_time(make: Make, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that begins is not asked by the whole pool at once."""
    pool, most, now = make(30), 0, 0
    opening = pool._backends._connect

    def counted(**options: Any) -> Any:
        nonlocal most, now
        now += 1
        most = max(most, now)
        try:
            return opening(**options)
        finally:
            now -= 1

    monkeypatch.setattr(pool._backends, "_connect", counted)
    has_all = Event()

    def hold() -> None:
        with pool.connection():
            has_all.wait()

    borrowers = [gevent.spawn(hold) for _ in range(30)]
    wait_until(lambda: watch.count() == 30, "all to have one")
    has_all.set()
    gevent.joinall(borrowers, timeout=40, raise_error=True)
    assert most == MAX_PARALLEL_CONNECTS


def test_a_transaction_that_may_be_repeated_outlives_a_conflict(make: Make, watch: Watch) -> None:
    """Twenty that read and then write the same row in serializable transactions all succeed."""
    table = f"counter_{next(_numbers)}"
    watch.ask(f"create table {table} as select 0 as n; grant all on {table} to public; select 1")
    client = Postgres(make(5))
    attempts = []

    def add(conn: Any) -> int:
        with conn.cursor() as cursor:
            cursor.execute("set transaction isolation level serializable")
            cursor.execute(f"select n from {table}")
            number = int(cursor.fetchone()[0])
            attempts.append(number)
            # Two that have read before one of them writes are a conflict.
            wait_until(lambda: len(attempts) > 1, "another transaction")
            cursor.execute(f"update {table} set n = %s", (number + 1,))
            return number

    workers = [gevent.spawn(client.repeat, add) for _ in range(10)]
    gevent.joinall(workers, timeout=40)
    done = [worker for worker in workers if worker.successful()]
    assert watch.ask(f"select n from {table}") == len(done)
    assert len(attempts) > len(workers)
    assert len(done) > 5
    watch.ask(f"drop table {table}; select 1")


def test_a_conflict_is_not_repeated_unless_asked_for(make: Make, watch: Watch) -> None:
    """An ordinary transaction reports it, as something that may be tried again."""
    pool = make(1)
    with pytest.raises(SerializationFailure) as caught, pool.connection() as conn:
        with conn.cursor() as cursor:
            cursor.execute("do $$ begin raise exception using errcode = '40001'; end $$")
    assert caught.value.retryable


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
    make: Make, proxy: Proxy, watch: Watch, table: str, how: str
) -> None:
    """The row is there exactly once, and the error does not invite to try again."""
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


@pytest.mark.parametrize("answer", ["lost", "cut before"])
def test_a_write_that_stands_alone_is_of_unknown_outcome_and_never_repeated(
    make: Make, proxy: Proxy, watch: Watch, table: str, answer: str
) -> None:
    """An autocommit write whose connection broke may have happened, and happened once at most."""
    pool = make(1, url=through(proxy))
    run(pool, "select 1")
    if answer == "lost":
        proxy.lose(b"insert")
    with pytest.raises(OutcomeUnknown):
        with pool.connection(autocommit=True, reset=False) as conn, conn.cursor() as cursor:
            if answer == "cut before":
                proxy.cut()
            cursor.execute(f"insert into {table} values (1)")
    assert watch.ask(f"select count(*) from {table}") == (1 if answer == "lost" else 0)


def test_a_transaction_that_may_be_repeated_outlives_the_loss_of_its_connection(
    make: Make, proxy: Proxy, watch: Watch, table: str
) -> None:
    """Cut before its COMMIT it begins again, and happens once."""
    client = Postgres(make(1, url=through(proxy)))
    attempts = []

    def write(conn: Any) -> None:
        attempts.append(1)
        with conn.cursor() as cursor:
            cursor.execute(f"insert into {table} values (1)")
            if len(attempts) == 1:
                proxy.cut()
            cursor.execute("select 1")

    client.repeat(write)
    assert len(attempts) == 2
    assert watch.ask(f"select count(*) from {table}") == 1


# 8: failover


def test_a_session_that_the_server_ended_evicts_those_made_before_it(
    make: Make, watch: Watch
) -> None:
    """In green mode psycopg2 tells no 57P01 from a cut: after either no old one is lent."""
    pool = make(3)
    gevent.joinall([gevent.spawn(run, pool, "select pg_sleep(0.1)") for _ in range(3)])
    with pytest.raises(ConnectionLost), pool.connection() as conn:
        with conn.cursor() as cursor:
            cursor.execute("select 1")
            old = {one.pid for one in pool._idle}
            watch.ask("select pg_terminate_backend(%s, 5000)", conn.pid)
            cursor.execute("select 1")
    wait_until(lambda: pool.stats()["leaving"] == 0, "the old ones to be gone")
    assert run(pool, "select pg_backend_pid()") not in old


@pytest.mark.parametrize("how", ["an inner deadline", "its borrower"])
def test_a_connection_closed_on_our_side_evicts_no_other(make: Make, how: str) -> None:
    """A swallowed deadline, or a close() of old habit, says nothing of the server."""
    pool = make(3)
    gevent.joinall([gevent.spawn(run, pool, "select pg_sleep(0.1)") for _ in range(3)])
    # The last connect may take longer than the statements, which the others have executed.
    wait_until(lambda: pool.stats()["idle"] == 3, "three of them")
    with pytest.raises(ConnectionLost), pool.connection() as conn, conn.cursor() as cursor:
        cursor.execute("select 1")
        if how == "its borrower":
            conn.close()
        else:
            with suppress(DeadlineExceeded), deadline.limit(0.1):
                cursor.execute("select pg_sleep(60)")
    assert pool.stats()["idle"] == 2


def test_a_cut_network_does_not_hide_what_the_server_still_does(
    make: Make, proxy: Proxy, watch: Watch
) -> None:
    """A reset is no end of a backend: it is cancelled, and its slot is free when it is gone."""
    role = parse_dsn(limited(watch, 2))["user"]  # a third connection is refused by the server
    watch.ask(f"grant {role} to greenline; select 1")  # which cancels
    pool = make(2, url=through(proxy).replace("greenline@", f"{role}@"))
    busy = [gevent.spawn(run, pool, "select pg_sleep(60)") for _ in range(2)]
    wait_until(lambda: watch.count("state = 'active'") == 2, "both statements")
    proxy.cut()
    more = [gevent.spawn(run, pool, "select pg_sleep(0.5)") for _ in range(2)]
    gevent.joinall([*busy, *more], timeout=40)
    assert [worker.exception for worker in more] == [None, None]


def test_a_server_that_became_read_only_evicts_every_connection(make: Make, watch: Watch) -> None:
    """After a failover the old primary's connections are not used again."""
    pool = make(3)
    gevent.joinall([gevent.spawn(run, pool, "select pg_sleep(0.1)") for _ in range(3)])
    # The last connect may take longer than the statements, which the others have executed.
    wait_until(lambda: pool.stats()["idle"] == 3, "three of them")
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


@pytest.mark.parametrize("doing", ["a statement", "something else"])
def test_close_waits_for_borrowers_and_then_interrupts_them(
    make: Make, watch: Watch, doing: str
) -> None:
    """Who is done in time is not hurried; after the limit nothing is left, at the server too."""
    pool, release = make(2), Event()

    def hold() -> None:
        with pool.connection() as conn, conn.cursor() as cursor:
            cursor.execute("select 1")
            release.wait()

    def stay() -> None:
        with pool.connection() as conn, conn.cursor() as cursor:
            cursor.execute("select pg_sleep(60)" if doing == "a statement" else "select 1")
            gevent.sleep(60)

    quick, slow = gevent.spawn(hold), gevent.spawn(stay)
    wait_until(lambda: watch.count() == 2, "both connections")
    closing = gevent.spawn(pool.close, 1.0)
    gevent.sleep(0)
    release.set()
    quick.join(5)
    assert quick.successful()
    closing.join(10)
    assert closing.value is True
    slow.join(5)
    assert isinstance(slow.exception, PoolClosed)
    assert watch.count() == 0
