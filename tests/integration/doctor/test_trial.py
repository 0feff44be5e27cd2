"""greenline.doctor.trial: an application that runs, observed, beside gunicorn's own workers."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.compatibility_servers import mariadb
from embedded.redis import Redis
from greenline.doctor import serving, trial
from greenline.doctor.serving import TrialError
from greenline.doctor.trial import Request
from greenline.errors import ConfigError
from tests.helpers.forms import in_the_long_form, some
from tests.helpers.support import BIN, CHECKOUT, IS_LONG, environ, free_port, wait_until

SHOP = """\
import ctypes
import os
import threading
import time
from contextlib import closing

import psycopg2
from pymongo import MongoClient

kept = []
shared = MongoClient("mongodb://127.0.0.1:9/?timeoutMS=999", connect=False)


def connect():
    return psycopg2.connect(os.environ["DATABASE_URL"])


def work(path):
    if path == "/c":
        ctypes.CDLL(None).usleep(100_000)
    elif path == "/many":
        with closing(connect()) as conn, conn.cursor() as cursor:
            for _ in range(40):
                cursor.execute("select 1")
    elif path == "/open":
        kept.append(connect())
        kept[-1].cursor().execute("select 1")
        del kept[:-1]
    elif path == "/client":
        MongoClient("mongodb://127.0.0.1:9/?timeoutMS=999", connect=False).close()
    elif path == "/thread":
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    else:
        time.sleep(0.1)


def app(environ, start_response):
    work(environ["PATH_INFO"])
    asked = environ.get("HTTP_HOST")
    is_ours = asked == os.environ.get("SHOP_HOST", asked)
    start_response("200 OK" if is_ours else "400 Bad", [("Content-Type", "text/plain")])
    return [b"done"]
"""
CLIENTS = {
    "werkzeug": "from werkzeug.test import Client\nask = Client(shop.app).get\n",
    "webtest": "from webtest import TestApp\nask = TestApp(shop.app).get\n",
    "django.test": """\
import django
from django.conf import settings
from django.http import HttpResponse
from django.test import Client
from django.urls import re_path

def view(request):
    shop.work(request.path)
    return HttpResponse("done")

