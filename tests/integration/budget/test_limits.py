"""What real servers say of their limits, that they keep to it, and the command that asks them."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

import gevent
import psycopg2
import pytest

from embedded.mongo import Mongo
from embedded.postgres import Postgres, temporary
from greenline.budget.plan import HEAD_ROOM, Deployment, Plan, PostgresFacts, postgres_plan
from greenline.cli import ANSWER_TIMEOUT_S
from greenline.mongo.client import make_client
from greenline.mongo.limits import read_max_connections
from greenline.postgres.limits import APPLICATION, read_facts
from tests.helpers.pools import through
from tests.helpers.proxy import Proxy
from tests.helpers.support import SLOT_WAIT_S, run, wait_until

MAX_CONNECTIONS = 20


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A small Postgres without other connections."""
    with temporary(MAX_CONNECTIONS) as server:
        yield server


@pytest.fixture
def stack(server: Postgres) -> Iterator[ExitStack]:
    """Closes the test's connections, and waits until their backends are gone."""
    with ExitStack() as stack:
        yield stack
    wait_until_alone(server)


CLIENTS = "select count(*) from pg_stat_activity where backend_type = 'client backend'"


def wait_until_alone(server: Postgres) -> None:
    """Wait until the backends are gone whose clients are."""
    with closing(psycopg2.connect(server.superuser_url)) as conn:
        wait_until(lambda: ask(conn, CLIENTS) == 1, "the backends to be gone")


def ask(conn: Any, statement: str) -> Any:
    conn.autocommit = True
    with conn.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0] if cursor.description else None


def opened(stack: ExitStack, url: str, application: str = APPLICATION, **more: Any) -> Any:
    conn = psycopg2.connect(url, fallback_application_name=application, **more)
    stack.callback(conn.close)
    conn.autocommit = True
    return conn


@contextmanager
def altered(server: Postgres, what: str, before: str, after: str) -> Iterator[None]:
    """Change a limit for as long as the block runs."""
    elsewhere = server.superuser_url.replace("/greenline?", "/postgres?")
    with closing(psycopg2.connect(elsewhere)) as conn:
        ask(conn, f"alter {what} connection limit {before}")
        try:
            yield
        finally:
            ask(conn, f"alter {what} connection limit {after}")


def test_the_facts_of_a_stock_server(server: Postgres, stack: ExitStack) -> None:
    """As an unprivileged role that is alone, with nothing limited."""
    assert read_facts(opened(stack, server.url)) == PostgresFacts(max_connections=MAX_CONNECTIONS)


def test_a_superuser_is_recognized(server: Postgres, stack: ExitStack) -> None:
    """It may use what is reserved, and its limits do not hold."""
    facts = read_facts(opened(stack, server.superuser_url))
    assert (facts.is_superuser, facts.may_use_reserved) == (True, True)


def test_the_limits_of_role_and_database_are_read(server: Postgres, stack: ExitStack) -> None:
    """They are this role's and this database's."""
    with (
        altered(server, "role greenline", "7", "-1"),
        altered(server, "role postgres", "8", "-1"),
        altered(server, "database greenline", "9", "-1"),
    ):
        facts = read_facts(opened(stack, server.url))
    assert (facts.rolconnlimit, facts.datconnlimit) == (7, 9)


@pytest.mark.parametrize("who", ["url", "superuser_url"], ids=["unprivileged", "superuser"])
def test_others_are_counted_and_greenlines_are_not(
    server: Postgres, stack: ExitStack, who: str
) -> None:
    """In all, of our role and in our database; an unprivileged role does not see their kind."""
    elsewhere = server.superuser_url.replace("/greenline?", "/postgres?")
    opened(stack, server.superuser_url, "psql")
    opened(stack, elsewhere, "psql")
    opened(stack, server.url, "report")
    for name in (APPLICATION, f"{APPLICATION}: control"):
        opened(stack, server.url, name)
    facts = read_facts(opened(stack, getattr(server, who)))
    of_role = 1 if who == "url" else 2
    assert (facts.others, facts.others_of_role, facts.others_in_database) == (3, of_role, 2)


