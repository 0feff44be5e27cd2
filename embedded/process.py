"""
Start and end the processes that are ours.

1. Each has a session of its own: a Ctrl-C in the terminal reaches the supervisor alone, which
   stops them in order.
2. Each gets a signal from the kernel when the *thread* that started it ends, so a kill -9 of the
   supervisor leaves none. ``setpriv`` asks for that after it changed the user, which would clear
   it; start children from a thread that lives as long as they should.
3. Ending a child ends its whole group: an arbiter that was killed leaves its workers there.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from embedded import signals

POLL_S = 0.02


class Child:
    """A server of ours: *stop_signal* asks it to end, and is what it gets when we are killed."""

    def __init__(self, name: str, stop_signal: signal.Signals = signal.SIGTERM) -> None:
        self.name = name
        self.stop_signal = stop_signal
        self._popen: subprocess.Popen[bytes] | None = None

    def start(
        self,
        command: Sequence[str | Path],
        become: Sequence[str] = (),
        output: IO[bytes] | int | None = None,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Start *command*, as the user that *become* (options of setpriv) names."""
        with signals.held():
            self._popen = subprocess.Popen(
                [*_setpriv(self.stop_signal, become), *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output is not None else None,
                start_new_session=True,
                env=env,
                cwd=cwd,
            )

    @property
    def pid(self) -> int | None:
        """The process id, None before the start and after the end."""
        return self._popen.pid if self._popen else None

    @property
    def output(self) -> IO[bytes]:
        """What the child writes, when it was started with ``output=subprocess.PIPE``."""
        if self._popen is None or self._popen.stdout is None:
            raise ValueError("not started with a pipe")
        return self._popen.stdout

    def alive(self) -> bool:
        """Return whether it runs."""
        return self._popen is not None and self._popen.poll() is None

    def wait(self) -> int | None:
        """Wait for its end; return its exit status."""
        return self._popen.wait() if self._popen else None

    def stop(self, timeout_s: float = 30) -> int | None:
        """Ask it to end, kill it and its group after *timeout_s*; return its exit status."""
        if self._popen is None:
            return None
        if self.alive():
            self._popen.send_signal(self.stop_signal)
            wait_until(lambda: not self.alive(), timeout_s)
        return self.kill()

    def kill(self) -> int | None:
        """End it, and what it left in its group, with SIGKILL; return its exit status."""
        if self._popen is None:
            return None
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        status = self._popen.wait()
        if self._popen.stdout:
            self._popen.stdout.close()
        self._popen = None
        return status


def run(
    command: Sequence[str | Path],
    become: Sequence[str] = (),
    input_text: str | None = None,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run *command* to its end and return what it wrote; kill its group when interrupted."""
    process = None
    try:
        with signals.held():
            process = subprocess.Popen(
                [*_setpriv(signal.SIGKILL, become), *map(str, command)],
                stdin=subprocess.DEVNULL if input_text is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                text=True,
                env=env,
                cwd=cwd,
            )
        out, err = process.communicate(input_text)
    finally:
        if process and process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_until(condition: Callable[[], object], timeout_s: float) -> bool:
    """Wait for *condition*, *timeout_s* at most; return whether it came true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def listens(port: int) -> bool:
    """Return whether somebody listens on *port* of 127.0.0.1."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def end_orphans(ours: Callable[[list[str]], bool], timeout_s: float = 2) -> None:
    """
    End the processes whose arguments *ours* accepts: a killed supervisor left them.

    The kernel has asked them to stop already, so they get *timeout_s* before SIGKILL.
    """
    if not wait_until(lambda: not any(_matching(ours)), timeout_s):
        kill_all(ours)


def kill_all(ours: Callable[[list[str]], bool]) -> None:
    """Kill the processes whose arguments *ours* accepts, and return when they are gone."""

    def none_left() -> bool:
        found = list(_matching(ours))
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    wait_until(none_left, timeout_s=10)


def _matching(ours: Callable[[list[str]], bool]) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = entry.read_text(errors="replace").split("\0")
        except OSError:  # It ended meanwhile.
            continue
        if ours(arguments):
            yield int(entry.parent.name)


def _setpriv(parent_died: signal.Signals, become: Sequence[str]) -> list[str]:
    # Only Linux has it. Elsewhere a kill -9 of the supervisor leaves its servers to the next start.
    if shutil.which("setpriv") is None and not become:
        return []
    return ["setpriv", f"--pdeathsig={parent_died.name.removeprefix('SIG')}", *become, "--"]
