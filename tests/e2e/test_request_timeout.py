"""REQUEST_TIMEOUT ends the requests of an application that knows nothing of it."""

import http.client
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest

from embedded.postgres import Postgres
from tests.e2e import overdue
from tests.e2e.hosting import hosting
from tests.helpers.support import Service, wait_until
from tests.helpers.watch import statements

TIMEOUT_S, SLACK_S = 1.0, 1.0
APP = "tests.e2e.overdue:app"
WAITS = [
    overdue.sleep, overdue.statement, overdue.http_request,
    overdue.http_request_that_is_tried_again, overdue.recv, overdue.take_lock, overdue.take_item,
    overdue.wait_for_event, overdue.wait_in_select, overdue.run_program,
    overdue.wait_for_a_thread, overdue.answer_500, overdue.swallow,
]  # fmt: skip
OTHERS = [
    overdue.clean_up, overdue.answer_by_itself, overdue.slow_stream, overdue.stalled_stream,
]  # fmt: skip


@dataclass
class Reply:
    """What a client received, and after how long."""

    status: int
    body: bytes
    took_s: float
    is_cut: bool = False


def ask(running: Service, path: str) -> Reply:
    started = time.monotonic()
    try:
        answer = running.get(path)
    except http.client.IncompleteRead as error:
        return Reply(0, error.partial, time.monotonic() - started, is_cut=True)
    return Reply(answer.status, answer.body, time.monotonic() - started)