urlpatterns = [re_path("", view)]
settings.configure(ROOT_URLCONF="__main__", ALLOWED_HOSTS=["*"])
django.setup()
ask = Client().get
""",
}
REFUSED = 7  # the status of curl
LINE = '192.0.2.1 - - [25/Nov/2026:10:00:00 +0000] "{} HTTP/1.1" 200 4\n'


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """An application in a folder."""
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def doctor(folder: Path, *options: str, **more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [BIN / "greenline", "doctor", *options, "--json"],
        cwd=folder,
        env=environ({"GREENLINE_BLOCKED_HUB_MS": "0", **more}),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def result(running: "subprocess.Popen[str]") -> dict[str, Any]:
    printed, errors = running.communicate(timeout=120)
    assert printed, errors
    return dict(json.loads(printed))


def codes(document: dict[str, Any]) -> list[tuple[str, int]]:
    return sorted((each["code"], each["line"]) for each in document["findings"])


def of_connections(document: dict[str, Any]) -> list[tuple[str, int, str]]:
    return sorted(
        (each["code"], each["line"], each["what"].partition(": ")[0])
        for each in document["findings"]
        if each["code"] in {"GL403", "GL404", "GL405", "GL406"}
    )


def log(folder: Path, *requests: str) -> str:
    (folder / "access.log").write_text("".join(map(LINE.format, requests)))
    return "access.log"


def test_a_replay_finds_what_happens(shop: Path, empty_database: str) -> None:
    """What blocks, what is left behind and how many round trips, each at its line."""
    asked = log(
        shop, "GET /c", "GET /many", "GET /client", "GET /open", "GET /thread", "POST /none"
    )
    options = ("--seconds", "2", "--clients", "4", "--host", "shop.example")
    more = {"DATABASE_URL": empty_database, "SHOP_HOST": "shop.example"}
    found = result(doctor(shop, "shop:app", "--replay", asked, *options, **more))
    assert ("GL401", 20) in codes(found)
    assert 20 in [each["line"] for each in found["blocks"] if each["waits"]]
    assert {code for code, _ in codes(found)} >= {"GL403", "GL404", "GL406", "GL407"}
    # The client that is made at import is none.
    assert [line for code, line in codes(found) if code == "GL403"] == [15, 30]
    assert "answers a second" in found["verdict"]


def test_waits_that_yield_are_ready(shop: Path) -> None:
    """A wait that the worker has patched is no finding, and is served faster than by threads.

    Which are no threads of the sync worker: those of the configuration would make it gthread.
    """
    asked = log(shop, "GET /python")
    options = ("shop:app", "--replay", asked, "--seconds", "2")
    found = result(doctor(shop, *options, GUNICORN_CMD_ARGS="--threads 8"))
    assert [code for code, _ in codes(found) if code in ("GL401", "GL410")] == []
    assert found["verdict"].startswith("Ready."), found["findings"]
    by_threads, by_sync = map(float, re.findall(r"([\d.]+) x", found["verdict"]))
    assert by_sync > 3 * by_threads > 4.5


@in_the_long_form
def test_tests_run_twice(shop: Path) -> None:
    """What they wait for below Python is found; those that fail when patched are an error."""
    (shop / "checks.py").write_text(
        "import shop, time\nfor _ in range(3):\n    shop.work('/c')\n    time.sleep(0.02)\n"
        "import threading\nassert 'gevent' not in str(threading.Event)\n"
    )
    found = result(doctor(shop, "--run", f"{sys.executable} checks.py"))
    assert ("GL401", 20) in codes(found)
    assert "Its tests take" in found["verdict"]
    (shop / "checks.py").write_text("import sys; sys.exit('gevent' in sys.modules)\n")
    # They run in the folder that is read.
    found = result(doctor(shop.parent, shop.name, "--run", f"{sys.executable} checks.py"))
    assert ("GL410", 0) in codes(found)


def test_pytest_is_run(shop: Path) -> None:
    """With its fixtures and its rewritten assertions; what a request waits for is found."""
    (shop / "conftest.py").write_text(
        "import pytest, shop\nfrom werkzeug.test import Client\n\n\n"
        "@pytest.fixture\ndef client():\n    return Client(shop.app)\n"
    )
    (shop / "test_shop.py").write_text(
        "def test_c(client):\n"
        "    assert [client.get('/c').text for _ in range(3)] == ['done'] * 3\n"
    )
    found = result(doctor(shop, "--run", f"{sys.executable} -m pytest -x -q"))
    assert ("GL401", 20) in codes(found)
    assert "Its tests take" in found["verdict"]
    assert not found["verdict"].startswith("No request was seen")


@pytest.mark.parametrize("client", some(list(CLIENTS)))
def test_the_requests_of_test_clients_are_observed(
    shop: Path, empty_database: str, client: str
) -> None:
    """As those of a worker; what a test does itself belongs to none of them."""
    (shop / "checks.py").write_text(
        f"import shop\n{CLIENTS[client]}"
        "shop.work('/many')\n"
        "for path in ('/many', '/open', '/client', '/client', *['/thread'] * 5):\n"
        "    ask(path)\n"
    )
    expected = {
        ("GL403", 15, "2 times"), ("GL403", 30, "2 times"), ("GL404", 15, "1 time"),
        ("GL405", 15, "1 time"), ("GL406", 0, "/many: 41 round trips"),
        ("GL407", 0, "5 of 9 requests"),
    }  # fmt: skip
    command = f"{sys.executable} checks.py"
    found = result(doctor(shop, "--run", command, DATABASE_URL=empty_database))
    observed = {
        (each["code"], each["line"], each["what"])
        for each in found["findings"]
        # The others are about time, of which a busy machine takes more.
        if each["code"] in {code for code, *_ in expected}
    }
    assert observed == expected


PSYCOPG = "psycopg[binary]==3.3.9"  # Django would use it in all tests if it were in requirements
OTHER_DRIVERS = """\
import os
import psycopg
import redis
from werkzeug.test import Client

kept = []
once = []


