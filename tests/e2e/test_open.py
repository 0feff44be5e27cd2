"""postgres.open() and mongo.open(): in a script, and in an application on two kinds of worker."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.helpers.forms import in_the_long_form
from tests.helpers.support import Databases, run, service, wait_until

GREEN = ("-k", "greenline.worker.GreenWorker", "-w", "2")
# gunicorn's own gevent worker: the application makes psycopg2 green by itself.
NO_CONFIG = "tests/e2e/plain_conf.py"
STOCK = ("-k", "gevent", "-w", "2")

HOOK = """
def post_fork(server, worker):
    from tests.e2e.opened_by_call import open_both
    open_both()
"""
# gunicorn patches the standard library after post_fork.
PATCHING_HOOK = HOOK.replace(
    "    from tests", "    from greenline.patch import patch_all\n    patch_all()\n    from tests"
)

SCRIPT = """
from greenline.patch import patch_all
patch_all()
import gevent
from greenline import mongo, postgres
pg = postgres.open(workers=1)

def ask(number):
    with pg.connection(autocommit=True) as conn, conn.cursor() as cursor:
        cursor.execute("select %s + 0, pg_backend_pid(), pg_sleep(0.01)", (number,))
        return cursor.fetchone()

rows = [job.get() for job in [gevent.spawn(ask, number) for number in range(200)]]
print(sorted(number for number, *_ in rows) == list(range(200)))
print(len({pid for _, pid, _ in rows}) <= pg.plan.max_pool_size)
print(pg.stats()["max"] == pg.plan.max_pool_size)
from greenline.telemetry import counters
print(pg.get_stats()["requests_num"] == 200 == counters.growths["postgres"]()["requests_num"])
from sqlalchemy import create_engine, text
engine = create_engine("postgresql+psycopg2://", creator=pg.creator(timeout_s=10))
with engine.connect() as conn:
    print(conn.execute(text("select 7")).scalar())
with mongo.open(workers=1).database() as database:
    print(database.things.count_documents({}))
"""


@pytest.fixture
def addresses(postgres_url: str, empty_mongo: str) -> dict[str, str]:
    """The environment that names both servers."""
    return {"DATABASE_URL": postgres_url, "MONGODB_URI": empty_mongo}


@pytest.fixture
def postgres_url(empty_database: str) -> str:
    """The URL of a database without a schema."""
    return empty_database


def test_a_script_has_pools_in_one_call_each(addresses: dict[str, str]) -> None:
    """200 greenlets at once stay within the budget, SQLAlchemy's engine too; the process ends."""
    done = run(["python", "-c", SCRIPT], addresses)
    assert done.stdout.split() == ["True", "True", "True", "True", "7", "0"]
    assert done.stderr == ""


@pytest.mark.parametrize("worker", [GREEN, STOCK], ids=["our worker", "gunicorn's gevent worker"])
def test_an_application_opens_them_at_import(
    worker: tuple[str, ...], addresses: dict[str, str], tmp_path: object
) -> None:
    """Nothing but the worker class is configured; 40 requests at once are answered."""
    target = "tests.e2e.opened:app" if worker is GREEN else "tests.e2e.opened_stock:app"
    with service(addresses, *worker, target=target, config=NO_CONFIG, wait=False) as running:
        wait_until(lambda: "Booting worker" in running.log, "the workers")
        with ThreadPoolExecutor(40) as clients:
            answers = list(clients.map(lambda _: running.get("/"), range(40)))
        assert [answer.status for answer in answers] == [200] * 40, running.log
        assert {tuple(answer.json["numbers"]) for answer in answers} == {(7, 8, 9)}
        assert len({answer.json["most"] for answer in answers}) == 1


@pytest.mark.parametrize("worker", [GREEN, STOCK], ids=["our worker", "gunicorn's gevent worker"])
def test_post_fork_opens_them(
    worker: tuple[str, ...], addresses: dict[str, str], tmp_path: Path
) -> None:
    """The application finds them open; 40 requests at once are answered."""
    hook = HOOK if worker is GREEN else PATCHING_HOOK
    config = tmp_path / "hooked.conf.py"
    # gunicorn's own worker, patched that late, ends with the graceful timeout.
    config.write_text(f"control_socket_disable = True\ngraceful_timeout = 1\n{hook}")
    target = "tests.e2e.opened_by_call:app"
    with service(addresses, *worker, target=target, config=str(config), wait=False) as running:
        wait_until(lambda: "Booting worker" in running.log, "the workers")
        with ThreadPoolExecutor(40) as clients:
            answers = list(clients.map(lambda _: running.get("/"), range(40)))
        assert [answer.status for answer in answers] == [200] * 40, running.log
        assert {tuple(answer.json["numbers"]) for answer in answers} == {(7, 8, 9)}
        assert running.log.count("Booting worker") == 2, running.log


