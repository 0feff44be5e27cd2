"""
Libraries whose waits REQUEST_TIMEOUT ends at random moments keep their places and their answers.

Each is used by more greenlets than its pool has places, and each call asks for something of its
own: a connection that comes back with the answer to another call is noticed. A short form runs
always; ``GREENLINE_LONG_TESTS=1`` interrupts each a thousand times.
"""

import gc
import logging
import queue
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import gevent.event
import psycopg2
import pymongo
import pytest
import requests
import sqlalchemy
import urllib3
from gevent.pywsgi import WSGIServer
from psycopg2.pool import ThreadedConnectionPool
from requests.adapters import HTTPAdapter

from embedded.postgres import Postgres
from embedded.redis import Redis
from greenline.errors import ConfigError
from greenline.hub import request_timeout
from greenline.hub.request_timeout import RequestTimeout, RequestTimeouts
from tests.helpers.support import IS_LONG, wait_until
from tests.helpers.watch import statements

INTERRUPTIONS = 1_000 if IS_LONG else 100
PLACES, GREENLETS = 5, 8
LIMIT_S = 150
REQUEST = SimpleNamespace(method="GET", path="/")

Call = Callable[[int], object]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the requests every three milliseconds, so that the first wait is often cut."""
    monkeypatch.setattr(request_timeout, "TIMEOUT_SWEEP_S", 0.003)
    monkeypatch.setattr(request_timeout, "GRACE_S", 0.02)


def interrupt(call: Call) -> None:
    """
    Make *call* from several greenlets at once until it was interrupted often enough.

    It returns the number that it is given. What is interrupted raises RequestTimeout in the end, or
    has been answered when it tried again; nothing else is raised.
    """
    log = logging.Logger("interruptions")
    log.addHandler(logging.NullHandler())
    timeouts = RequestTimeouts(0.001, log)
    count = {"interrupted": 0, "answered": 0, "next": 0}

    def respond(
        application: Any, environ: Any, response: Any, started: float, request: Any
    ) -> None:
        number = environ["number"]
        try:
            assert application(environ, None) == number
        finally:
            count["interrupted"] += application.thrown is not None

    def application(environ: Any, start_response: Any) -> object:
        return call(environ["number"])

    limited = timeouts.limited(respond)

    def work() -> None:
        while count["interrupted"] < INTERRUPTIONS:
            number = count["next"] = count["next"] + 1
            response = SimpleNamespace(sent=0, headers_sent=False, status_code=None)
            gevent.sleep(random.uniform(0, 0.002))
            try:
                limited(application, {"number": number}, response, time.monotonic(), REQUEST)
                count["answered"] += 1
            except RequestTimeout:
                pass

    workers: list[gevent.Greenlet[..., None]] = []
    timeouts.start()
    # A record of a library's log would keep an error, and with it a socket.
    logging.disable()
    try:
        # A third or fourth try may be interrupted while it connects. Libraries close that socket
        # after an OSError alone, and leave it to the collector otherwise.
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            workers = [gevent.spawn(work) for _ in range(GREENLETS)]
            gevent.joinall(workers, timeout=LIMIT_S, raise_error=True)
            gc.collect()
        assert all(worker.successful() for worker in workers), f"it hangs: {count}"
    finally:
        logging.disable(logging.NOTSET)
        timeouts.stop()
        gevent.killall(workers)
    assert count["interrupted"] >= INTERRUPTIONS


def call_side_by_side(call: Call, times: int = PLACES) -> None:
    """Make *call* as often as there are places, at once; each returns its own number."""
    calls = [gevent.spawn(call, -number) for number in range(1, times + 1)]
    gevent.joinall(calls, timeout=40, raise_error=True)
    assert [one.value for one in calls] == [-number for number in range(1, times + 1)]


@pytest.fixture(scope="module")
def http_port() -> Iterator[int]:
    """A server that answers with the path, after up to six milliseconds."""

    def echo(environ: Any, start_response: Any) -> list[bytes]:
        gevent.sleep(random.uniform(0, 0.006))
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [environ["PATH_INFO"].encode()]

    server = WSGIServer(("127.0.0.1", 0), echo, log=None, error_log=None)
    server.start()
    yield server.server_port
    server.stop(timeout=1)


@pytest.fixture(scope="module")
def redis_port() -> Iterator[int]:
    """A redis-server."""
    try:
        with Redis() as server:
            yield server.port
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("is_blocking", [True, False], ids=["blocking", "growing"])
@pytest.mark.parametrize("retries", [False, None], ids=["once", "retries"])
def test_urllib3(http_port: int, is_blocking: bool, retries: bool | None) -> None:
    """The pool has all its places, no more, and each can be used."""
    pool = urllib3.HTTPConnectionPool("127.0.0.1", http_port, maxsize=PLACES, block=is_blocking)

    def call(number: int) -> int:
        return int(pool.request("GET", f"/{number}", retries=retries).data[1:])

    interrupt(call)
    assert pool.pool is not None
    assert pool.pool.qsize() == PLACES
    call_side_by_side(call)
    assert pool.pool.qsize() == PLACES
    pool.close()


def test_requests(http_port: int) -> None:
    """A session of which all greenlets make use, with a pool of ten that blocks."""
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(pool_maxsize=10, pool_block=True))

        def call(number: int) -> int:
            return int(session.get(f"http://127.0.0.1:{http_port}/{number}", timeout=20).text[1:])

        interrupt(call)
        call_side_by_side(call, times=10)


@pytest.mark.parametrize("is_blocking", [True, False], ids=["blocking", "refusing"])
def test_redis(redis_port: int, is_blocking: bool) -> None:
    """No connection stays in use, and no answer is left over in one."""
    redis = pytest.importorskip("redis")
    kind = redis.BlockingConnectionPool if is_blocking else redis.ConnectionPool
    places = PLACES if is_blocking else GREENLETS
    pool = kind(host="127.0.0.1", port=redis_port, max_connections=places)
    client = redis.Redis(connection_pool=pool)

    def call(number: int) -> int:
        key = f"list of {number}"
        client.rpush(key, number)
        client.blpop("empty", timeout=0.004)
        return int(client.blpop(key)[1])

    interrupt(call)
    call_side_by_side(call)
    assert is_blocking or not pool._in_use_connections
    client.close()
    pool.disconnect()


def test_sqlalchemys_pool(postgres: Postgres) -> None:
    """Nothing stays checked out."""
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg2://", creator=lambda: psycopg2.connect(postgres.url),
        pool_size=PLACES - 2, max_overflow=2, pool_timeout=20,
    )  # fmt: skip
    text = sqlalchemy.text("select pg_sleep(0.003), :number")

    def call(number: int) -> object:
        with engine.begin() as conn:
            return conn.execute(text, {"number": number}).one()[1]

    interrupt(call)
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    call_side_by_side(call)
    engine.dispose()
    wait_until(lambda: not statements(postgres, "pg_sleep"), "the statements to end")


def test_psycopg2(postgres: Postgres) -> None:
    """psycopg2's own pool; no statement goes on in the server."""
    pool = ThreadedConnectionPool(1, GREENLETS, postgres.url)

    def call(number: int) -> object:
        conn = pool.getconn()
        try:
            with conn, conn.cursor() as cursor:
                cursor.execute("select pg_sleep(%s), %s", (random.uniform(0, 0.01), number))
                return cursor.fetchone()[1]
        finally:
            pool.putconn(conn)

    interrupt(call)
    assert pool._used == {}
    call_side_by_side(call, times=GREENLETS)
    pool.closeall()
    wait_until(lambda: not statements(postgres, "pg_sleep"), "the statements to end")


