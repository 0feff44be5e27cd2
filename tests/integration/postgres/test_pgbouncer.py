"""A real pgbouncer in front: it is noticed, its limit is asked for, and hosts are not counted."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import gevent
import psycopg2
import pytest

from embedded.mongo import Mongo
from embedded.pgbouncer import Pgbouncer
from embedded.postgres import Postgres, temporary
from greenline.budget.plan import Deployment, postgres_plan
from greenline.errors import ConfigError, StoreDown
from greenline.postgres import transparent
from greenline.postgres.connect import connect
from greenline.postgres.limits import read_facts
from tests.helpers.member import Member
from tests.helpers.pools import ask
from tests.helpers.support import Databases, Service, run, service, wait_until

POOL_SIZE = 4
COMMAND = ("python", "-m", "greenline", "budget")
COUNTED = {"GREENLINE_HOSTS": "auto", "PGBOUNCER_POOL_SIZE": str(POOL_SIZE)}


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A small Postgres without other connections."""
    with temporary(20) as server:
        yield server


@pytest.fixture(scope="module")
def pgbouncer(server: Postgres) -> Iterator[Pgbouncer]:
    """One that pools transactions, in four connections."""
    try:
        with Pgbouncer(server, POOL_SIZE) as running:
            yield running
    except ConfigError as error:
        pytest.skip(str(error))


def test_it_is_noticed(pgbouncer: Pgbouncer) -> None:
    """The driver's process id is pgbouncer's own; its limit is asked for by name."""
    with closing(psycopg2.connect(pgbouncer.url)) as conn:
        facts = read_facts(conn)
    assert facts.behind_pgbouncer
    with pytest.raises(ConfigError, match=r"^PGBOUNCER_POOL_SIZE: "):
        postgres_plan(facts, Deployment(1))
    plan = postgres_plan(facts, Deployment(1, surge_hosts=0), pgbouncer_pool_size=POOL_SIZE)
    assert plan.host == POOL_SIZE


