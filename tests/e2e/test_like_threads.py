"""An application that was written for threads, unmodified and without a setting, on the worker."""

import http.client
import json
import os
import re
import select
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg2
import pytest
from psycopg2.extensions import parse_dsn

from embedded.postgres import Postgres
from tests.e2e.hosting import at_once, hosting
from tests.helpers.load import Load
from tests.helpers.pools import Watch, limited
from tests.helpers.processes import lives
from tests.helpers.support import IS_LONG, Service, wait_until

TARGET = "tests.e2e.threaded:app"
INITIAL = 16  # as gthread is usually given


def limit_of(running: Service) -> int:
    return int(running.get("/limit").json)


@contextmanager
def asking(running: Service, path: str, clients: int) -> Iterator[Load]:
    """Have *clients* ask for *path* again and again."""
    load = Load(("127.0.0.1", running.port), clients=clients, path=path)
    try:
        yield load
    finally:
        load.stop()


def test_what_is_kept_per_thread_is_kept_and_bounded() -> None:
    """Many client connections, few threads: a thread's counter goes on from request to request."""
    connections, requests = (500, 10_000) if IS_LONG else (100, 1_500)
    with hosting(TARGET) as running:
        with asking(running, "/sleep/0.002", connections) as load:
            wait_until(lambda: len(load.answered) >= requests, "the requests", 120)
        found = running.get("/").json
    assert load.statuses == {200: len(load.answered)}
    assert found["threads"] <= found["highest"] < connections
    assert found["count"] >= requests / found["threads"]


def test_the_threads_of_a_burst_end_and_drop_what_they_kept() -> None:
    """Those that ten seconds have not needed, but for as many as there were to begin with."""
    more = {} if IS_LONG else {"THREADED_RETIRE_S": "1"}
    with hosting(TARGET, **more) as running:
        with ThreadPoolExecutor(1) as clients:
            burst = clients.submit(at_once, running, "/sleep/0.5", 100)
            # Before its end: the threads may have retired when its last answer is read.
            wait_until(lambda: running.get("/kept").json["objects"] > 2 * INITIAL, "its threads")
            burst.result()
        wait_until(lambda: running.get("/kept").json["handlers"] == INITIAL, "their end")
        assert running.get("/kept").json["objects"] <= INITIAL


@pytest.mark.parametrize("interval_ms", ["5", "0"])
def test_a_view_may_compute_for_longer_than_the_timeout(interval_ms: str) -> None:
    """The worker does not block without an end: gunicorn does not end it."""
    # The worker notifies once a second.
    with hosting(TARGET, "--timeout", "4", GREENLINE_SWITCH_INTERVAL_MS=interval_ms) as running:
        before = running.get("/")
        assert running.get("/compute/6").json["pid"] == before.json["pid"]
        assert "WORKER TIMEOUT" not in running.log


@pytest.mark.parametrize("path", ["/compute-beside-others", "/compute-beside-others-in-a-thread"])
def test_others_are_answered_while_one_computes(path: str) -> None:
    """It is interrupted, as a thread is: twenty others are answered in less than ten seconds."""
    with hosting(TARGET) as running, ThreadPoolExecutor(1) as clients:
        computing = clients.submit(running.get, path)
        while not computing.done():
            assert running.get("/").status == 200
        assert computing.result().json["beside"] >= 20


def answered_beside(path: str) -> int:
    """Return how many small requests are answered while one of *path* is."""
    with hosting(TARGET) as running, ThreadPoolExecutor(1) as clients:
        computing = clients.submit(running.get, path)
        answered = 0
        while not computing.done():
            assert running.get("/").status == 200
            answered += 1
        assert computing.result().status == 200
    return answered


@pytest.mark.parametrize("path", ["/block", "/block-in-an-executor"])
def test_what_blocks_in_c_leaves_the_others_alone(path: str) -> None:
    """Once it is known to: then it runs in native threads, side by side."""
    with hosting(TARGET) as running, ThreadPoolExecutor(8) as clients:
        while "run in native threads" not in running.log:
            assert {one.status for one in clients.map(running.get, 4 * [f"{path}/0.05"])} == {200}
        before = time.monotonic()
        blocking = [clients.submit(running.get, f"{path}/2") for _ in range(8)]
        answered = 0
        while not all(one.done() for one in blocking):
            assert running.get("/").status == 200
            answered += 1
        took_s = time.monotonic() - before
        assert {one.result().status for one in blocking} == {200}
    assert answered > 20
    assert took_s < 2 * 2


def test_the_signals_that_interrupt_fill_no_pipe() -> None:
    """Python writes each number into gunicorn's, and a traceback for each once the pipe is full."""
    with hosting(TARGET) as running:
        assert running.get("/signals/70000").status == 200
        assert "wakeup" not in running.log


