"""Modules that gunicorn's configuration imports, before the worker is patched."""

import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.early import THREADS, WAITS, WAITS_OF_PROCESSES
from tests.e2e.hosting import at_once, hosting
from tests.helpers.certificate import certify, needs_openssl
from tests.helpers.forms import some

LOGGING = """
[loggers]
keys = root
[handlers]
keys = console
[formatters]
keys = own
[logger_root]
handlers = console
level = INFO
[handler_console]
class = StreamHandler
formatter = own
args = (sys.stderr,)
[formatter_own]
class = tests.e2e.early.Formatter
"""


def test_without_such_modules_nothing_is_said() -> None:
    """What greenline itself keeps per thread is none of them."""
    with hosting("tests.e2e.early:app") as running:
        answers = [running.get(f"/remember?{n}").json["found"] for n in range(3)]
        assert "imported by gunicorn's configuration" not in running.log
    assert answers == [[str(n)] * 2 for n in range(3)]


def test_a_class_of_tls_contexts_brings_no_warning(tmp_path: Path) -> None:
    """gevent's own, which names nothing that the application could change."""
    (tmp_path / "secure.py").write_text(
        "import ssl\n\n\nclass Context(ssl.SSLContext): ...\n\n\n"
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Length', '2')])\n"
        "    return [b'ok']\n"
    )
    with hosting("secure:app", "--preload", PYTHONPATH=str(tmp_path)) as running:
        assert running.get("/").status == 200
        assert "Monkey" not in running.log


def test_their_thread_locals_belong_to_requests(tmp_path: Path) -> None:
    """A formatter of the application, and fifty requests at once; the log names the module."""
    conf = tmp_path / "logging.ini"
    conf.write_text(LOGGING)
    with hosting("tests.e2e.early:app", "--log-config", str(conf)) as running:
        with ThreadPoolExecutor(50) as clients:
            answers = list(clients.map(lambda n: running.get(f"/remember?{n}").json, range(50)))
        assert "tests.e2e.early: imported by gunicorn's" in running.log
    assert [answer["found"] for answer in answers] == [[str(n)] * 2 for n in range(50)]


@pytest.fixture(params=some(["configuration", "preload", "not early"], 2))
def early(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Return the arguments with which gunicorn imports the application, or does not, early."""
    conf = tmp_path / "logging.ini"
    conf.write_text(LOGGING)
    options = {"configuration": ["--log-config", str(conf)], "preload": ["--preload"]}
    return options.get(request.param, [])


def test_their_threads_end(early: list[str]) -> None:
    """Threads of the standard library's classes and of one built on them, beside a dead proxy."""
    with hosting("tests.e2e.early:app", *early) as running:
        found = {kind: running.get(f"/join/{kind}").json["alive"] for kind in THREADS}
    assert found == {kind: [True, False] for kind in THREADS}


def test_their_locks_and_queues_wait_in_the_hub(early: list[str]) -> None:
    """Wherever they are kept: four requests wait for each, one after the other."""
    with hosting("tests.e2e.early:app", *early) as running:
        found = {kind: at_once(running, f"/wait/{kind}", 4)[0] for kind in WAITS}
        assert [{each.status for each in four} for four in found.values()] == [{200}] * len(WAITS)
        # By a name of time.sleep: of 60 s when each blocks the hub.
        assert at_once(running, "/wait/name", 60)[1] < 30


def test_preloaded_locks_of_multiprocessing_wait_in_the_hub() -> None:
    """Also where the object with a lock keeps the lock's methods."""
    with hosting("tests.e2e.early:app", "--preload") as running:
        for kind in WAITS_OF_PROCESSES:
            answers, _ = at_once(running, f"/wait-for-processes/{kind}", 4)
            assert {each.status for each in answers} == {200}, kind


@needs_openssl
def test_their_clients_of_tls_yield(early: list[str], tmp_path: Path) -> None:
    """requests, which has made a context at its import: the server answers five at once."""
    (certificate, key), _ = certify(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*(option.partition("=")[2] for option in (certificate, key)))
    environ = {"CERTIFICATE": certificate.partition("=")[2]}
    with (
        ThreadPoolExecutor(10) as threads,
        socket.create_server(("127.0.0.1", 0)) as listener,
        hosting("tests.e2e.early:app", *early, **environ) as running,
    ):
        listener.settimeout(60)
        path = f"/fetch/{listener.getsockname()[1]}"
        answers = threads.map(running.get, [path] * 5)
        together = threading.Barrier(5)
        for _ in range(5):
            threads.submit(answer, listener.accept()[0], context, together)
        assert [each.body for each in answers] == [b"met"] * 5, running.log


def answer(sock: socket.socket, context: ssl.SSLContext, together: threading.Barrier) -> None:
    """Answer one client when the others are there as well."""
    sock.settimeout(60)
    with context.wrap_socket(sock, server_side=True) as client:
        while not client.recv(4096).endswith(b"\r\n\r\n"):
            pass
        together.wait(60)
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nmet")
