"""Django, SQLAlchemy and other libraries on pooled connections: unchanged ones, and ours."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import gevent
import psycopg2
import pytest
import sqlalchemy.exc

from embedded.pgbouncer import Pgbouncer
from embedded.postgres import Postgres, temporary
from greenline.budget.plan import COMMANDS
from greenline.errors import ConfigError
from greenline.sqlalchemy import create_engine
from tests.e2e.hosting import at_once, hosting
from tests.helpers.forms import in_the_long_form, some
from tests.helpers.load import Load
from tests.helpers.support import CHECKOUT, IS_LONG, Service, environ, wait_until
from tests.helpers.watch import count

ENGINES = ["django.db.backends.postgresql", "greenline.django.postgresql"]
SIZE = 20
BACKENDS = """
select count(*) from pg_stat_activity
where datname = %s and backend_type = 'client backend' and pid <> pg_backend_pid()
"""


def given(url: str, size: int = SIZE, **more: str) -> dict[str, str]:
    return {"DATABASE_URL": url, "POSTGRES_POOL_SIZE": str(size), **more}


@pytest.fixture
def url(empty_database: str) -> str:
    return empty_database


@contextmanager
def django(url: str, engine: str, *arguments: str, **more: str) -> Iterator[tuple[Service, str]]:
    """Run the project; yield it, and the key of an admin's session."""
    limits = {"REQUEST_TIMEOUT": "30", "GREENLINE_SURGE_HOSTS": "0"}
    own = given(url, POOLED_ENGINE=engine, **limits, **more)
    if engine == ENGINES[0]:
        own["GREENLINE_POOL"] = "1"
    else:
        own["POOLED_MAX_AGE"] = "None"
    make = [sys.executable, "-m", "tests.e2e.pooled_django"]
    made = subprocess.run(
        make,
        cwd=CHECKOUT,
        env=environ(own),
        check=True,
        timeout=120,
        stdout=subprocess.PIPE,
        text=True,
    )
    with hosting("tests.e2e.pooled_django:application", *arguments, **own) as running:
        yield running, made.stdout.strip()


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(url)) as conn, conn.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchall()


@pytest.mark.parametrize("engine", some(ENGINES), ids=some(["Django's", "ours"]))
def test_django_keeps_its_promises(engine: str, postgres: Postgres, url: str) -> None:
    """Many clients and twenty connections, through a reload and the kill of a worker."""
    clients, more = (100, 50) if IS_LONG else (10, 20)
    name = psycopg2.extensions.parse_dsn(url)["dbname"]
    with django(url, engine, "--workers", "2") as (running, session), ExitStack() as stack:
        address, cookie = ("127.0.0.1", running.port), f"Cookie: sessionid={session}\r\n"
        paths = ("/transfer", "/transfer", "/visit", "/stream", "/admin/auth/user/?o=1")
        loads = [Load(address, clients=clients, path=path, headers=cookie) for path in paths]
        for load in loads:
            stack.callback(load.stop)

        def wait_for_more() -> None:
            seen = [len(load.answered) for load in loads]
            wait_until(
                lambda: all(len(x.answered) >= n + more for x, n in zip(loads, seen, strict=True)),
                "more answers",
                120,
            )

        wait_for_more()
        old = set(running.workers())
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: not old & set(running.workers()), "other workers")
        wait_for_more()
        failed = [load.failures.copy() for load in loads]
        assert failed == [{}] * len(loads)
        os.kill(running.workers()[0], signal.SIGKILL)
        wait_for_more()
        most = count(postgres, BACKENDS, name)
        stack.close()
        assert most <= 2 * SIZE + 2 * 2  # with the control connections, of the killed one too
        for load in loads:
            assert load.statuses == {200: len(load.answered)}, load.errors
            assert len(load.failures) <= clients  # what was in progress in the killed one
    answered = [number for load in loads[:2] for number in load.answered]
    made = sorted(number for (number,) in rows(url, "select number from pooled_transfer"))
    # Those whose worker was killed before the answer may be there, too.
    assert len(answered) <= len(made) <= len(answered) + sum(len(x.failures) for x in loads[:2])
    assert rows(url, "select count(*) from pooled_seen") == [(len(made),)]
    assert rows(url, "select sum(balance) = 1000 * count(*) from pooled_account") == [(True,)]


def test_django_goes_on_after_an_integrity_error(url: str) -> None:
    """Caught at a savepoint, and outside the transaction, on connections that are kept for 60 s."""
    few = {"POOLED_MAX_AGE": "60", "POSTGRES_POOL_SIZE": "3"}
    with django(url, ENGINES[0], "--workers", "2", **few) as (running, _), ExitStack() as stack:
        paths = "/clash-inside", "/clash-outside"
        loads = [Load(("127.0.0.1", running.port), clients=20, path=path) for path in paths]
        for load in loads:
            stack.callback(load.stop)
        wait_until(lambda: all(len(load.answered) >= 200 for load in loads), "answers", 60)
    assert [load.failures for load in loads] == [{}, {}]
    inside, outside = (sorted(load.answered) for load in loads)
    for load in loads:
        assert load.statuses == {200: len(load.answered)}, load.errors
    kept = {f"inside {number}{again}" for number in inside for again in ("", " again")}
    kept |= {f"outside {number}" for number in outside}
    assert {key for (key,) in rows(url, "select key from pooled_once")} == kept


@pytest.fixture
def pgbouncer() -> Iterator[Pgbouncer]:
    """One that pools transactions in four connections, before a server of its own."""
    with temporary() as server:
        try:
            with Pgbouncer(server, 4) as running:
                yield running
        except ConfigError as error:
            pytest.skip(str(error))