def test_the_urls_application_name_tells_who_is_ours(server: Postgres, stack: ExitStack) -> None:
    """Two services on one server are others to each other when their names differ."""
    shop = f"{server.url}&application_name=shop"
    first, second = opened(stack, shop), opened(stack, shop)
    assert read_facts(first).others == read_facts(second).others == 0
    default = opened(stack, server.url)
    assert read_facts(first).others == 1
    assert read_facts(default).others == 2


def test_a_client_without_a_name_counts_as_another(server: Postgres, stack: ExitStack) -> None:
    """Ours are called greenline then, and not every backend without a name."""
    for _ in range(2):
        opened(stack, server.url)
    opened(stack, server.superuser_url, "psql")
    facts = read_facts(opened(stack, server.url, ""))
    assert facts.others == 2  # psql, and the one that asks


def test_reserved_connections_are_read_where_they_exist() -> None:
    """Since PostgreSQL 16; a member of pg_use_reserved_connections is known as one."""
    with temporary(MAX_CONNECTIONS) as server:
        with closing(psycopg2.connect(server.superuser_url)) as conn:
            if conn.server_version < 160_000:
                pytest.skip("reserved_connections came with PostgreSQL 16")
            ask(conn, "alter system set reserved_connections = 4")
        server.stop()
        server.start()
        with closing(psycopg2.connect(server.url)) as conn:
            before = read_facts(conn)
        with closing(psycopg2.connect(server.superuser_url)) as conn:
            ask(conn, "grant pg_use_reserved_connections to greenline")
        with closing(psycopg2.connect(server.url)) as conn:
            after = read_facts(conn)
        assert (before.reserved_connections, before.may_use_reserved) == (4, False)
        assert (after.reserved_connections, after.may_use_reserved) == (4, True)
        # A backend of a connection that was just closed may still have been counted.
        alone = [
            replace(facts, others=0, others_of_role=0, others_in_database=0)
            for facts in (before, after)
        ]
        kept = [postgres_plan(facts, Deployment(1, surge_hosts=0)).host for facts in alone]
        assert kept[1] - kept[0] == 4


def planned(conn: Any) -> Plan:
    return postgres_plan(read_facts(conn), Deployment(1, surge_hosts=0))


def test_the_server_takes_the_whole_budget_and_the_head_room(
    server: Postgres, stack: ExitStack
) -> None:
    """Beside two others every connection of the plan is accepted, then three, then no more."""
    for _ in range(2):
        opened(stack, server.superuser_url, "psql")
    first = opened(stack, server.url)
    plan = planned(first)
    assert plan.host == MAX_CONNECTIONS - 3 - 2 - HEAD_ROOM
    for _ in range(plan.host - 1):
        opened(stack, server.url)
    command_fits(server, first)
    for _ in range(HEAD_ROOM):
        opened(stack, server.url)
    with pytest.raises(psycopg2.OperationalError, match="remaining connection slots"):
        opened(stack, server.url, connect_timeout=SLOT_WAIT_S)


@pytest.mark.parametrize("what", ["role", "database"])
def test_the_server_takes_what_its_lower_limit_allows(
    server: Postgres, stack: ExitStack, what: str
) -> None:
    """Beside one of the same role in the same database: the plan's, a command's and no more."""
    with altered(server, f"{what} greenline", "6", "-1"):
        opened(stack, server.url, "report")
        first = opened(stack, server.url)
        plan = planned(first)
        assert (plan.host, plan.binding) == (4, f"{what}'s limit")
        for _ in range(plan.host - 1):
            opened(stack, server.url)
        command_fits(server, first)
        opened(stack, server.url)
        with pytest.raises(psycopg2.OperationalError, match=f"too many connections for {what}"):
            opened(stack, server.url, connect_timeout=SLOT_WAIT_S)


def command_fits(server: Postgres, conn: Any) -> None:
    """Prove that ``greenline budget`` is let in now, and wait until it is gone, asking *conn*."""
    before = ask(conn, CLIENTS)
    run(COMMAND, {"DATABASE_URL": server.url, "WEB_CONCURRENCY": "1", "GREENLINE_SURGE_HOSTS": "0"})
    wait_until(lambda: ask(conn, CLIENTS) == before, "its backend to be gone")