def work(path):
    if path == "/many":
        with psycopg.connect(os.environ["DATABASE_URL"]) as conn:
            for _ in range(40):
                conn.execute("select 1")
    elif path == "/open":
        kept.append(psycopg.connect(os.environ["DATABASE_URL"]))
        kept[-1].execute("select 1")
    elif path == "/redis":
        with redis.Redis(port=int(os.environ["REDIS_PORT"])) as client:
            client.get("x")
    else:
        once[:] = once or [redis.Redis(port=int(os.environ["REDIS_PORT"]))]
        for _ in range(50):
            once[0].get("x")


def app(environ, start_response):
    work(environ["PATH_INFO"])
    start_response("200 OK", [])
    return []


for path in ("/many", "/open", "/redis", "/redis", "/gets", "/gets"):
    Client(app).get(path)
"""


@in_the_long_form
def test_other_drivers_are_observed(
    shop: Path, empty_database: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """psycopg 3 and redis-py; a client that the first request makes is there for all of them."""
    libraries = str(tmp_path_factory.mktemp("libraries"))
    uv = [BIN / "uv", "pip", "install", "--quiet", "--target", libraries, PSYCOPG]
    if subprocess.run(uv, timeout=90).returncode:
        pytest.skip(f"{PSYCOPG} cannot be installed here")
    (shop / "checks.py").write_text(OTHER_DRIVERS)
    command = f"{sys.executable} checks.py"
    with Redis() as server:
        more = {"PYTHONPATH": libraries, "REDIS_PORT": str(server.port)}
        found = result(doctor(shop, "--run", command, DATABASE_URL=empty_database, **more))
    assert of_connections(found) == [
        ("GL403", 12, "1 time"), ("GL403", 16, "1 time"), ("GL403", 19, "2 times"),
        ("GL404", 16, "1 time"), ("GL405", 16, "1 time"), ("GL406", 0, "/gets"),
        ("GL406", 0, "/many"),
    ]  # fmt: skip


OF_DJANGO = """\
import os

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.http import HttpResponse
from django.urls import re_path
from psycopg2.extensions import parse_dsn
from werkzeug.test import Client

given = parse_dsn(os.environ["DATABASE_URL"])
database = {
    "ENGINE": os.environ["ENGINE"], "NAME": given["dbname"], "HOST": given["host"],
    "PORT": given["port"], "USER": given["user"], "CONN_MAX_AGE": int(os.environ["MAX_AGE"]),
}
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], DATABASES={"default": database})


def view(request):
    with connection.cursor() as cursor:
        cursor.execute("select 1")
    return HttpResponse("done")


urlpatterns = [re_path("", view)]
client = Client(get_wsgi_application())
for path in ("/one", "/two"):
    assert client.get(path).status_code == 200
"""
ENGINE = "django.db.backends.postgresql"


@pytest.mark.parametrize(
    ("engine", "max_age", "more", "expected"),
    some(
        [
            (ENGINE, "0", {}, ["Django, whose CONN_MAX_AGE is 0: 2 times"]),
            (ENGINE, "60", {}, []),
            (ENGINE, "0", {"GREENLINE_POOL": "1"}, []),
            ("greenline.django.postgresql", "0", {"PYTHONPATH": str(CHECKOUT)}, []),
        ]
    ),
)
def test_django_that_connects_in_each_request(
    engine: str,
    max_age: str,
    more: dict[str, str],
    expected: list[str],
    tmp_path: Path,
    empty_database: str,
) -> None:
    """It is a remark: nothing is left open."""
    (tmp_path / "checks.py").write_text(OF_DJANGO)
    more = {"DATABASE_URL": empty_database, "ENGINE": engine, "MAX_AGE": max_age, **more}
    found = result(doctor(tmp_path, "--run", f"{sys.executable} checks.py", **more))
    connects = [each for each in found["findings"] if each["code"] == "GL403"]
    assert [each["what"] for each in connects] == expected
    assert {each["level"] for each in connects} <= {"remark"}
    assert found["verdict"].startswith("Ready.")


PYMYSQL = "PyMySQL==1.2.4"
OF_MARIADB = """\
import os
import pymysql
from werkzeug.test import Client

host, _, port = os.environ["MARIADB"].rpartition(":")
kept = []


def connect():
    return pymysql.connect(host=host, port=int(port), user="greenline")


