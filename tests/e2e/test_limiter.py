"""Requests that the concurrency limit admits, refuses and counts, over real sockets."""

import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.hosting import hosting
from tests.helpers.support import Service, wait_until

TARGET = "tests.e2e.recorded:app"
ONE = {"GREENLINE_MAX_IN_PROGRESS": "1", "GREENLINE_MAX_WAITING": "0"}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The application, whose /hold waits until the file OPEN is there."""
    return {
        "OPEN": str(tmp_path / "open"),
        "HELD": str(tmp_path / "held"),
    }


def total(running: Service, *key: str) -> int:
    """Return what was counted, asked by a path that always passes."""
    answer = running.get("/healthz")
    assert answer.status == 200
    return int(answer.json.get(json.dumps(key), 0))


def test_only_the_configured_health_paths_pass_a_full_limit(environ: dict[str, str]) -> None:
    """GREENLINE_HEALTH_PATHS replaces the default ones, which are refused then."""
    settings = {**ONE, "GREENLINE_HEALTH_PATHS": "/alive, /ready"}
    with (
        hosting(TARGET, **environ, **settings) as running,
        ThreadPoolExecutor(1) as clients,
    ):
        holding = clients.submit(running.get, "/hold")
        try:
            wait_until(Path(environ["HELD"]).exists, "the only place to be taken")
            asked = ("/alive", "/ready", "/healthz", "/readyz", "/alive/x")
            assert [running.get(path).status for path in asked] == [200, 200, 503, 503, 503]
        finally:
            Path(environ["OPEN"]).touch()
        assert holding.result().status == 200


@pytest.mark.parametrize("path", ["/raise", "/raise-in-the-body"])
def test_an_application_that_raises_releases_its_place(environ: dict[str, str], path: str) -> None:
    """Ten of them through two places, and the eleventh request is served."""
    with hosting(TARGET, **environ, GREENLINE_MAX_IN_PROGRESS="2") as running:
        assert [running.get(path).status for _ in range(10)] == [500] * 10
        assert running.get("/").status == 200
        wait_until(lambda: ["limiter", "limit"] in keys(running), "the gauges")
        wait_until(lambda: total(running, "limiter", "in_progress") == 0, "no request in progress")


def keys(running: Service) -> list[list[str]]:
    """Return what is counted at all."""
    return [json.loads(key) for key in running.get("/healthz").json]


def test_the_limit_begins_as_threads_do_and_can_be_read(environ: dict[str, str]) -> None:
    """Sixteen, without any setting."""
    with hosting(TARGET, **environ) as running:
        assert [running.get("/").status for _ in range(20)] == [200] * 20
        limit = wait_until(lambda: total(running, "limiter", "limit"), "the limit")
        assert limit == 16


def test_refusals_are_counted(environ: dict[str, str]) -> None:
    """Three refusals are three, and served requests are none."""
    with (
        hosting(TARGET, **environ, **ONE) as running,
        ThreadPoolExecutor(1) as clients,
    ):
        assert running.get("/").status == 200
        assert total(running, "refused", "queue_full") == 0
        holding = clients.submit(running.get, "/hold")
        try:
            wait_until(Path(environ["HELD"]).exists, "the only place to be taken")
            assert [running.get("/").status for _ in range(3)] == [503] * 3
            assert total(running, "refused", "queue_full") == 3
        finally:
            Path(environ["OPEN"]).touch()
        assert holding.result().status == 200


def test_an_answer_after_the_deadline_is_counted(environ: dict[str, str]) -> None:
    """Two answers with 504 are two deadlines."""
    with hosting(TARGET, **environ) as running:
        assert total(running, "deadlines") == 0
        assert [running.get("/late").status for _ in range(2)] == [504] * 2
        assert total(running, "deadlines") == 2


def test_a_blocked_hub_is_counted(environ: dict[str, str]) -> None:
    """Half a second is a block; a quick answer is none."""
    with hosting(TARGET, **environ, GREENLINE_BLOCKED_HUB_MS="300") as running:
        before = total(running, "hub_blocked")
        assert running.get("/block").status == 200
        wait_until(lambda: total(running, "hub_blocked") > before, "the count")


def test_who_waits_in_the_queue_is_answered_or_cut_at_the_stop(
    environ: dict[str, str],
) -> None:
    """As those in progress are: when the time of the stop is over, with a 503 and a line."""
    one = {"GREENLINE_MAX_IN_PROGRESS": "1"}
    with (
        hosting(TARGET, "--graceful-timeout", "3", **environ, **one) as running,
        ThreadPoolExecutor(3) as clients,
    ):
        holding = clients.submit(running.get, "/hold")
        wait_until(Path(environ["HELD"]).exists, "the only place to be taken")
        queued = [clients.submit(running.get, f"/?{number}") for number in range(2)]
        wait_until(lambda: total(running, "limiter", "waiting") == 2, "two to wait")
        running.process.send_signal(signal.SIGTERM)
        assert [one.result().status for one in queued] == [503, 503]
        assert holding.result().status == 503
        assert running.process.wait(40) == 0
        assert running.log.count("cut after the graceful timeout: GET /") == 3


def test_a_turn_comes_in_the_order_of_arrival(environ: dict[str, str]) -> None:
    """What needs a greenlet, as a body that comes later does, and what needs none."""
    one = {"GREENLINE_MAX_IN_PROGRESS": "1"}
    head = b"POST /?%d HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"
    with (
        hosting(TARGET, "--access-logfile", "-", **environ, **one) as running,
        ExitStack() as stack,
    ):
        holding = stack.enter_context(ThreadPoolExecutor(1)).submit(running.get, "/hold")
        wait_until(Path(environ["HELD"]).exists, "the only place to be taken")
        clients = []
        for number in range(6):
            client = stack.enter_context(
                socket.create_connection(("127.0.0.1", running.port), timeout=30)
            )
            client.sendall(head % number + (b"ab" if number % 2 else b""))
            clients.append(client)
            wait_until(
                lambda: total(running, "limiter", "waiting") == len(clients),
                "one more to wait",
            )
        for client in clients[::2]:
            client.sendall(b"ab")
        Path(environ["OPEN"]).touch()
        assert holding.result().status == 200
        for client in clients:
            assert client.recv(1_000).startswith(b"HTTP/1.1 200 ")
        lines = [f'"POST /?{number} ' for number in range(6)]
        wait_until(lambda: all(line in running.log for line in lines), "their lines")
        places = [running.log.index(line) for line in lines]
        assert places == sorted(places)
