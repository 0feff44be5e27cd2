"""`gunicorn -k greenline.worker.GreenWorker` hosts an unmodified application, over real sockets."""

import http.client
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from greenline.http.gunicorn_compat import VERSION
from tests.helpers.certificate import certify, needs_openssl
from tests.helpers.conversation import DATE
from tests.helpers.corpus import CORPUS, FOLLOW, ON_PURPOSE, RESPONSES
from tests.helpers.forms import some
from tests.helpers.support import Service, service, wait_until

GREEN = "--worker-class=greenline.worker.GreenWorker"
STOCK = ("--worker-class=gevent", "--http-parser=python", "--forwarder-headers=")
CONFIG = "tests/e2e/plain_conf.py"
# How much of a line was seen when it was too long depends on how it came.
SEEN = re.compile(rb"too large \(\d+")
NO_LIMIT = {"GREENLINE_MAX_BODY_BYTES": "9" * 30, "GREENLINE_REQUIRE_HOST": "0"}


def hosted(
    target: str, *arguments: str, config: str = CONFIG, more: dict[str, str] | None = None
) -> AbstractContextManager[Service]:
    """Run an application on the worker."""
    return service(more or {}, GREEN, *arguments, target=target, config=config)


@pytest.fixture(scope="module")
def legacy() -> Iterator[Service]:
    """A plain application on the worker."""
    with hosted("tests.e2e.legacy:app", "--workers=1") as running:
        yield running


def converse(port: int, said: bytes) -> tuple[bytes, bool]:
    """Say it, and nothing more; return what was heard, and whether the end was a clean one."""
    heard, clean = bytearray(), True
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        try:
            client.sendall(said)
            client.shutdown(socket.SHUT_WR)
            while data := client.recv(65_536):
                heard += data
        except TimeoutError:
            raise
        except OSError:
            clean = False
    answer = DATE.sub(b"\r\nDate: now\r\n", bytes(heard))
    if SEEN.search(answer):
        answer = answer[:12]
    return answer, clean


@pytest.mark.skipif(VERSION < (27, 0), reason="refuses more than that gunicorn: test_same_answers")
def test_same_answers_over_real_sockets() -> None:
    """
    The corpus, sent to gunicorn's worker and to ours; ours never cuts an answer short.

    Left out is a file with a Content-Length, after which gunicorn's worker closes.
    """
    application = "tests.helpers.application:app"
    differing = []
    with (
        hosted(application, "--log-level=critical", more=NO_LIMIT) as ours,
        service({}, *STOCK, "--log-level=critical", target=application, config=CONFIG) as theirs,
    ):
        for name, data in {**CORPUS, **RESPONSES}.items():
            if name.endswith((*ON_PURPOSE, "file-length")):
                continue
            expected, whole = converse(theirs.port, data + FOLLOW)
            answer, clean = converse(ours.port, data + FOLLOW)
            if not clean or (answer != expected if whole else not answer.startswith(expected)):
                differing.append(name)
    assert differing == []


def test_the_validator_of_the_standard_library_has_no_objection() -> None:
    """wsgiref.validate sits between the worker and an application."""
    with hosted("tests.e2e.legacy:validated") as running:
        assert running.get("/").body == b"ok"
        assert running.ask("POST", "/read", b"x" * 10).body == b"10"
        assert running.ask("POST", "/read", b"x" * 200_000).body == b"200000"
        assert running.ask("HEAD", "/").status == 200
        assert running.get("/", headers={"Expect": "100-continue"}).body == b"ok"
        assert "AssertionError" not in running.log
        assert "Traceback" not in running.log


@pytest.mark.parametrize(
    "more",
    [pytest.param({}, id="fast parser"), pytest.param({"Expect": "100-continue"}, id="fallback")],
)
@pytest.mark.parametrize("path", ["/large", "/file", "/endless"])
def test_large_answers_arrive_whole(legacy: Service, path: str, more: dict[str, str]) -> None:
    """By sendfile, by one write, or part by part: what arrives is what was returned."""
    answer = legacy.get(path, headers=more)
    assert len(answer.body) == 65_536_000
    assert answer.body.count(b"x") == len(answer.body)


@pytest.mark.parametrize(
    "more",
    [pytest.param({}, id="fast parser"), pytest.param({"Expect": "100-continue"}, id="fallback")],
)
def test_an_application_gets_the_real_socket(legacy: Service, more: dict[str, str]) -> None:
    """What takes the connection over, for websockets for instance, meets no limit of ours."""
    assert b"gunicorn.socket=<gevent._socket3.socket " in legacy.get("/environ", headers=more).body