def app(environ, start_response):
    if environ["PATH_INFO"] == "/many":
        with connect() as conn, conn.cursor() as cursor:
            for _ in range(40):
                cursor.execute("select 1")
    else:
        kept.append(connect())
        kept[-1].begin()
    start_response("200 OK", [])
    return []


for path in ("/many", "/open"):
    Client(app).get(path)
"""


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 downloads MariaDB")
def test_pymysql_is_observed(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its connections, its transactions and its round trips."""
    libraries = str(tmp_path_factory.mktemp("libraries"))
    uv = [BIN / "uv", "pip", "install", "--quiet", "--target", libraries, PYMYSQL]
    subprocess.run(uv, check=True, timeout=90)
    (shop / "checks.py").write_text(OF_MARIADB)
    command = f"{sys.executable} checks.py"
    with mariadb() as address:
        more = {"PYTHONPATH": libraries, "MARIADB": address}
        found = result(doctor(shop, "--run", command, **more))
    assert of_connections(found) == [
        ("GL403", 10, "2 times"), ("GL404", 10, "1 time"), ("GL405", 10, "1 time"),
        ("GL406", 0, "/many"),
    ]  # fmt: skip


POOLS = """\
import os
import psycopg2
from psycopg2.pool import SimpleConnectionPool, ThreadedConnectionPool
from sqlalchemy import create_engine, text
from werkzeug.test import Client

url = os.environ["DATABASE_URL"]
simple, threaded = SimpleConnectionPool(0, 5, url), ThreadedConnectionPool(0, 5, url)
engine = create_engine("postgresql+psycopg2://", creator=lambda: psycopg2.connect(url))
kept = []


def app(environ, start_response):
    if environ["PATH_INFO"] == "/leak":
        kept.append(simple.getconn())
        kept.append(threaded.getconn())
        kept.append(engine.connect())
    else:
        simple.putconn(simple.getconn())
        threaded.putconn(threaded.getconn())
        with engine.connect() as conn:
            conn.execute(text("select 1"))
    start_response("200 OK", [])
    return []


for path in ("/", "/leak", "/leak", "/"):
    Client(app).get(path)
"""


def test_what_is_not_given_back_to_a_pool_is_found(shop: Path, empty_database: str) -> None:
    """At the line that has got it; an idle connection of a pool is none."""
    (shop / "checks.py").write_text(POOLS)
    command = f"{sys.executable} checks.py"
    found = result(doctor(shop, "--run", command, DATABASE_URL=empty_database))
    left = [each for each in found["findings"] if each["code"] == "GL404"]
    assert sorted((each["line"], each["what"]) for each in left) == [
        (line, "2 times") for line in (15, 16, 17)
    ]


def test_requests_that_do_nothing_wrong(shop: Path, empty_database: str) -> None:
    """A connection of a pool, a committed transaction, a thread that ends; and the tests pass."""
    (shop / "good.py").write_text(
        "import os, threading, time\n"
        "from psycopg2.pool import SimpleConnectionPool\n"
        "pool = SimpleConnectionPool(1, 1, os.environ['DATABASE_URL'])\n"
        "def app(environ, start_response):\n"
        "    conn = pool.getconn()\n"
        "    with conn, conn.cursor() as cursor:\n"
        "        cursor.execute('select 1')\n"
        "    pool.putconn(conn)\n"
        "    thread = threading.Thread(target=time.sleep, args=(0.01,))\n"
        "    thread.start()\n"
        "    thread.join()\n"
        "    start_response('200 OK', [])\n"
        "    return [b'done']\n"
    )
    (shop / "checks.py").write_text(
        "import good\nfrom werkzeug.test import Client\n"
        "for _ in range(10):\n    Client(good.app).get('/')\n"
    )
    command = f"{sys.executable} checks.py"
    found = result(doctor(shop, "--run", command, DATABASE_URL=empty_database))
    wrong = {f"GL{number}" for number in (403, 404, 405, 406, 407, 410, 411)}
    assert [each for each in found["findings"] if each["code"] in wrong] == []