def test_psycopg2_gives_back_while_others_connect(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool is locked for the time of a connect; a connection comes back late, but does."""
    monkeypatch.setattr(request_timeout, "TIMEOUT_SWEEP_S", 0.01)
    timeouts = RequestTimeouts(0.2, logging.getLogger("test"))
    pool = ThreadedConnectionPool(1, GREENLETS, postgres.url)
    has_connection, is_locked = gevent.event.Event(), gevent.event.Event()

    def connect() -> None:
        has_connection.wait()
        with pool._lock:
            is_locked.set()
            gevent.sleep(0.6)

    def application(environ: Any, start_response: Any) -> None:
        conn = pool.getconn()
        try:
            has_connection.set()
            is_locked.wait()
        finally:
            pool.putconn(conn)

    connecting = gevent.spawn(connect)
    timeouts.start()
    try:
        response = SimpleNamespace(sent=0, headers_sent=False, status_code=None)
        limited = timeouts.limited(lambda call, environ, *_: call(environ, None))
        limited(application, {}, response, time.monotonic(), REQUEST)
    finally:
        timeouts.stop()
        connecting.get()
    assert pool._used == {}
    pool.closeall()


def test_pymongo(empty_mongo: str) -> None:
    """No operation stays counted, and each place of the pool can be used."""
    client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(
        empty_mongo, maxPoolSize=PLACES, waitQueueTimeoutMS=20_000
    )
    collection = client.get_default_database()["numbers"]

    def call(number: int) -> object:
        collection.insert_one({"_id": number})
        return (collection.find_one({"_id": number}) or {})["_id"]

    call(0)
    interrupt(call)
    (server,) = client._topology._servers.values()
    wait_until(lambda: (server.pool.active_sockets, server.pool.requests) == (0, 0), "the end")
    call_side_by_side(call)
    client.close()


@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock], ids=["Lock", "RLock"])
def test_a_lock(kind: Callable[[], Any]) -> None:
    """It is held by one at a time, and by none in the end."""
    lock, inside = kind(), 0

    def call(number: int) -> int:
        nonlocal inside
        with lock:
            inside += 1
            assert inside == 1
            try:
                time.sleep(random.uniform(0, 0.004))
                return number
            finally:
                inside -= 1

    interrupt(call)
    call_side_by_side(call)
    assert lock.acquire(timeout=1)
    lock.release()


def test_a_condition() -> None:
    """A wait that fails has its lock back, as the block around it expects."""
    condition, inside = threading.Condition(threading.Lock()), 0

    def call(number: int) -> int:
        nonlocal inside
        with condition:
            condition.wait(random.uniform(0, 0.004))
            inside += 1
            assert inside == 1
            try:
                time.sleep(random.uniform(0, 0.001))
            finally:
                inside -= 1
            condition.notify()
        return number

    interrupt(call)
    call_side_by_side(call)


def test_a_queue() -> None:
    """What was put is there, once."""
    places = queue.Queue[int](PLACES)
    for place in range(PLACES):
        places.put(place)

    def call(number: int) -> int:
        place = places.get()
        try:
            time.sleep(random.uniform(0, 0.004))
        finally:
            places.put(place)
        return number

    interrupt(call)
    call_side_by_side(call)
    assert sorted(places.get() for _ in range(PLACES)) == list(range(PLACES))
