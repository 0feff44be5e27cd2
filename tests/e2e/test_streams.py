"""Long lists as lines of JSON: to a slow client, to one that goes, and when something fails."""

import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path

import psycopg2
import pytest
from bson import ObjectId
from pymongo import MongoClient

from app.commands.servers import OneConnection
from app.records import KeyInput
from app.store.keys import Keys
from embedded.mongo import Mongo
from embedded.postgres import Postgres
from tests.helpers.proxy import Proxy
from tests.helpers.support import Databases, Service, run, service, wait_until

REQUEST_TIMEOUT_S = 2.0
STATES, TASKS = 1_600, 30_000
STATE_BYTES = 10_000
PAGE = 100
RCVBUF_BYTES = 262_144
LEAST = {"WEB_CONCURRENCY": "1", "POSTGRES_POOL_SIZE": "1", "MONGODB_MAX_POOL_SIZE": "1"}
SETTINGS = {**LEAST, "AUTH": "on", "REQUEST_TIMEOUT": str(REQUEST_TIMEOUT_S)}


@pytest.fixture(scope="module")
def proxy(mongo: Mongo) -> Iterator[Proxy]:
    """A proxy before MongoDB."""
    with Proxy(("127.0.0.1", mongo.port)) as between:
        yield between


@pytest.fixture(scope="module")
def databases(postgres: Postgres, mongo: Mongo, proxy: Proxy) -> Iterator[Databases]:
    """Databases of this module's own, with a list in each that no socket's buffer holds."""
    name = f"t{os.urandom(6).hex()}"
    with (
        closing(psycopg2.connect(postgres.superuser_url)) as admin,
        MongoClient(mongo.url) as client,
    ):
        admin.autocommit = True
        admin.cursor().execute(f"create database {name} owner greenline")
        url = postgres.url.replace("/greenline?", f"/{name}?")
        made = Databases(url, f"mongodb://127.0.0.1:{proxy.port}/{name}?directConnection=true")
        run(["flask", "db", "upgrade"], made.environ)
        with closing(psycopg2.connect(url)) as conn, conn, conn.cursor() as cursor:
            cursor.execute("insert into agents (name) values ('busy')")
            cursor.execute(
                "insert into tasks (agent_id, title, status)"
                f" select 1, repeat('x', 400) || n, 'done' from generate_series(1, {TASKS}) n"
            )
        client[name].states.insert_many(_state(number) for number in range(STATES))
        yield made
        client.drop_database(name)
        admin.cursor().execute(f"drop database {name} with (force)")


def _state(number: int) -> dict[str, object]:
    moment = ObjectId("6a" + "0" * 22).generation_time
    stamps = {"created_at": moment, "updated_at": moment, "version": 1}
    return {"task_id": 1, "agent_id": number, "data": {"text": "x" * STATE_BYTES}, **stamps}


@pytest.fixture(scope="module")
def key(databases: Databases) -> str:
    return make_key(databases, "tests", "read", "admin")


def make_key(databases: Databases, name: str, *scopes: str) -> str:
    with closing(psycopg2.connect(databases.postgres)) as conn:
        [made] = Keys(OneConnection(conn)).create([KeyInput(name, list(scopes))])  # type: ignore[arg-type]
    return str(json.loads(made.json)["key"])


@pytest.fixture(scope="module")
def running(databases: Databases, key: str) -> Iterator[Service]:
    """One worker with one connection to each database."""
    with service({**databases.environ, **SETTINGS}) as made:
        yield made


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