@in_the_long_form
def test_a_reload_of_such_an_application_is_taken(addresses: dict[str, str]) -> None:
    """The dry run loads it as a worker does, and the new workers answer."""
    with service(
        addresses, *GREEN, target="tests.e2e.opened:app", config=NO_CONFIG, wait=False
    ) as running:
        wait_until(lambda: running.log.count("Booting worker") == 2, "the workers")
        assert running.get("/").status == 200
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: running.log.count("Booting worker") == 4, "the new workers")
        assert running.get("/").status == 200
        assert "reload refused" not in running.log


FORKING = """
import os, sys
from greenline.patch import patch_all
patch_all()
from greenline import postgres
pg = postgres.open(workers=1)
ask = lambda: pg.fetch("pid", "select pg_backend_pid()", {})[0][0]
before = ask()
child = os.fork()
if child == 0:
    own = postgres.open(workers=1)
    print("child", own.fetch("seven", "select 7", {})[0][0], flush=True)
    sys.exit()
os.waitpid(child, 0)
print("same", ask() == before)
"""

COUNTED = """
from greenline.patch import patch_all
patch_all()
from greenline import postgres
with postgres.open(workers=1, hosts="auto").connection() as conn, conn.cursor() as cursor:
    cursor.execute("select 7")
    print(cursor.fetchone()[0])
"""


def test_a_forked_child_opens_its_own(addresses: dict[str, str]) -> None:
    """Its exit leaves the parent's connection as it is."""
    done = run(["python", "-W", "ignore", "-c", FORKING], addresses)
    assert done.stdout.split() == ["child", "7", "same", "True"]


SHARED = """
import os
from greenline.patch import patch_all
patch_all()
from greenline import mongo
from greenline.errors import ConfigError, PoolClosed
from greenline.telemetry import counters

def ping(client):
    with client.database() as database:
        database.command("ping")
        return database.client

uri = os.environ["MONGODB_URI"]
first, second = mongo.open(workers=1), mongo.open(uri + "?authSource=admin", workers=1, hosts=1)
print(ping(second) is not ping(first))
second.close()
second = mongo.open(uri + "x", workers=1, name="another", timeout_s=5)
with first.database() as ours, second.database() as theirs:
    print(theirs.name == ours.name + "x")
print(ping(second) is ping(first), first.plan is second.plan, len(counters.gauges["mongodb"]))
slots = first.slot_table.stats()
print(slots["held"] > 1)
for arguments in {"workers": 2}, {"workers": 1, "hosts": 2}:
    try:
        mongo.open(**arguments)
    except ConfigError as error:
        print("is open already with another" in str(error))
first.close()
first.close()
try:
    ping(first)
except PoolClosed:
    third = mongo.open(workers=1)
    print(ping(second) is ping(third), second.slot_table.stats() == slots)
second.close()
print(third.stats()["size"] > 0)
third.close()
print("mongodb" in counters.gauges, ping(mongo.open(workers=2)) is not None)
"""


def test_a_second_client_of_one_mongodb_shares_the_first(addresses: dict[str, str]) -> None:
    """Each is closed by itself; after the last one the next call begins anew."""
    done = run(["python", "-W", "ignore", "-c", SHARED], addresses)
    assert done.stdout.splitlines() == [
        "True", "True", "True True 1", "True", "True", "True", "True True", "True", "False True",
    ], done.stderr  # fmt: skip


SHARED_IN_ANOTHER_ORDER = """
import os, sys
from greenline.patch import patch_all
patch_all()
from greenline import mongo
from greenline.lifecycle import Resources
resources = Resources()
first = mongo.open(workers=1, resources=resources)
second = mongo.open(workers=1)
with first.database() as database:
    second.close()
    print(database.command("ping")["ok"], flush=True)
child = os.fork()
if child == 0:
    own = mongo.open(workers=2)
    with own.database() as database:
        print("child", database.command("ping")["ok"], flush=True)
    sys.exit()
os.waitpid(child, 0)
with first.database() as database:
    print(database.command("ping")["ok"])
"""