COMMAND = ("python", "-m", "greenline", "budget")


def test_the_command_asks_both_servers(server: Postgres, mongo: Mongo) -> None:
    """A plan for each: what Postgres says, and what MongoDB says or is assumed."""
    environ = {"DATABASE_URL": server.url, "MONGODB_URI": mongo.url, "GREENLINE_SURGE_HOSTS": "0"}
    found = json.loads(run([*COMMAND, "--json"], environ).stdout)
    assert found["postgres"]["host"] == MAX_CONNECTIONS - 3 - HEAD_ROOM
    limit = 1_000 if (known := _reported_limit(mongo)) is None else known
    assert found["mongodb"]["host"] == pytest.approx(limit - HEAD_ROOM, abs=5)
    tables = run(COMMAND, environ).stdout
    assert "Postgres: 14 connections a host" in tables
    assert "\n\nMongoDB: " in tables


def _reported_limit(mongo: Mongo) -> int | None:
    with make_client(mongo.url, {}) as client:
        return read_max_connections(client)


def test_a_limit_that_mongodb_does_not_report_is_assumed_and_can_be_set(mongo: Mongo) -> None:
    """SecantusDB is silent: the sum says so, until MONGODB_MAX_CONNECTIONS does."""
    if _reported_limit(mongo) is not None:
        pytest.skip("this server tells its limit")
    environ = {"MONGODB_URI": mongo.url, "GREENLINE_SURGE_HOSTS": "0"}
    assert "1000  assumed limit" in run(COMMAND, environ).stdout
    done = run([*COMMAND, "--json"], {**environ, "MONGODB_MAX_CONNECTIONS": "103"})
    assert json.loads(done.stdout)["mongodb"]["host"] == 100


@pytest.mark.parametrize("other", [{}, {"MONGODB_URI": "off"}], ids=["not set", "off"])
def test_a_missing_address_is_said(server: Postgres, other: dict[str, str]) -> None:
    """One database alone is planned for, and the other one's variable is named."""
    done = run(COMMAND, {"DATABASE_URL": server.url, **other})
    assert "\n\nMongoDB: MONGODB_URI is not set\n" in done.stdout


@pytest.mark.parametrize("more", [{"WEB_CONCURRENCY": "8"}, {"GREENLINE_HOSTS": "9"}])
def test_what_does_not_fit_a_real_server_is_status_1(
    server: Postgres, more: dict[str, str]
) -> None:
    """The sum is on one line."""
    done = run(COMMAND, {"DATABASE_URL": server.url, **more}, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "max_connections 20 - 3 superuser_reserved_connections - 0 others" in line


def test_a_server_that_hangs_or_refuses_is_status_3_and_soon(
    server: Postgres, proxy: Proxy, mongo: Mongo, mongo_proxy: Proxy
) -> None:
    """Both are asked at once; the other server's plan is shown all the same."""
    uri = f"mongodb://127.0.0.1:{mongo_proxy.port}/?directConnection=true"
    environ = {"DATABASE_URL": through(proxy), "MONGODB_URI": uri}
    proxy.deafen()
    done = run(COMMAND, environ, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)
    assert done.stderr.startswith("Error: Postgres: ")
    assert "MongoDB: 498 connections a host" in done.stdout or _reported_limit(mongo) is not None
    mongo_proxy.deafen()
    before = proxy.accepted, mongo_proxy.accepted

    def asked() -> list[bool]:
        return [proxy.accepted > before[0], mongo_proxy.accepted > before[1]]

    asking = gevent.spawn(run, COMMAND, environ, check=False)
    wait_until(lambda: any(asked()), "one to be asked")
    # One after the other: the second one would be asked when the time of the first is over.
    wait_until(lambda: all(asked()), "the other one to be asked", ANSWER_TIMEOUT_S - 0.5)
    # The command's end takes a while as well, where the machine is busy.
    done = asking.get(timeout=ANSWER_TIMEOUT_S + 10)
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 2)
    proxy.refuse()
    done = run(COMMAND, {"DATABASE_URL": through(proxy)}, check=False)
    assert done.returncode == 3
    assert "Connection refused" in done.stderr
