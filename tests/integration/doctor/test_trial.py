"""greenline.doctor.trial: an application that runs, observed, beside gunicorn's own workers."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.support import BIN, environ, free_port, wait_until

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
    start_response("200 OK", [("Content-Type", "text/plain")])
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


def log(folder: Path, *requests: str) -> str:
    (folder / "access.log").write_text("".join(map(LINE.format, requests)))
    return "access.log"


def test_a_replay_finds_what_happens(shop: Path, empty_database: str) -> None:
    """What blocks, what is left behind and how many round trips, each at its line."""
    asked = log(
        shop, "GET /c", "GET /many", "GET /client", "GET /open", "GET /thread", "POST /none"
    )
    options = ("shop:app", "--replay", asked, "--seconds", "2", "--clients", "4")
    found = result(doctor(shop, *options, DATABASE_URL=empty_database))
    assert ("GL401", 20) in codes(found)
    assert {code for code, _ in codes(found)} >= {"GL403", "GL404", "GL406", "GL407"}
    # The client that is made at import is none.
    assert [line for code, line in codes(found) if code == "GL403"] == [15, 30]
    assert "answers a second" in found["verdict"]


def test_waits_that_yield_are_ready(shop: Path) -> None:
    """A wait that the worker has patched is no finding, and is served faster than by threads."""
    asked = log(shop, "GET /python")
    options = ("shop:app", "--replay", asked, "--seconds", "2")
    found = result(doctor(shop, *options))
    assert [code for code, _ in codes(found) if code in ("GL401", "GL410")] == []
    assert found["verdict"].startswith("Ready."), found["findings"]
    ratio = float(found["verdict"].partition("which are ")[2].partition(" x")[0])
    assert ratio > 1.5


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
    found = result(doctor(shop, "--run", f"{sys.executable} checks.py"))
    assert ("GL410", 0) in codes(found)


@pytest.mark.parametrize("client", CLIENTS)
def test_the_requests_of_test_clients_are_observed(
    shop: Path, empty_database: str, client: str
) -> None:
    """As those of a worker; what a test does itself belongs to none of them."""
    (shop / "checks.py").write_text(
        f"import shop\n{CLIENTS[client]}"
        "shop.work('/many')\n"
        "for path in ('/many', '/open', '/client', *['/thread'] * 5):\n"
        "    ask(path)\n"
    )
    expected = {
        ("GL403", 15, "2 times"), ("GL403", 30, "1 time"), ("GL404", 15, "1 time"),
        ("GL405", 15, "1 time"), ("GL406", 0, "/many: 42 round trips"),
        ("GL407", 0, "5 of 8 requests"),
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


def test_traffic_of_ones_own(shop: Path) -> None:
    """Until Ctrl-C; then it says what was seen."""
    port = free_port()
    running = doctor(shop, "shop:app", "--serve", "--bind", f"127.0.0.1:{port}")
    url = f"http://127.0.0.1:{port}"
    ask = ["curl", "-s", "-o", os.devnull, f"{url}/c"]
    wait_until(lambda: subprocess.run(ask, check=False).returncode == 0, "an answer")
    for _ in range(3):
        subprocess.run(ask, check=True)
    assert running.stderr is not None
    running.stderr.readline()  # where it serves: it handles Ctrl-C from now on
    running.send_signal(signal.SIGINT)
    found = result(running)
    assert ("GL401", 20) in codes(found)
    assert found["verdict"].startswith(("Ready after", "Not for green threads"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--run", "no-such-program -x"), "no-such-program: No such file or directory"),
        (("missing:app", "--serve"), "gunicorn does not serve: "),
        (("--run", f"{sys.executable} -c 'import os; os._exit(0)'"), "nothing was observed"),
        (("shop:app", "--replay", "shop.py"), "shop.py: no line has a GET"),
    ],
    ids=["no program", "no application", "no end", "no log"],
)
def test_what_cannot_run_is_one_finding(shop: Path, options: tuple[str, ...], reason: str) -> None:
    """And the rest is reported all the same."""
    more = {"--bind": f"127.0.0.1:{free_port()}"} if "--serve" in options else {}
    found = result(doctor(shop, *options, *(word for pair in more.items() for word in pair)))
    (finding,) = (each for each in found["findings"] if each["code"] == "GL411")
    assert reason in finding["what"]
    assert found["lines"]