def send_slowly(running: Service) -> Reply:
    """Send a body in two seconds."""
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as sock:
        sock.sendall(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        for _ in range(5):
            time.sleep(0.4)
            sock.sendall(b"x")
        answer = sock.recv(65_536)
    return Reply(int(answer.split()[1]), answer[-1:], time.monotonic() - started)


def read_slowly(running: Service) -> Reply:
    """Begin to take the answer after two seconds."""
    started = time.monotonic()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        sock.connect(("127.0.0.1", running.port))
        sock.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        time.sleep(2)
        sock.settimeout(10)
        answer = b"".join(iter(lambda: sock.recv(65_536), b""))
    body = answer.partition(b"\r\n\r\n")[2]
    return Reply(int(answer.split()[1]), body, time.monotonic() - started)


@pytest.fixture(scope="module")
def running(postgres: Postgres) -> Iterator[Service]:
    """The application with a second for each request, and a port where nothing is answered."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as deaf:
        port = deaf.getsockname()[1]
        environ = {"DATABASE_URL": postgres.url, "DEAF_PORT": str(port)}
        with hosting(APP, REQUEST_TIMEOUT=f"{TIMEOUT_S:g}", **environ) as one:
            yield one


@pytest.fixture(scope="module")
def replies(running: Service) -> dict[Callable[..., object], Reply]:
    """What each way was answered, all asked side by side."""
    calls: dict[Callable[..., object], Callable[[], Reply]] = {
        way: partial(ask, running, f"/{way.__name__}") for way in [*WAITS, *OTHERS]
    }
    calls |= {way: partial(way, running) for way in (send_slowly, read_slowly)}
    with ThreadPoolExecutor(len(calls)) as clients:
        answers = {way: clients.submit(call) for way, call in calls.items()}
        return {way: answer.result() for way, answer in answers.items()}


def expect_line(running: Service, text: str) -> None:
    """Wait for *text* in the log, which is written a moment after the answer."""
    wait_until(lambda: text in running.log, f"{text!r} in the log")


@pytest.mark.parametrize("way", WAITS, ids=lambda way: way.__name__)
def test_whatever_a_request_waits_for_it_is_answered_504_in_time(
    running: Service, replies: dict[object, Reply], way: Callable[[], None]
) -> None:
    """The log has the line at which it waited."""
    answer = replies[way]
    assert (answer.status, answer.body) == (504, b"no answer within 1 s")
    assert TIMEOUT_S <= answer.took_s < TIMEOUT_S + SLACK_S
    expect_line(running, f"GET /{way.__name__}: not answered within 1 s")
    expect_line(running, f"in {way.__name__}\n")


def test_no_statement_goes_on(replies: dict[object, Reply], postgres: Postgres) -> None:
    """Postgres cancels it."""
    assert replies[overdue.statement].status == 504
    wait_until(
        lambda: not statements(postgres, "overdue"), "the statement to end", overdue.LONG_S / 2
    )


def test_what_swallows_the_timeout_and_goes_on_is_interrupted(
    running: Service, replies: dict[object, Reply]
) -> None:
    """``except Exception`` in a loop, or a client that tries again, cannot hold the request."""
    assert replies[overdue.swallow].status == 504
    expect_line(running, "GET /swallow goes on and is interrupted")
    expect_line(running, "GET /http_request_that_is_tried_again goes on and is interrupted")


def test_clean_up_is_not_interrupted(running: Service, replies: dict[object, Reply]) -> None:
    """A ``finally`` that waits for a second for Postgres comes to its end; then it is a 504."""
    assert replies[overdue.clean_up].status == 504
    assert "clean_up" in running.get("/done").body.decode()
    expect_line(running, "GET /clean_up cleans up and is not interrupted again")


def test_an_application_may_answer_the_timeout_by_itself(
    running: Service, replies: dict[object, Reply]
) -> None:
    """What it makes of the TimeoutError goes out, unless it is a 5xx."""
    answer = replies[overdue.answer_by_itself]
    assert (answer.status, answer.body) == (200, b"done")
    assert "answer_by_itself" in running.get("/done").body.decode()


def test_an_answer_that_has_begun_is_cut(running: Service, replies: dict[object, Reply]) -> None:
    """The client sees that the rest is missing; it gets no second answer."""
    answer = replies[overdue.stalled_stream]
    assert (answer.is_cut, answer.body) == (True, b"begun")
    assert answer.took_s < TIMEOUT_S + SLACK_S
    expect_line(running, "GET /stalled_stream: not answered within 1 s")


def test_each_part_of_a_stream_has_the_time_anew(replies: dict[object, Reply]) -> None:
    """Two seconds of parts, each half a second after the one before."""
    answer = replies[overdue.slow_stream]
    assert (answer.status, answer.body) == (200, b"part." * 4)


def test_the_time_of_a_slow_client_does_not_count(replies: dict[object, Reply]) -> None:
    """A body that comes in two seconds is read, and an answer taken in two seconds is whole."""
    assert (replies[send_slowly].status, replies[send_slowly].body) == (200, b"5")
    assert (replies[read_slowly].status, len(replies[read_slowly].body)) == (200, 8_000_000)


def test_what_computes_is_late_and_named(running: Service, replies: dict[object, Reply]) -> None:
    """It cannot be interrupted, and its answer is true."""
    assert running.get("/compute").status == 200
    expect_line(running, "GET /compute: answered")


def test_without_it_there_is_no_deadline() -> None:
    """As before."""
    with hosting(APP) as running:
        answer = running.get("/slow_stream")
        assert (answer.status, answer.body) == (200, b"part." * 4)


@pytest.fixture(scope="module")
def narrow() -> Iterator[Service]:
    """The application with three seconds for each request, and one request in progress at once."""
    with hosting(APP, REQUEST_TIMEOUT="3", GREENLINE_MAX_IN_PROGRESS="1") as one:
        yield one


def ask_behind(running: Service, stream: Callable[[], object]) -> Reply:
    """Ask for what takes too long while *stream* has the only place."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as first:
        first.sendall(f"GET /{stream.__name__} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert b"200 OK" in first.recv(65_536)
        return ask(running, "/sleep")


def test_the_time_in_the_queue_counts(narrow: Service) -> None:
    """A request that is admitted after more than a second has the rest of its three seconds."""
    answer = ask_behind(narrow, overdue.slow_stream)
    assert answer.status == 504
    assert 3 <= answer.took_s < 3 + SLACK_S
    expect_line(narrow, "in sleep\n")


def test_a_request_whose_time_is_up_in_the_queue_is_answered_504(narrow: Service) -> None:
    """It is not an overload: it would be refused at once then, with a 503."""
    answer = ask_behind(narrow, overdue.long_stream)
    assert (answer.status, answer.body) == (504, b"no answer within 3 s")
    assert 3 <= answer.took_s < 3 + SLACK_S
    expect_line(narrow, "GET /sleep: no answer within 3 s; it waited for admission")