def test_the_command_asks_for_its_limit(pgbouncer: Pgbouncer) -> None:
    """Without PGBOUNCER_POOL_SIZE it is status 1 and one line; with it there is a plan."""
    environ = {"DATABASE_URL": pgbouncer.url, "WEB_CONCURRENCY": "1"}
    done = run(COMMAND, environ, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Postgres: PGBOUNCER_POOL_SIZE: not set")
    done = run(COMMAND, {**environ, "PGBOUNCER_POOL_SIZE": str(POOL_SIZE)})
    assert "PGBOUNCER_POOL_SIZE binds" in done.stdout


def test_the_command_counts_no_hosts_through_it(pgbouncer: Pgbouncer) -> None:
    """Status 1, and one line that says why, and what to do."""
    done = run(COMMAND, {"DATABASE_URL": pgbouncer.url, **COUNTED}, check=False)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert line.startswith("Error: Postgres: GREENLINE_HOSTS: auto counts the hosts by locks")
    assert line.endswith("set the number of hosts, or connect to the server itself")


def test_the_service_counts_no_hosts_through_it(pgbouncer: Pgbouncer, mongo: Mongo) -> None:
    """The start ends before a worker is forked."""
    environ = {**Databases(pgbouncer.url, mongo.url).environ, **COUNTED, "POSTGRES_PREPARE": "0"}
    with service({**environ, "WEB_CONCURRENCY": "1"}, wait=False) as running:
        wait_until(lambda: running.process.poll() is not None, "the end of the start")
        assert running.process.returncode == 1
        assert "greenline: Postgres: GREENLINE_HOSTS: auto counts" in running.log
        assert "Booting worker" not in running.log


def test_a_worker_counts_no_hosts_through_it(
    pgbouncer: Pgbouncer, server: Postgres, tmp_path: Path
) -> None:
    """One that came to be behind it later is not ready, has no lease and registers nothing."""
    member = Member(tmp_path / "host", partial(connect, pgbouncer.url, 5.0, None))
    try:
        for _ in range(3):
            with pytest.raises(StoreDown, match="GREENLINE_HOSTS: auto counts"):
                member.hosts.look(member.control)
        assert not member.slot_table.is_leased()
        assert member.slot_table.take() is None
        with closing(psycopg2.connect(server.superuser_url)) as conn, conn.cursor() as cursor:
            cursor.execute("select count(*) from pg_locks where locktype = 'advisory'")
            assert cursor.fetchall() == [(0,)]
    finally:
        member.close()


def test_the_service_serves_through_it(
    pgbouncer: Pgbouncer, server: Postgres, mongo: Mongo
) -> None:
    """With the number of hosts set, and nothing that only a session keeps."""
    databases = Databases(server.url, mongo.url)
    run(["flask", "db", "upgrade", "sample"], databases.environ)
    environ = {
        **databases.environ, "DATABASE_URL": pgbouncer.url, "POSTGRES_PREPARE": "0",
        "PGBOUNCER_POOL_SIZE": str(POOL_SIZE), "GREENLINE_SURGE_HOSTS": "0", "WEB_CONCURRENCY": "2",
        "LOG_LEVEL": "debug",
    }  # fmt: skip
    with service(environ) as running:
        assert [_book(running, number) for number in range(1, 9)] == [200] * 8
        for number in range(1, 9):
            edited = running.ask("PATCH", f"/books/{number}", {"title": f"new {number}"})
            assert (edited.status, edited.json["title"]) == (200, f"new {number}")
        assert "PGBOUNCER_POOL_SIZE binds" in running.log


def _book(running: Service, number: int) -> int:
    return running.get(f"/books/{number}").status


def test_unmodified_code_is_pooled_through_it(
    pgbouncer: Pgbouncer, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within its limit, which a variable has; without, psycopg2's error names the variable."""
    monkeypatch.setenv("WEB_CONCURRENCY", "1")
    monkeypatch.setenv("GREENLINE_SURGE_HOSTS", "0")
    monkeypatch.setattr(transparent, "_pools", {})

    def ask() -> int:
        with closing(transparent.pooled_connect(fresh.url)) as conn, conn.cursor() as cursor:
            cursor.execute("select 1, pg_sleep(0.05)")
            return int(cursor.fetchone()[0])

    # One of its own, which has a slot table of its own.
    fresh = Pgbouncer(server, POOL_SIZE)
    fresh.start()
    try:
        with pytest.raises(psycopg2.OperationalError, match="PGBOUNCER_POOL_SIZE: not set"):
            ask()
        close_pools()
        transparent._pools.clear()
        monkeypatch.setenv("PGBOUNCER_POOL_SIZE", str(POOL_SIZE))
        asking = [gevent.spawn(ask) for _ in range(5 * POOL_SIZE)]
        gevent.joinall(asking, raise_error=True)
        assert [each.value for each in asking] == [1] * len(asking)
        (pool,) = transparent._pools.values()
        assert pool._pool.stats()["size"] <= POOL_SIZE
    finally:
        close_pools()
        fresh.stop()


def close_pools() -> None:
    """Close those of unmodified code, before their pgbouncer ends."""
    for pool in list(transparent._pools.values()):
        pool.close()


def test_an_idle_session_of_a_mapped_user_is_taken_over(
    pgbouncer: Pgbouncer, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It logs in as another user than the client; the pool has one of its connections."""
    monkeypatch.setenv("WEB_CONCURRENCY", "1")
    monkeypatch.setenv("GREENLINE_SURGE_HOSTS", "0")
    monkeypatch.setenv("PGBOUNCER_POOL_SIZE", str(POOL_SIZE))
    monkeypatch.setattr(transparent, "_pools", {})
    with Pgbouncer(server, POOL_SIZE, user="postgres") as mapping, ExitStack() as stack:
        kept = [transparent.pooled_connect(mapping.url) for _ in range(POOL_SIZE + 1)]
        for conn in kept:
            stack.callback(conn.close)
            assert ask(conn, "select session_user") == "postgres"
            conn.commit()
        assert [conn._backend for conn in kept].count(None) == POOL_SIZE
        stack.close()
        close_pools()
