"""What several tests use: wait for a condition, run a command, start the service, ask it."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from tests.helpers.processes import children

T = TypeVar("T")

CHECKOUT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
OPS_TOKEN = "sesame"
HANG_S = 30.0  # no test has a request that takes so long


# What a person's shell may have set must not change what is tested.
SETTINGS = (
    "API_KEY", "AUTH", "CORS", "DATABASE_URL", "DRAIN_DELAY", "FLASK_", "GREENLINE_", "GUNICORN_",
    "LOG_LEVEL", "MAKE", "MFLAGS", "MONGODB_", "OPS_", "OTEL_", "PG", "POOL_", "PORT", "POSTGRES_",
    "RATE_LIMIT", "REQUEST_TIMEOUT", "WEB_CONCURRENCY",
)  # fmt: skip


# By default as many as the CPU limit, and here there may be one.
WORKERS = {"WEB_CONCURRENCY": "2"}
# `make test` is for each change, and takes minutes; the long forms try more of the same.
IS_LONG = os.environ.get("GREENLINE_LONG_TESTS") == "1"


@dataclass(frozen=True)
class Databases:
    """The URLs of a Postgres and a MongoDB."""

    postgres: str
    mongo: str

    @property
    def environ(self) -> dict[str, str]:
        urls = {"DATABASE_URL": self.postgres, "MONGODB_URI": self.mongo}
        return {**urls, **WORKERS, "AUTH": "off"}


# On a machine at load 10 a service takes 30 s to start; and what ends by itself takes 60 s.
START_LIMIT_S = 120.0
LIMIT_S = 50.0
# Where databases of tests are, and how much is free there: they take a tenth of it.
MEMORY = Path("/dev/shm")
ROOM = 4 << 30  # bytes
# A connect that is refused for lack of a connection slot waits so long for one.
SLOT_WAIT_S = 5


def wait_until(condition: Callable[[], T], what: str, limit_s: float = LIMIT_S) -> T:
    """Return the condition's first true value; fail after *limit_s* seconds, naming *what*."""
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"waited {limit_s:.0f} s for {what}"
        time.sleep(0.02)


# Bound and not listening: a server may still listen there, and no process gets the same port.
_kept: deque[socket.socket] = deque()


@contextmanager
def open_folder(prefix: str = "greenline-") -> Iterator[Path]:
    """
    Make a folder that other users may enter; remove it at the end.

    It is none of pytest's: each pytest that starts on this machine closes its folders to others.
    """
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=_memory()))
    path.chmod(0o711)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _memory() -> Path | None:
    """Return a folder in memory, None if there is none with room."""
    # A database has a thousand files, and a disk's file system takes as long to make them as
    # Postgres. A container has 64 MB there.
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM
    return MEMORY if has_room else None


def free_port() -> int:
    """Return a TCP port without a listener, which the kernel gives to no process for a while."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _kept.append(kept)
    if len(_kept) > 16:
        _kept.popleft().close()
    return int(kept.getsockname()[1])


def environ(more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without the service's settings, and with *more*."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    return {
        **mine,
        # A module that a test writes twice in a second is read twice: its date would be the same.
        "PYTHONDONTWRITEBYTECODE": "1",
        # The plugins installed here take pytest a second to import.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **more,
    }


def run(
    command: Sequence[str], more: Mapping[str, str], *, check: bool = True, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a command of the virtual environment in the checkout."""
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=CHECKOUT,
        env=environ({**WORKERS, **more}),
        text=True,
        capture_output=True,
        timeout=timeout_s,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Service:
    """A gunicorn with the service, its log, and how to ask it."""

    process: "subprocess.Popen[bytes]"
    port: int
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = HANG_S,
    ) -> Answer:
        """Send one request on its own connection; *body* is sent as JSON, bytes as they are."""
        sent = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, body=body, headers=sent)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        except TimeoutError as error:
            if timeout_s >= HANG_S:
                error.add_note(self._stacks)
            raise
        finally:
            connection.close()

    @cached_property
    def _stacks(self) -> str:
        """Where each request of the workers was when the first one had got no answer."""
        found = []
        for pid in self.workers():
            command = [sys.executable, "-m", "greenline", "stacks", str(pid)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
            found.append(done.stdout + done.stderr)
        return "\n".join(found)

    def get(self, path: str, **more: Any) -> Answer:
        return self.ask("GET", path, **more)

    def is_ready(self) -> bool:
        """Return whether ``/readyz`` answers 200 now; no listener means not ready."""
        try:
            return self.get("/readyz").status == 200
        except OSError:
            return False

    def is_alive(self) -> bool:
        """Return whether ``/healthz`` answers 200 now."""
        try:
            return self.get("/healthz").status == 200
        except OSError:
            return False

    def workers(self) -> list[int]:
        """Return the process ids of the arbiter's children."""
        return children(self.process.pid)

    def stop(self) -> int:
        """Send SIGTERM and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@contextmanager
def service(
    more: Mapping[str, str],
    *arguments: str,
    target: str = "app.wsgi:app",
    config: str = "gunicorn.conf.py",
    python: Sequence[str] = (),
    executable: str = sys.executable,
    cwd: Path = CHECKOUT,
    wait: bool = True,
) -> Iterator[Service]:
    """Run gunicorn; *wait* until it is ready. *python* are options of *executable*."""
    port = free_port()
    log = Path(tempfile.mkstemp(prefix="greenline-log-")[1])
    command = [executable, *python, str(BIN / "gunicorn"), "-c", config]
    command += ["--bind", f"127.0.0.1:{port}", *arguments, target]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=cwd, env=environ(more), stdout=output, stderr=output
        )
    running = Service(process, port, log)
    try:
        if wait:
            wait_until(
                lambda: running.is_ready() or process.poll() is not None,
                "the service to be ready",
                START_LIMIT_S,
            )
            assert process.poll() is None, running.log
        yield running
    finally:
        running.stop()
        log.unlink()