@in_the_long_form
def test_what_a_test_holds_itself_is_not_the_applications(shop: Path, empty_database: str) -> None:
    """The context of a request, which closes its connection later, and a transaction."""
    (shop / "checks.py").write_text(
        "import shop\n"
        "from flask import Flask, g\n"
        "app = Flask(__name__)\n"
        "app.teardown_appcontext(lambda error: g.conn.close())\n"
        "@app.get('/')\n"
        "def index():\n"
        "    g.conn = shop.connect()\n"
        "    return ''\n"
        "own = shop.connect()\n"
        "own.cursor().execute('select 1')\n"
        "with app.test_client() as client:\n"
        "    client.get('/')\n"
        "own.close()\n"
    )
    command = f"{sys.executable} checks.py"
    found = result(doctor(shop, "--run", command, DATABASE_URL=empty_database))
    assert {code for code, _ in codes(found)} & {"GL403", "GL404", "GL405"} == {"GL403"}


OVERLAPPING = """\
import os
from greenline.patch import patch_all
patch_all()
import gevent, psycopg2
from gevent.event import Event
from greenline.doctor.observer import Observer
from greenline.hub import request_end

observer = Observer()
observer.start()
url = os.environ["DATABASE_URL"]
kept, pooled, made = psycopg2.connect(url), psycopg2.connect(url), []
ends = {name: Event() for name in ("long", "takes over")}

def app(environ, start_response):
    name = environ["PATH_INFO"]
    conn = {"forgets": kept, "makes": made}.get(name, pooled)
    if name == "makes":
        conn.append(psycopg2.connect(url))  # in a request
        conn = conn[0]
    if name != "long":
        conn.cursor().execute("select 1")
    if name == "passes on":
        conn.rollback()
        others["takes over"] = gevent.spawn(serve, "takes over")
        while conn.status != psycopg2.extensions.STATUS_BEGIN:
            gevent.sleep(0.01)
    elif name in ends:
        ends[name].wait()
    if name == "takes over":
        conn.rollback()

def serve(name):
    observer.requests(app)({"PATH_INFO": name}, None)
    request_end.run()

others = {"long": gevent.spawn(serve, "long")}
for name in ("forgets", "makes", "passes on"):
    gevent.spawn(serve, name).join()
kept.rollback()
made[0].rollback()
for name, ended in ends.items():
    ended.set()
    others[name].join()
for place, count in observer.stop().connections.in_transaction.items():
    print(place.rpartition(":")[2], count)
"""


