"""What the killed worker held, how clients ask, and when the bursts count as kept promises."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bench import budget, burst, report, sockets
from bench.burst import Bursts, Held
from bench.clients import Asked, Client
from bench.servers import Gunicorn, ServerError
from tests.helpers.support import wait_until

APP = """
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Gunicorn]:
    """A gunicorn with two workers that keep connections."""
    (tmp_path / "small.py").write_text(APP)
    arguments = ["--no-control-socket", "--workers", "2", "-k", "gevent", "small:app"]
    with Gunicorn(arguments, ready="/", env={}, log=tmp_path / "log", cwd=tmp_path) as server:
        yield server


async def asked_in_turn(port: int, *paths: str) -> list[Asked]:
    """Ask as one client."""
    client = Client(port, patience_s=5.0)
    try:
        return [await client.ask(path) for path in paths]
    finally:
        client.close()


class Handler(BaseHTTPRequestHandler):
    """Keeps connections, but for ``/close``, and knows no ``/none``."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(404 if self.path == "/none" else 200)
        self.send_header("Content-Length", "2")
        if self.path == "/close":
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_client_keeps_its_connection_until_the_server_closes_it() -> None:
    """Statuses are what they are, and a new connection follows ``Connection: close``."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        asked = asyncio.run(asked_in_turn(server.server_port, "/", "/none", "/close", "/"))
        server.shutdown()
        serving.join()
    assert [each.status for each in asked] == ["200", "404", "200", "200"]
    # A port may be used again at once: a connection is identified by its start.
    begun_s = [each.connecting_s for each in asked]
    assert begun_s[0] == begun_s[1] == begun_s[2] < begun_s[3]
    assert all(each.port and each.sent_s < each.ended_s for each in asked)


def test_a_lost_connection_is_an_error_and_none_at_all_is_refused() -> None:
    """The two ends are distinguished: in a reload no request may be refused."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        cut = subprocess.Popen(
            [sys.executable, "-c", "import socket,sys; socket.socket(fileno=0).accept()"],
            stdin=listener.fileno(),
        )
        (lost,) = asyncio.run(asked_in_turn(port, "/"))
        cut.wait(timeout=10)
    (refused,) = asyncio.run(asked_in_turn(port, "/"))
    assert (lost.status, refused.status) == ("error", "refused")
    assert lost.port
    assert not refused.port


def test_no_answer_in_time_is_an_error() -> None:
    """A server that accepts and says nothing does not hold the bench for ever."""

    async def ask(port: int) -> Asked:
        return await Client(port, patience_s=0.1).ask("/")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert asyncio.run(ask(listener.getsockname()[1])).status == "error"


def test_the_kernel_tells_who_has_whom() -> None:
    """The ports are those of accepted connections to that server, and of no other socket."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        socket.create_connection(listener.getsockname()),
    ):
        ours, port = listener.getsockname()[1], client.getsockname()[1]
        assert sockets.client_ports(os.getpid(), ours) == set()
        with listener.accept()[0]:
            assert sockets.client_ports(os.getpid(), ours) == {port}
            assert sockets.client_ports(os.getppid(), ours) == set()
            assert sockets.client_ports(os.getpid(), port) == set() or port != ours
    assert sockets.client_ports(2**22 + 1, ours) == set()


@pytest.mark.parametrize(
    ("one", "held"),
    [
        pytest.param(Asked(9.0, 2.0, "error", 7, 8.0), True, id="in-progress"),
        pytest.param(Asked(10.5, 0.1, "error", 7, 8.0), True, id="asked-later-on-it"),
        pytest.param(Asked(9.0, 0.5, "200", 7, 8.0), False, id="answered-before"),
        pytest.param(Asked(9.0, 2.0, "error", 8, 8.0), False, id="another-connection"),
        pytest.param(Asked(11.0, 1.0, "error", 7, 10.5), False, id="the-port-used-again"),
        pytest.param(Asked(9.0, 2.0, "refused"), False, id="refused"),
    ],
)
def test_held_is_what_was_in_progress_on_its_connections(one: Asked, held: bool) -> None:
    """No other failure is excused by the kill."""
    killed = Held(80)
    assert one not in killed
    killed.stopped_s, killed.ports = 10.0, {7}
    assert (one in killed) is held