def test_the_hash_of_a_password_leaves_the_others_alone() -> None:
    """Django's takes half a second for each login; C code computes it."""
    assert answered_beside("/hash/5000000") > 20


def test_a_body_has_any_size() -> None:
    """As with gunicorn's other workers; GREENLINE_MAX_BODY_BYTES sets a limit."""
    body = bytes(101 * 1024**2)
    with hosting(TARGET) as running:
        assert running.ask("POST", "/read", body).json == len(body)


@pytest.mark.parametrize(
    ("path", "upgrade"), [("/stream", ""), ("/websocket", "Upgrade: websocket\r\n")]
)
def test_answers_without_an_end_leave_room_for_pages(path: str, upgrade: str) -> None:
    """More of them than the limit, and the processor is busy: nothing tells the limit to grow."""
    ask = f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n{upgrade}\r\n".encode()
    with hosting(TARGET) as running, ExitStack() as stack:
        streams = [
            stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            for _ in range(40)
        ]
        for each in streams:
            each.sendall(ask)
        # Each of them, and a page after them, waits for a place of those before it.
        for _ in range(3):
            assert running.get("/").status == 200


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/block/30", {}),
        ("/compute/30", {"THREADED_MAX_TIMEOUTS": "2", "GREENLINE_SWITCH_INTERVAL_MS": "0"}),
    ],
    ids=["waits", "computes for too long"],
)
def test_a_worker_that_may_never_go_on_is_ended(path: str, more: dict[str, str]) -> None:
    """It waits where the hub does not run, or computes for many timeouts."""
    with hosting(TARGET, "--timeout", "2", **more) as running:
        assert running.get(path).status == 500
        wait_until(lambda: running.get("/").status == 200, "the next worker")
        assert "WORKER TIMEOUT" in running.log


def test_django_keeps_a_connection_per_thread_and_no_more(
    postgres: Postgres, empty_database: str
) -> None:
    """CONN_MAX_AGE: no more backends than requests in progress, which are used again and again."""
    connections, requests = (500, 10_000) if IS_LONG else (60, 600)
    with hosting_django(empty_database) as running:
        with asking(running, "/sleep/2", connections) as load:
            wait_until(lambda: len(load.answered) >= requests, "the requests", 120)
        assert load.statuses == {200: len(load.answered)}
        found = [running.get("/sleep/0").json for _ in range(20)]
    assert len({each["pid"] for each in found}) == 1
    highest = found[-1]["highest"]
    assert highest["backends"] <= highest["in_progress"] < connections
    assert connects(postgres, empty_database) <= 2 * highest["in_progress"]


def connects(postgres: Postgres, url: str) -> int:
    """Return how many connections to the database of *url* there have been."""
    name = parse_dsn(url)["dbname"]
    admin = psycopg2.connect(postgres.superuser_url)
    admin.autocommit = True
    with closing(admin), admin.cursor() as cursor:

        def is_unused() -> bool:
            cursor.execute("select from pg_stat_activity where datname = %s", (name,))
            return cursor.rowcount == 0

        wait_until(is_unused, "the end of the backends, which counts them")
        cursor.execute("select sessions from pg_stat_database where datname = %s", (name,))
        ((count,),) = cursor.fetchall()
    return int(count)


def test_more_requests_than_connection_slots_are_all_served(postgres: Postgres) -> None:
    """Twice as many at once as Postgres has slots, each with a connection that is kept."""
    with hosting_django(postgres.url) as running:
        for _ in range(2):
            answers, _ = at_once(running, "/sleep/300", 200)
            assert [each.status for each in answers] == [200] * 200


def test_a_worker_leaves_its_idle_connections_to_another(postgres: Postgres) -> None:
    """The first one's threads keep all that the server has; the second one needs one."""
    with closing(Watch(postgres, "kept")) as watch, ExitStack() as stack:
        slots = 3
        running = stack.enter_context(
            hosting_django(limited(watch, slots), "--workers", "2", "--keep-alive", "60")
        )
        clients: dict[int, list[http.client.HTTPConnection]] = {}

        def has_clients() -> bool:
            client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
            stack.callback(client.close)
            clients.setdefault(ask(client, "/pid")["pid"], []).append(client)
            return len(clients) == 2 and max(map(len, clients.values())) >= slots

        wait_until(has_clients, "connections to both workers")
        others, many = sorted(clients.values(), key=len)
        with ThreadPoolExecutor(slots) as threads:
            list(threads.map(lambda client: ask(client, "/sleep/200"), many[:slots]))
        assert ask(others[0], "/sleep/0")["backends"] <= slots


