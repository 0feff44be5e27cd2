"""
Start a gunicorn, a uvicorn or a granian to be measured, and stop it.

1. It runs in a session of its own and is ended by its own process ids, never by a name.
2. It counts as started when it answers 200 and its workers have gone quiet: a worker still
   importing would spoil the first figures.
3. It starts from the given environment and the caller's, less what would change the server.
"""

import http.client
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from bench import proc
from greenline import settings

ROOT = Path(__file__).resolve().parents[1]
# Peers get their number of workers as an argument; ours reads it from the environment.
LEFT_OUT = ("GUNICORN_CMD_ARGS", "WEB_CONCURRENCY", "PORT")
LEFT_OUT_BEGINNING = ("UVICORN_", "GRANIAN_")
OPEN_FILES = 20_000


class ServerError(Exception):
    """A server did not start."""


class Server:
    """A *program* with *arguments*, ready when the path *ready* answers 200; a context manager."""

    program: ClassVar[str]
    # The argument that says where to listen.
    listen: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        ready: str,
        env: Mapping[str, str],
        log: Path,
        cwd: Path = ROOT,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.ready = ready
        self.log = log
        # gunicorn reads a gunicorn.conf.py of this folder even when it is not asked to.
        self.cwd = cwd
        # Beside this Python, not resolved: that of the virtual environment.
        program = Path(sys.executable).parent / self.program
        where = [each.format(port=self.port) for each in self.listen]
        self.command = [str(program), *arguments, *where]
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in LEFT_OUT and not name.startswith(LEFT_OUT_BEGINNING)
        }
        self.env = {**kept, **env}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, limit_s: float = 60) -> None:
        """Start it and wait until it is ready, or raise ServerError with the end of its log."""
        allow_files()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + limit_s
        while self.status(self.ready) != 200:
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise ServerError(f"not ready at {self.ready}: {self.log_text().strip()[-5000:]}")
            time.sleep(0.1)
        wait_until_quiet(self.process.pid)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Ask it for *path*: the status and the body."""
        status, _, body = self.ask("GET", path, headers)
        return status, body

    def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        timeout_s: float = 10,
    ) -> tuple[int, str | None, bytes]:
        """Ask it: the status, the Location and the body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.getheader("Location"), answer.read()
        finally:
            connection.close()

    def status(self, path: str) -> int:
        """Ask it for *path*: the status alone, 0 when it does not answer."""
        try:
            return self.get(path)[0]
        except (OSError, http.client.HTTPException):
            return 0

    def rss_mb(self) -> float:
        """Return the memory that all its processes hold now."""
        return proc.rss_mb(self.process.pid) if self.process else 0.0

    def pss_bytes(self) -> int:
        """Return the memory of all its processes, of which a shared page counts in part."""
        return proc.pss_bytes(self.process.pid) if self.process else 0

    def cpu_us(self) -> float:
        """Return the microseconds of the processor that all its processes have used."""
        return proc.cpu_ns(self.process.pid) / 1000 if self.process else 0.0

    def log_text(self) -> str:
        """Return what it has logged."""
        return self.log.read_text(errors="replace")

    def stop(self, grace_s: float = 5) -> None:
        """Ask it to end, and end its session after *grace_s*."""
        if self.process is None:
            return
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(grace_s)
        # Also when the arbiter has ended: a blocked worker may have outlived it.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class Gunicorn(Server):
    """A gunicorn: an arbiter and its workers."""

    program = "gunicorn"
    listen = ("--bind", "127.0.0.1:{port}")


class Uvicorn(Server):
    """A uvicorn: with one worker a single process."""

    program = "uvicorn"
    listen = ("--host", "127.0.0.1", "--port", "{port}")


class Granian(Server):
    """A granian: a main process and its worker."""

    program = "granian"
    listen = ("--host", "127.0.0.1", "--port", "{port}")


def free_port() -> int:
    """Return a port of the loopback without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def without_settings(environ: Mapping[str, str], kept: Mapping[str, str]) -> dict[str, str]:
    """Return *environ* without the settings of ours that *kept* does not have."""
    ours = {each.name for each in settings.VARIABLES}
    return {name: value for name, value in environ.items() if name in kept or name not in ours}


def allow_files(needed: int = 0) -> None:
    """
    Let this process and its servers open a file for every client: 1,024 is a common limit.

    :param needed: open files without which the bench cannot run, int. Default 0.
    :raises ServerError: the hard limit is below *needed*.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ServerError(
            f"{needed} open files are needed and the hard limit (ulimit -Hn) is {hard}"
        )
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def wait_until_quiet(pid: int, quiet_s: float = 0.3, limit_s: float = 10) -> None:
    """Wait until *pid* and all below it used almost no processor for *quiet_s*."""
    until = time.monotonic() + limit_s
    before = -1
    while time.monotonic() < until:
        now = proc.cpu_ticks(pid)
        # One tick is an idle worker's heartbeat. On a busy machine a process that works may get no
        # more than that, and is runnable.
        if before >= 0 and now - before <= 1 and not proc.is_runnable(pid):
            return
        before = now
        time.sleep(quiet_s)