class Stream:
    """An answer that is read when the test wants it to be; the client's buffer is small."""

    def __init__(self, running: Service, path: str, key: str) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RCVBUF_BYTES)
        self.socket.settimeout(60)
        self.socket.connect(("127.0.0.1", running.port))
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\n"
        self.socket.sendall(f"{head}Authorization: Bearer {key}\r\n\r\n".encode())
        self._response = HTTPResponse(self.socket)
        self._response.begin()
        assert self._response.status == 200

    def first(self) -> bytes:
        return self._response.readline()

    def rest(self) -> int:
        """Read to the end; return how many lines came."""
        lines = 0
        while data := self._response.read(1 << 20):
            lines += data.count(b"\n")
        return lines

    def close(self) -> None:
        """Close with a reset, as a client that is killed does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._response.close()
        self.socket.close()


@contextmanager
def streaming(running: Service, path: str, key: str) -> Iterator[Stream]:
    """A stream whose first line was read: the worker waits for the client."""
    with closing(Stream(running, path, key)) as stream:
        assert stream.first().endswith(b"}\n")
        yield stream


def peak_bytes(running: Service) -> int:
    """Return the most memory that the worker had since :func:`forget_peak`."""
    [pid] = running.workers()
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def forget_peak(running: Service) -> None:
    [pid] = running.workers()
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def test_a_slow_client_holds_no_connection_and_has_no_deadline(running: Service, key: str) -> None:
    """Others are served by the only connection meanwhile; it gets all of it, after its time."""
    with (
        streaming(running, "/states", key) as states,
        streaming(running, "/tasks?order=-title", key) as tasks,
    ):
        started = time.monotonic()
        while time.monotonic() - started < REQUEST_TIMEOUT_S + 0.5:
            for path in ("/states?limit=1", "/tasks?limit=1"):
                assert running.get(path, headers=bearer(key)).status == 200
            time.sleep(0.1)
        assert states.rest() == STATES - 1
        assert tasks.rest() == TASKS - 1


def test_a_stream_takes_the_memory_of_a_page(running: Service, key: str, proxy: Proxy) -> None:
    """However long it is: it is read page by page."""
    running.get("/states?limit=100", headers=bearer(key))
    forget_peak(running)
    before, asked = peak_bytes(running), proxy.asks
    with streaming(running, "/states", key) as stream:
        assert stream.rest() == STATES - 1
    assert peak_bytes(running) - before < STATES * STATE_BYTES * 3 / 4
    assert proxy.asks - asked >= STATES / PAGE


def test_a_stream_ends_when_its_client_goes(running: Service, key: str, proxy: Proxy) -> None:
    """Nothing is read for it any more, and the log has what was sent."""
    asked = proxy.asks
    with streaming(running, "/states?order=-id", key):
        pass
    wait_until(lambda: "GET /states?order=-id" in running.log, "the stream to end")
    assert proxy.asks - asked < STATES / PAGE * 3 / 4
    line = next(line for line in running.log.splitlines() if "GET /states?order=-id" in line)
    assert " 200 " in line


def test_a_revoked_key_ends_its_stream(running: Service, databases: Databases, key: str) -> None:
    """As soon as it is refused elsewhere; the client sees that lines are missing."""
    other = make_key(databases, "revoked", "read")
    with streaming(running, "/tasks", other) as stream:
        found = running.get("/keys?name=revoked", headers=bearer(key)).json["items"]
        assert running.ask("DELETE", f"/keys/{found[0]['id']}", headers=bearer(key)).status == 204
        wait_until(lambda: running.get("/tasks", headers=bearer(other)).status == 401, "the end")
        with pytest.raises((IncompleteRead, ConnectionResetError)):
            stream.rest()


def test_an_error_on_the_way_cuts_the_connection(running: Service, key: str, proxy: Proxy) -> None:
    """Lines are missing for the client; an error before the first line is a problem document."""
    with streaming(running, "/states", key) as stream:
        proxy.refuse()
        with pytest.raises((IncompleteRead, ConnectionResetError)):
            stream.rest()
        wait_until(lambda: "GET /states: the answer was cut: " in running.log, "the log")
        headers = {**bearer(key), "Accept": "application/x-ndjson"}
        answer = running.get("/states", headers=headers)
        assert answer.status in (503, 504)
        assert answer.headers["Content-Type"] == "application/problem+json"
    proxy.pass_on()
    wait_until(lambda: running.get("/states?limit=1", headers=bearer(key)).status == 200, "MongoDB")