def ask(client: http.client.HTTPConnection, path: str) -> dict[str, int]:
    """Return the answer that the worker of this connection gives."""
    client.request("GET", path)
    answer = client.getresponse()
    body = answer.read()
    assert answer.status == 200, body
    return dict(json.loads(body))


@contextmanager
def hosting_django(url: str, *arguments: str) -> Iterator[Service]:
    target = "tests.e2e.threaded_django:application"
    with hosting(target, *arguments, DATABASE_URL=url) as running:
        yield running


def test_an_idle_connection_holds_no_thread() -> None:
    """Fifty connections that are kept and idle, one after the other: one thread served them."""
    with hosting(TARGET) as running, ExitStack() as stack:
        for _ in range(50):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            head, _, body = sock.recv(65_536).partition(b"\r\n\r\n")
            assert b"keep-alive" in head
        assert json.loads(body)["threads"] == 1


def test_a_hundred_that_sleep_on_a_fresh_worker_take_little_more_than_one() -> None:
    """A second each; with the sixteen to begin with they would take seven."""
    with hosting(TARGET) as running:
        answers, took_s = at_once(running, "/sleep/1", 100)
    assert [each.status for each in answers] == [200] * 100
    assert took_s < 3 + 1


def test_three_hundred_that_sleep_take_less_than_two_seconds_after_quick_ones() -> None:
    """What the worker has learnt from quick requests does not hold back the slow ones."""
    with hosting(TARGET) as running:
        with asking(running, "/", 20) as load:
            wait_until(lambda: len(load.answered) > 2_000, "the quick ones")
        answers, took_s = at_once(running, "/sleep/1", 300)
    assert [each.status for each in answers] == [200] * 300
    assert took_s < 2 + 1


def test_two_hundred_clients_that_wait_for_their_answers_are_all_served() -> None:
    """A lock that all want, for seconds: none is refused, and few are in progress at once."""
    with hosting(TARGET) as running:
        with asking(running, "/lock", 200) as load:
            wait_until(lambda: len(load.answered) > 1_000, "the requests", 60)
            highest = limit_of(running)
        assert load.statuses == {200: len(load.answered)}
        assert highest <= INITIAL


def test_a_worker_begins_where_the_one_before_it_was() -> None:
    """After a reload, and after a kill, the limit is what was learnt."""
    with hosting(TARGET) as running:

        def learnt_limit() -> int:
            at_once(running, "/sleep/1", 100)  # a busy machine may need more of them
            return n if (n := limit_of(running)) > 100 else 0

        learnt = wait_until(learnt_limit, "a limit")
        for how in (signal.SIGHUP, signal.SIGKILL):
            (old,) = running.workers()
            os.kill(running.process.pid if how == signal.SIGHUP else old, how)
            wait_until(lambda: is_one_other(running.workers(), old), "another worker")  # noqa: B023
            wait_until(lambda: is_served_by_another(running, old), "it to serve")  # noqa: B023
            wait_until(lambda: limit_of(running) >= learnt, "its limit")


def is_one_other(workers: list[int], old: int) -> bool:
    return len(workers) == 1 and workers != [old]


def is_served_by_another(running: Service, old: int) -> bool:
    try:
        return bool(running.get("/").json["pid"] != old)
    except OSError:
        return False


def test_idle_connections_leave_room_for_new_ones() -> None:
    """Three times as many as there are sockets, all kept: a new one is served within a second."""
    sockets = 2_000 if IS_LONG else 100
    options = ("--worker-connections", str(sockets), "--keep-alive", "60", "--workers", "2")
    options += ("--forwarded-allow-ips", "192.0.2.1")  # no proxy here is trusted
    with hosting(TARGET, *options) as running, ExitStack() as stack:
        for _ in range(3 * sockets * 2 // 2):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.5)  # most of them are in the backlog, or idle
        for _ in range(3):
            started = time.monotonic()
            assert running.get("/").status == 200
            assert time.monotonic() - started < 1 + 1


def opened(running: Service, stack: ExitStack, header: bytes = b"") -> socket.socket:
    """Return a connection that has served a request and idles."""
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=40))
    ask_on(sock, header)
    return sock


def ask_on(sock: socket.socket, header: bytes = b"") -> None:
    sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n")
    assert sock.recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_the_connection_that_idles_longest_is_closed_first() -> None:
    """One is too many: all others are kept."""
    options = ("--worker-connections", "20", "--keep-alive", "60")
    options += ("--forwarded-allow-ips", "192.0.2.1")  # no proxy here is trusted
    with hosting(TARGET, *options) as running, ExitStack() as stack:
        socks = [opened(running, stack) for _ in range(18)]
        ask_on(socks[0])
        socks.append(opened(running, stack))
        assert socks.pop(1).recv(1) == b""
        for sock in socks:
            ask_on(sock)