@in_the_long_form
@pytest.mark.parametrize("engine", some(ENGINES[::-1]), ids=some(["ours", "Django's"]))
def test_django_goes_through_a_pgbouncer(engine: str, pgbouncer: Pgbouncer) -> None:
    """Each transaction may have another session; more are kept open than it has connections."""
    four = {"PGBOUNCER_POOL_SIZE": "4", "POSTGRES_POOL_SIZE": "4"}
    url = pgbouncer.url
    with django(url, engine, "--workers", "2", **four) as (running, _), ExitStack() as stack:
        address = "127.0.0.1", running.port
        loads = [Load(address, clients=8, path=path) for path in ("/transfer", "/visit")]
        for load in loads:
            stack.callback(load.stop)
        wait_until(lambda: all(len(load.answered) > 100 for load in loads), "answers", 60)
        zones = [running.get("/session").json["zone"] for _ in range(10)]
        stack.close()
    assert zones == ["Europe/Berlin"] * 10
    for load in loads:
        assert load.statuses == {200: len(load.answered)}, load.errors
        assert load.failures == {}
    numbers = rows(url, "select number from pooled_transfer")
    assert sorted(number for (number,) in numbers) == sorted(loads[0].answered)
    assert rows(url, "select sum(balance) = 1000 * count(*) from pooled_account") == [(True,)]


@in_the_long_form
def test_our_django_engine_begins_with_its_settings(url: str) -> None:
    """Zone and statement timeout are there without a statement, at each checkout."""
    with django(url, ENGINES[1]) as (running, _):
        for _ in range(3):
            assert running.get("/session").json == {"zone": "Europe/Berlin", "timeout": "30s"}


@in_the_long_form
def test_our_django_engine_tests_what_it_keeps(postgres: Postgres, url: str) -> None:
    """Backends that have ended between two requests, as in a restart: no request fails."""
    name = psycopg2.extensions.parse_dsn(url)["dbname"]
    end = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s"
    with django(url, ENGINES[1], "--workers", "1") as (running, _):
        assert running.get("/session").status == 200
        with closing(psycopg2.connect(postgres.superuser_url)) as conn, conn.cursor() as cursor:
            conn.autocommit = True
            cursor.execute(f"{end} and pid <> pg_backend_pid()", (name,))
            assert cursor.rowcount
        wait_until(lambda: not count(postgres, BACKENDS, name), "the backends to end")
        assert running.get("/session").status == 200


def test_a_request_has_one_checkout(url: str) -> None:
    """It checks the same connection out again; nested ones are two; none is left as it was."""
    with hosting("tests.e2e.pooled_sqlalchemy:app", **given(url, 4)) as running:
        answers, _ = at_once(running, "/twice", 40)
        for answer in answers:
            first, second = answer.body.split()
            assert first == second
        answers, _ = at_once(running, "/nested", 40)
        assert {answer.status for answer in answers} == {200}
        for answer in answers:
            outer, inner = answer.body.split()
            assert outer != inner
        before = running.get("/leave").body
        assert {running.get("/leave").body for _ in range(5)} == {before}


def test_other_libraries_count_each_request_once(postgres: Postgres, url: str) -> None:
    """Forty clients of each, one after the other: no error, and no backend over the budget."""
    name = psycopg2.extensions.parse_dsn(url)["dbname"]
    budget = 12  # two controls, and ten that both workers and the four pools of each share
    make = "create table {} (id serial primary key, {} int not null)"
    with closing(psycopg2.connect(url)) as conn, conn, conn.cursor() as cursor:
        cursor.execute(make.format("total", "count"))
        cursor.execute(make.format("counted", "number"))
        cursor.execute("insert into total (count) values (0)")
    with closing(psycopg2.connect(postgres.superuser_url)) as conn, conn, conn.cursor() as cursor:
        cursor.execute(f"alter database {name} connection limit {budget + COMMANDS}")
    own = {"DATABASE_URL": url, "GREENLINE_POOL": "1", "GREENLINE_SURGE_HOSTS": "0"}
    answered: list[int] = []
    with hosting("tests.e2e.pooled_orms:app", "--workers", "2", **own) as running:
        for path in ("/peewee", "/pool-of-peewee", "/pony", "/records"):
            load, most = Load(("127.0.0.1", running.port), clients=40, path=path), 0
            try:
                with gevent.Timeout(60):
                    while len(load.answered) < 120:
                        most = max(most, count(postgres, BACKENDS, name))
                        gevent.sleep(0.05)
            finally:
                load.stop()
            assert (load.statuses, load.failures) == ({200: len(load.answered)}, {}), load.errors
            assert budget / 2 < most <= budget
            answered += load.answered
    assert sorted(rows(url, "select number from counted")) == sorted((one,) for one in answered)
    assert rows(url, "select count from total") == [(len(answered),)]


@pytest.mark.parametrize(
    ("url", "options", "reason"),
    [
        ("sqlite://", {}, "psycopg2's connections only"),
        ("postgresql+asyncpg://localhost/x", {}, "psycopg2's connections only"),
        (
            "postgresql://localhost/x",
            {"pool_size": 5, "max_overflow": 1},
            "max_overflow, pool_size",
        ),
    ],
)
def test_what_is_no_engine_of_ours(url: str, options: dict[str, Any], reason: str) -> None:
    """Another driver, and a size."""
    with pytest.raises(sqlalchemy.exc.ArgumentError, match=reason):
        create_engine(url, **options)