def test_the_second_one_may_be_closed_first_and_a_child_has_its_own(
    addresses: dict[str, str],
) -> None:
    """Neither disturbs the first one, which nothing but the end of the process closes."""
    done = run(["python", "-W", "ignore", "-c", SHARED_IN_ANOTHER_ORDER], addresses)
    assert done.stdout.splitlines() == ["1.0", "child 1.0", "1.0"], done.stderr


FORKED_MEANWHILE = """
import os, sys
from greenline.patch import patch_all
patch_all()
import gevent
from greenline import mongo, postgres
from greenline.mongo import factory as mongo_factory
from greenline.postgres import factory as postgres_factory
with mongo_factory._opening, postgres_factory._opening:
    child = os.fork()
    if child == 0:
        with gevent.Timeout(20), mongo.open().database() as database:
            print(database.command("ping")["ok"], flush=True)
        with gevent.Timeout(20), postgres.open().connection() as conn, conn.cursor() as cursor:
            cursor.execute("select 42")
            print(*cursor.fetchone(), flush=True)
        sys.exit()
    os.waitpid(child, 0)
"""


def test_a_child_opens_what_its_parent_is_opening(addresses: dict[str, str]) -> None:
    """The greenlet of the parent that opens is not in the child, and would be waited for."""
    done = run(["python", "-W", "ignore", "-c", FORKED_MEANWHILE], addresses)
    assert done.stdout.splitlines() == ["1.0", "42"], done.stderr


def test_hosts_are_counted_for_a_script_too(addresses: dict[str, str]) -> None:
    """The first connection waits for the lease, which nothing but the use of the pool asks for."""
    assert run(["python", "-c", COUNTED], addresses).stdout == "7\n"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        pytest.param(
            "postgres.open()", "DATABASE_URL: not set, for example postgresql://", id="no address"
        ),
        pytest.param(
            "mongo.open()",
            "MONGODB_URI: not set, for example mongodb://",
            id="no address of MongoDB",
        ),
        pytest.param("postgres.open('postgresql://h/d', workers=0)", "workers: 0", id="no worker"),
        pytest.param("postgres.open('postgresql://h/d', hosts='all')", "hosts: 'all'", id="hosts"),
        pytest.param("mongo.open('mongodb://h', workers=0)", "workers: 0", id="no worker, MongoDB"),
        pytest.param("mongo.open('mongodb://h', max_size=-3)", "max_size: -3", id="a size below 1"),
        pytest.param(
            "mongo.open('mongodb://h', hosts='auto')", "hosts: 'auto'", id="counted hosts"
        ),
        pytest.param("mongo.open('mongodb://h', surge_hosts=-1)", "surge_hosts: -1", id="surge"),
        pytest.param(
            "mongo.open('mongodb://h', max_connections=1.5)", "max_connections: 1.5", id="a half"
        ),
        pytest.param(
            "[postgres.open('postgresql://h/d', workers=number) for number in (1, 2)]",
            "open already with another number of workers",
            id="two numbers of workers for one server",
        ),
    ],
)
def test_what_is_wrong_is_named(call: str, reason: str) -> None:
    """As a ConfigError, at the call."""
    script = (
        "from greenline.patch import patch_all; patch_all()\n"
        "from greenline import mongo, postgres\n"
        "from greenline.errors import ConfigError\n"
        f"try: {call}\n"
        "except ConfigError as error: print(error)\n"
    )
    done = run(["python", "-c", script], {})
    assert reason in done.stdout


@pytest.mark.parametrize(
    ("driver", "room", "extra"),
    [("psycopg2", "postgres", "greenline[postgres]"), ("pymongo", "mongo", "greenline[mongo]")],
)
def test_a_missing_driver_is_one_clear_line(driver: str, room: str, extra: str) -> None:
    """It says which extra to install."""
    script = (
        f"import sys; sys.modules[{driver!r}] = None\n"
        f"from greenline import {room}\n"
        f"try: {room}.open('x')\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    done = run(["python", "-c", script], {})
    assert extra in done.stdout


def test_help_names_the_public_face(databases: Databases) -> None:
    """``help(greenline)`` says what may be used, and each of it can be imported."""
    done = run(["python", "-c", "import greenline; help(greenline)"], {})
    assert "greenline.postgres.open()" in done.stdout
    run(["python", "-c", "from greenline import *; print(postgres.open, mongo.open)"], {})