def test_a_proxys_connection_is_closed_after_its_time() -> None:
    """Few sockets are free, and the proxy has given it up by then."""
    options = ("--worker-connections", "20", "--keep-alive", "60")
    with (
        hosting(TARGET, *options, GREENLINE_PROXY_KEEPALIVE="1") as running,
        ExitStack() as stack,
    ):
        socks = [opened(running, stack, b"X-Forwarded-For: 1.2.3.4\r\n") for _ in range(19)]
        closed = wait_until(lambda: select.select(socks, [], [], 0)[0], "one to be closed")
        assert closed[0].recv(1) == b""


def test_an_idle_proxy_keeps_its_connections_for_its_time() -> None:
    """Few sockets are free, and none of a trusted proxy is closed before it gives that up."""
    options = ("--worker-connections", "20", "--keep-alive", "5")
    with hosting(TARGET, *options) as running, ExitStack() as stack:
        socks = [opened(running, stack, b"X-Forwarded-For: 1.2.3.4\r\n") for _ in range(19)]
        time.sleep(1.0)
        for sock in socks:  # 127.0.0.1 is trusted by gunicorn's default
            ask_on(sock)


IN_THE_BACKGROUND = """
import threading, time
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "0")])
    if environ["PATH_INFO"] == "/start":
        for daemon in None, True:
            threading.Thread(target=work, args=(daemon,), daemon=daemon).start()
    return []
def work(daemon):
    time.sleep(5 if daemon else 0.5)
    print(f"done {daemon}", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_a_view_has_begun_in_a_thread_is_done_before_the_end(
    tmp_path: Path, number: signal.Signals
) -> None:
    """As threads are waited for that are no daemons."""
    (tmp_path / "background.py").write_text(IN_THE_BACKGROUND)
    with hosting("background:app", PYTHONPATH=str(tmp_path)) as running:
        (worker,) = running.workers()
        assert running.get("/start").status == 200
        running.process.send_signal(number)
        wait_until(lambda: not lives(worker), "the worker's end")
        assert re.findall("done .*", running.log) == ["done None"]


UNCLOSED = """
import itertools
import threading

of_all, of_one = open("of_all", "a"), threading.local()
numbers = itertools.count(1)

class Garbage:
    def __init__(self):
        self.itself = self
    def __del__(self):
        of_one.number = next(numbers)
        of_all.write(f"destroyed {of_one.number}\\n")

def app(environ, start_response):
    if not hasattr(of_one, "file"):
        of_one.file = open("of_one", "a")
    for file in of_all, of_one.file:
        file.write("asked\\n")
    Garbage()
    start_response("200 OK", [("Content-Length", "0")])
    return []
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_file_that_is_not_closed_is_written_at_the_end(
    tmp_path: Path, number: signal.Signals
) -> None:
    """As on threads: its object is destroyed, and so is what only a collection finds."""
    (tmp_path / "unclosed.py").write_text(UNCLOSED)
    with hosting("unclosed:app", "--chdir", str(tmp_path)) as running:
        (worker,) = running.workers()
        running.process.send_signal(number)
        wait_until(lambda: not lives(worker), "the worker's end")
        assert (tmp_path / "of_one").read_text() == "asked\n"
        assert (tmp_path / "of_all").read_text() == "asked\ndestroyed 1\n"
        assert "Traceback" not in running.log, running.log


SIGNALLED = """
import signal
import sys
import threading

has_ended, worker = threading.Event(), None

def work():
    has_ended.wait()

def end(number, frame):
    print("begun", flush=True)
    has_ended.set()
    worker.join()
    threading.Event().wait(0.5)
    print("done", flush=True)
    sys.exit(0)

worker = threading.Thread(target=work)
worker.start()
signal.signal(signal.SIGTERM, end)

def app(environ, start_response):
    is_kept = signal.getsignal(signal.SIGTERM) is end
    start_response(f"{200 if is_kept else 500} It is", [("Content-Length", "0")])
    return []
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_handler_of_the_application_may_wait(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The signal interrupts the hub, which must not wait, or a request that ends at the time."""
    (tmp_path / "signalled.py").write_text(SIGNALLED)
    with hosting("signalled:app", PYTHONPATH=str(tmp_path)) as running:
        (worker,) = running.workers()
        assert running.get("/").status == 200
        running.process.send_signal(number)
        wait_until(lambda: not lives(worker), "the worker's end")
        assert "done" in running.log
        assert "Traceback" not in running.log, running.log