@pytest.mark.parametrize("pool", ["0", "1"], ids=["connections", "checkouts"])
def test_a_transaction_is_looked_for_at_the_end_of_its_request(
    tmp_path: Path, empty_database: str, pool: str
) -> None:
    """While another request is in progress, and not on a connection that another one has got."""
    (tmp_path / "overlapping.py").write_text(OVERLAPPING)
    done = subprocess.run(
        [sys.executable, "overlapping.py"],
        cwd=tmp_path, env=environ(
            {"DATABASE_URL": empty_database, "PYTHONPATH": str(CHECKOUT), "GREENLINE_POOL": pool}
        ),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    lines = OVERLAPPING.splitlines()
    kept, made = (
        next(number for number, line in enumerate(lines, 1) if text in line)
        for text in ("kept, pooled, made =", "in a request")
    )
    # The one that is made before is found by its round trips, which a checkout does not make.
    expected = [f"{kept} 1", f"{made} 1"] if pool == "0" else [f"{made} 1"]
    assert done.stdout.splitlines() == expected, done.stderr


def test_traffic_of_ones_own(shop: Path) -> None:
    """Until Ctrl-C, or SIGTERM; then gunicorn has ended, and it says what was seen."""
    port = free_port()
    running = doctor(shop, "shop:app", "--serve", "--bind", f"127.0.0.1:{port}")
    url = f"http://127.0.0.1:{port}"
    ask = ["curl", "-s", "-o", os.devnull, f"{url}/c"]
    wait_until(lambda: subprocess.run(ask, check=False).returncode == 0, "an answer")
    for _ in range(3):
        subprocess.run(ask, check=True)
    assert running.stderr is not None
    running.stderr.readline()  # where it serves: it handles signals from now on
    running.send_signal(signal.SIGTERM)
    found = result(running)
    assert subprocess.run(ask, check=False).returncode == REFUSED
    assert ("GL401", 20) in codes(found)
    assert found["verdict"].startswith(("Ready after", "Not for green threads"))


@pytest.mark.parametrize(
    ("options", "reason"),
    some(
        [
            (("--run", "no-such-program -x"), "no-such-program: No such file or directory"),
            (("missing:app", "--serve"), "gunicorn does not serve: "),
            (("--run", f"{sys.executable} -c 'import os; os._exit(0)'"), "nothing was observed"),
            (("shop:app", "--replay", "shop.py"), "shop.py: no line has a GET"),
        ],
        2,
    ),
    ids=some(["no program", "no application", "no end", "no log"], 2),
)
def test_what_cannot_run_is_one_finding(shop: Path, options: tuple[str, ...], reason: str) -> None:
    """And the rest is reported all the same."""
    more = {"--bind": f"127.0.0.1:{free_port()}"} if "--serve" in options else {}
    found = result(doctor(shop, *options, *(word for pair in more.items() for word in pair)))
    (finding,) = (each for each in found["findings"] if each["code"] == "GL411")
    assert reason in finding["what"]
    assert found["lines"]


def test_a_port_in_use_is_named(shop: Path) -> None:
    """In place of the application another server would answer."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        bind = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(TrialError, match=rf"cannot listen on {bind}: .*in use"):
            trial.serve("shop:app", shop, bind)


def test_no_other_program_gets_the_port_of_a_gunicorn_that_starts(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a moment to listen there."""
    port, start, refused = serving.free_port(), subprocess.Popen, list[int]()

    def start_where_another_wants_the_port(*given: Any, **more: Any) -> Any:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        refused.append(port)
        return start(*given, **more)

    monkeypatch.setattr(subprocess, "Popen", start_where_another_wants_the_port)
    with serving.serving("shop:app", shop, f"127.0.0.1:{port}", [], {}):
        assert refused == [port]


def test_a_daemon_is_refused(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on after the doctor."""
    monkeypatch.setenv("GUNICORN_CMD_ARGS", "--threads 2 --daemon")
    with pytest.raises(TrialError, match="GUNICORN_CMD_ARGS has --daemon"):
        trial.serve("shop:app", shop, f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("GUNICORN_CMD_ARGS", "-c 'no end")
    with pytest.raises(ConfigError, match="GUNICORN_CMD_ARGS: No closing quotation"):
        trial.serve("shop:app", shop, f"127.0.0.1:{free_port()}")


def test_the_reason_is_named_and_not_how_gunicorn_ends(shop: Path) -> None:
    """Gunicorn logs more after it."""
    for target, reason in (
        ("shop:nope", "Failed to find attribute 'nope' in 'shop'"),
        ("nothing:app", "No module named 'nothing'"),
    ):
        with pytest.raises(TrialError, match=reason):
            trial.serve(target, shop, f"127.0.0.1:{free_port()}")


def test_a_gunicorn_that_ends_is_no_trial(shop: Path) -> None:
    """The doctor ends as well, and says what gunicorn has logged at last."""
    (shop / "ends.py").write_text(
        "import os, signal\n"
        "def app(environ, start_response):\n"
        "    os.kill(os.getppid(), signal.SIGTERM)\n"
        "    start_response('200 OK', [])\n"
        "    return [b'done']\n"
    )
    with pytest.raises(TrialError, match=r"gunicorn has ended: .*Shutting down: Master"):
        trial.serve("ends:app", shop, f"127.0.0.1:{free_port()}")


def test_what_is_replayed_of_a_log() -> None:
    """Each GET that was answered, with the status that it has without a condition or a range."""
    statuses = (200, 206, 304, 302, 404, 499, 500, 503)
    lines = [f'::1 - - [-] "GET /{each} HTTP/1.1" {each} 5 "-" "curl"' for each in statuses]
    lines.append('::1 - - [-] "POST / HTTP/1.1" 200 5')
    assert trial.read_log("\n".join(lines)) == [
        Request("/200", 200), Request("/206", 200), Request("/304", 200), Request("/302", 302),
        Request("/404", 404),
    ]  # fmt: skip
