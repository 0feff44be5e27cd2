"""Serve an application by a gunicorn of our own, for the length of a block."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from greenline.doctor.imports import ROOT
from greenline.doctor.project import gunicorn_options

# Lines of gunicorn that may follow the reason for which it ends.
ENDING = re.compile(
    r"\[[^]]+\] \[\d+\] \[(INFO\]|ERROR\] (Worker \(pid:|Shutting down: |Reason: ))"
    r"|gunicorn\S*HaltServer|\s"
)
START_LIMIT_S, STOP_LIMIT_S, ANSWER_LIMIT_S = 60.0, 40.0, 60.0


class TrialError(Exception):
    """The application could not be run."""


@contextmanager
def serving(
    target: str,
    folder: Path,
    bind: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
) -> Iterator["subprocess.Popen[bytes]"]:
    """
    Run gunicorn for the length of the block.

    :param target: what gunicorn is given, such as ``shop.wsgi:app``, str.
    :param folder: the one that it runs in.
    :param bind: the address that it listens on, str.
    :param arguments: its options, such as ``-w 2``.
    :param environ: variables that are added to this process's.
    :raises TrialError: it does not serve, or ends before the block does.
    """
    if gunicorn_options().daemon:
        raise TrialError("GUNICORN_CMD_ARGS has --daemon, which would be left behind: remove it")
    with socket.socket() as kept, tempfile.TemporaryFile() as log:
        try:
            # On a port in use another server would answer in its place. Bound and not listening:
            # gunicorn may listen there all the same, and until then no other program gets the port.
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept.bind(address(bind))
        except (OSError, ValueError, OverflowError) as error:
            raise TrialError(f"gunicorn cannot listen on {bind}: {error}") from error
        child = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *arguments, "-b", bind, target],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "PYTHONPATH": python_path(), **environ},
        )  # fmt: skip
        try:
            _wait_until_ready(child, bind, log)
            yield child
            if child.poll() is not None:
                raise TrialError(f"gunicorn has ended: {_last_line(log)}")
        finally:
            child.terminate()
            try:
                child.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def python_path() -> str:
    """Return a ``PYTHONPATH`` with which a child imports this Greenline."""
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), ROOT]))


def _wait_until_ready(child: "subprocess.Popen[bytes]", bind: str, log: Any) -> None:
    until_s = monotonic() + START_LIMIT_S
    while child.poll() is None and monotonic() < until_s:
        # A worker that has booted answers; the listener is there before.
        with suppress(OSError), socket.create_connection(address(bind), 1.0) as sock:
            sock.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
            sock.settimeout(ANSWER_LIMIT_S)
            if sock.recv(1):
                return
        sleep(0.1)
    raise TrialError(f"gunicorn does not serve: {_last_line(log)}")


def _last_line(log: Any) -> str:
    log.seek(0)
    text: str = log.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    # What comes after the reason is how gunicorn ends.
    reasons = [line for line in lines if not ENDING.match(line)]
    return (reasons or lines or ["it printed nothing"])[-1]


def address(bind: str) -> tuple[str, int]:
    """Return the host and the port of ``host:port``."""
    host, _, port = bind.rpartition(":")
    return host, int(port)


def free_port() -> int:
    """Return a TCP port of the loopback interface without a listener."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