def test_a_worker_is_killed_with_what_it_has() -> None:
    """It stops, its connections are noted, and it is gone."""
    code = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 0));"
        "print(s.getsockname()[1], flush=True); c = s.accept(); time.sleep(60)"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    port = int(worker.stdout.readline())
    held = Held(port)
    with socket.create_connection(("127.0.0.1", port)) as client:
        wait_until(lambda: sockets.client_ports(worker.pid, port), "the worker to accept")
        asyncio.run(held.kill(worker.pid))
        assert held.ports == {client.getsockname()[1]}
    assert worker.wait(timeout=10) == -9


def row(name: str = "whole run", **answers: int) -> report.Row:
    """Return a row with *answers*, by status."""
    by_status = {status.removeprefix("_"): count for status, count in answers.items()}
    return report.Row(name, report.OURS, burst.CLIENTS, by_status, 10.0, 100.0)


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        pytest.param({}, "", id="all-kept"),
        pytest.param({"whole": row(_200=99, _503=1)}, "errors of 100 requests: 1", id="a-503"),
        pytest.param({"whole": row(_200=99, refused=1)}, "errors of 100", id="a-refusal"),
        pytest.param({"held": row()}, "that the killed worker held: 0", id="nothing-held"),
        pytest.param({"highest": 95}, "highest count seen by the server: 95", id="beyond"),
        pytest.param({"refused": 1}, "connections refused by the server", id="refused-there"),
        pytest.param({"lost": 2}, "slots without a connection after the run: 2", id="lost"),
    ],
)
def test_each_promise_is_judged(changed: dict[str, Any], missed: str) -> None:
    """What is not kept is the one verdict that fails, and it says the figure."""
    fine = {"whole": row(_200=100), "held": row(error=9), "max_backends": 94, "highest": 94}
    verdicts = burst.judge(**{**fine, "refused": 0, "lost": 0, **changed})
    failed = [verdict.text for verdict in verdicts if not verdict.kept]
    assert len(failed) == (missed != "")
    assert all(missed in text for text in failed)


def test_rows_share_all_that_was_asked() -> None:
    """A request is in one of the two rows, by whether the killed worker held it."""
    killed = Held(80)
    killed.stopped_s, killed.ports = 10.0, {7}
    asked = [Asked(9.0, 2.0, "error", 7, 8.0), Asked(9.0, 2.0, "200", 8, 8.0)]
    whole, held = burst.rows(asked, killed, 10.0, 1.0)
    assert (whole.answers, held.answers) == ({"200": 1}, {"error": 1})


def test_bursts_go_on_as_long_as_something_happens(server: Gunicorn) -> None:
    """There is a whole burst before and after it, and one in whose midst it happens."""
    bursts = Bursts(server.port, clients=20)

    async def run() -> None:
        async with bursts.going_on():
            assert bursts.bursts == 1
            await bursts.amidst()

    asyncio.run(run())
    assert bursts.bursts >= 3
    assert len(bursts.asked) == bursts.bursts * 20 * 3
    assert {each.status for each in bursts.asked} == {"200"}


def test_what_was_promised_is_run() -> None:
    """Four workers, a server of 100, a thousand clients, three reloads and one kill."""
    assert (burst.WORKERS, burst.MAX_CONNECTIONS, burst.CLIENTS) == (4, 100, 1000)
    assert sorted(burst.EVENTS) == [burst.HUP, burst.HUP, burst.HUP, burst.KILL]


def test_a_budget_that_cannot_be_read_is_reported() -> None:
    """The command's own words are in the error."""
    env = {**os.environ, "DATABASE_URL": "", "MONGODB_URI": ""}
    with pytest.raises(ServerError, match=r"greenline budget: (.|\n)*neither is set"):
        budget.ask(env)