def test_a_large_body_arrives_whole(legacy: Service) -> None:
    """20 MB go through, with a length and in chunks."""
    body = b"x" * 20_000_000
    assert legacy.ask("POST", "/read", body).body == b"20000000"
    connection = http.client.HTTPConnection("127.0.0.1", legacy.port, timeout=30)
    parts = (body[at : at + 100_000] for at in range(0, len(body), 100_000))
    connection.request("POST", "/read", parts, encode_chunked=True)
    assert connection.getresponse().read() == b"20000000"
    connection.close()


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"GET /busy-parts HTTP/1.1\r\nHost: h\r\n\r\n", id="a stream"),
        pytest.param(b"GET /file HTTP/1.1\r\nHost: h\r\n\r\n" * 20, id="files"),
        pytest.param(b"GET /busy HTTP/1.1\r\nHost: h\r\n\r\n" * 3_000, id="a pipeline"),
        pytest.param(b"TRACE /busy HTTP/1.1\r\nHost: h\r\n\r\n" * 3_000, id="a slow pipeline"),
        pytest.param(
            b"POST /read HTTP/1.1\r\nHost: h\r\nContent-Length: 90000000\r\n\r\n"
            + bytes(90_000_000),
            id="an upload",
        ),
    ],
)
def test_one_busy_client_does_not_starve_the_others(legacy: Service, said: bytes) -> None:
    """While one client always has more to say or to take, each of the others is answered."""
    busy = "import socket, sys, threading\n"
    busy += f"s = socket.create_connection(('127.0.0.1', {legacy.port}))\n"
    busy += "said = sys.stdin.buffer.read()\n"
    busy += "threading.Thread(target=s.sendall, args=(said,), daemon=True).start()\n"
    busy += "print(s.recv(1) if b'Length: 9' not in said else '', flush=True)\n"
    busy += "while s.recv(1 << 16): pass\n"
    with subprocess.Popen(
        ["python3", "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(said)
        process.stdin.close()
        process.stdout.readline()
        waits = []
        for _ in range(20):
            started = time.monotonic()
            assert legacy.get("/").status == 200
            waits.append(time.monotonic() - started)
        process.kill()
    assert max(waits) < 1.0 + 1.0


def test_a_unix_socket_is_served(tmp_path: Path) -> None:
    """Its clients have no address."""
    path = tmp_path / "a.sock"
    with hosted("tests.e2e.legacy:app", f"--bind=unix:{path}"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /environ HTTP/1.1\r\nHost: h:81\r\nConnection: close\r\n\r\n")
            heard = b"".join(iter(lambda: client.recv(65_536), b""))
        assert b"REMOTE_ADDR=''" in heard
        assert b"SERVER_NAME='h'" in heard
        assert b"SERVER_PORT='81'" in heard


@needs_openssl
def test_tls_is_served_and_a_handshake_has_its_limit(tmp_path: Path) -> None:
    """Answers, uploads and large answers go over TLS; a client that does not shake hands is cut."""
    plain = tmp_path / "a.conf.py"
    plain.write_text("control_socket_disable = True\n")
    arguments, trust = certify(tmp_path)
    more = {"GREENLINE_HEAD_TIMEOUT": "1"}

    def ask(method: str, path: str, body: bytes | None = None) -> bytes:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", running.port, timeout=20, context=trust
        )
        connection.request(method, path, body)
        answer = connection.getresponse().read()
        connection.close()
        return answer

    def is_served() -> bool:
        try:
            return ask("GET", "/") == b"ok"
        except OSError:
            return False

    with service(
        more, GREEN, *arguments, target="tests.e2e.legacy:app", config=str(plain), wait=False
    ) as running:
        wait_until(is_served, "an answer over TLS")
        assert b"wsgi.url_scheme='https'" in ask("GET", "/environ")
        assert ask("POST", "/read", b"x" * 1_000_000) == b"1000000"
        assert len(ask("GET", "/large")) == 65_536_000
        with socket.create_connection(("127.0.0.1", running.port), timeout=60) as silent:
            started = time.monotonic()
            assert silent.recv(1) == b""
            assert time.monotonic() - started < 3.0


def test_hooks_and_the_access_log_keep_their_meaning(tmp_path: Path) -> None:
    """They see each request, whichever parser has read it."""
    config = tmp_path / "hooks.conf.py"
    config.write_text(
        "control_socket_disable = True\n"
        "accesslog = '-'\n"
        "access_log_format = 'LOG %(m)s %(U)s %(s)s %(B)s {a}%({accept}i)s %({content-type}o)s'\n"
        "def pre_request(worker, req):\n"
        "    worker.log.info('PRE %s %s', req.method, req.uri)\n"
        "def post_request(worker, req, environ, resp):\n"
        "    worker.log.info('POST %s %s', environ['PATH_INFO'], resp.status)\n"
    )
    with hosted("tests.e2e.legacy:app", config=str(config)) as running:
        assert running.get("/a?b", headers={"Accept": "c"}).status == 200
        assert running.get("/slow", headers={"Accept": "c", "Expect": "100-continue"}).status == 200
        last = ("LOG GET /slow", "POST /slow")
        wait_until(lambda: all(line in running.log for line in last), "the last lines")
        log = running.log
    for path, uri in (("/a", "/a?b"), ("/slow", "/slow")):
        assert log.index(f"PRE GET {uri}\n") < log.index(f"POST {path} 200 OK")
        assert f"LOG GET {path} 200 2 {{a}}c text/plain\n" in log


def test_hooks_and_the_application_share_what_is_kept_per_thread(tmp_path: Path) -> None:
    """Of each of several requests at once, whichever parser has read them."""
    (tmp_path / "kept.py").write_text(
        "import threading, time\n"
        "local = threading.local()\n"
        "def app(environ, start_response):\n"
        "    time.sleep(0.2)\n"
        "    local.answer = seen = local.asked.encode()\n"
        "    start_response('200 OK', [('Content-Length', str(len(seen)))])\n"
        "    return [seen]\n"
    )
    config = tmp_path / "hooks.conf.py"
    config.write_text(
        "control_socket_disable = True\n"
        "def pre_request(worker, req):\n"
        "    import kept\n"
        "    kept.local.asked = req.uri\n"
        "def post_request(worker, req, environ, resp):\n"
        "    import kept\n"
        "    worker.log.info('POST %s %s', req.uri, kept.local.answer.decode())\n"
    )
    paths = [f"/{number}" for number in range(6)]
    all_more = [{}, {"Expect": "100-continue"}] * 3
    environ = {"PYTHONPATH": str(tmp_path)}
    with (
        hosted("kept:app", config=str(config), more=environ) as running,
        ThreadPoolExecutor(len(paths)) as clients,
    ):
        answers = clients.map(lambda path, more: running.get(path, headers=more), paths, all_more)
        assert [answer.body.decode() for answer in answers] == paths
        lines = [f"POST {path} {path}\n" for path in paths]
        wait_until(lambda: all(line in running.log for line in lines), "the hooks' lines")


def test_max_requests_renews_the_worker() -> None:
    """The worker that has done its share closes its connections and is followed by another."""
    with hosted("tests.e2e.legacy:app", "--max-requests=5") as running:
        first = running.workers()
        for _ in range(6):
            running.get("/")
        wait_until(lambda: running.workers() not in ([], first), "another worker")
        wait_until(running.is_ready, "it to be ready")


def test_usr1_opens_the_log_again_for_the_application_too(tmp_path: Path) -> None:
    """What an application writes to wsgi.errors goes where the log goes, after a rotation too."""
    log = tmp_path / "error.log"
    with hosted("tests.e2e.legacy:app", f"--error-logfile={log}") as running:
        assert running.get("/complain").status == 200
        wait_until(lambda: "a complaint" in log.read_text(), "the complaint")
        log.rename(tmp_path / "old.log")
        running.process.send_signal(signal.SIGUSR1)
        for pid in running.workers():
            wait_until(log.exists, f"a new log, by the arbiter or {pid}")
        wait_until(
            lambda: running.get("/complain").status == 200 and "a complaint" in log.read_text(),
            "a complaint in the new log",
        )
        assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        pytest.param("raise ImportError", "gunicorn_h1c is not installed", id="not installed"),
        pytest.param(
            "def parse_request_fast(data): return object()\nclass LimitRequestLine: pass",
            "'object' object has no attribute 'method'",
            id="other names",
        ),
    ],
)
def test_without_the_c_parser_every_request_takes_the_fallback(
    tmp_path: Path, source: str, said: str
) -> None:
    """It is said once, and everything works."""
    (tmp_path / "gunicorn_h1c.py").write_text(f"{source}\n")
    with hosted("tests.e2e.legacy:app", more={"PYTHONPATH": str(tmp_path)}) as running:
        assert running.ask("POST", "/read", b"x" * 100_000).body == b"100000"
        wait_until(lambda: said in running.log, "the warning, which another thread writes")
        assert running.stop() == 0
        assert running.log.count(said) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    some(
        [
            ("GREENLINE_HEAD_TIMEOUT", "0"),
            ("GREENLINE_BODY_TIMEOUT", "soon"),
            ("GREENLINE_MAX_BODY_BYTES", "-1"),
        ]
    ),
)
def test_a_bad_setting_stops_gunicorn_by_name(name: str, value: str) -> None:
    """One line says which variable is wrong, before a worker is started."""
    with service(
        {name: value}, GREEN, target="tests.e2e.legacy:app", config=CONFIG, wait=False
    ) as running:
        assert running.process.wait(timeout=60) != 0
        assert running.log.startswith(f"greenline: {name}: ")
        assert "Traceback" not in running.log
