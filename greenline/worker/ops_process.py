"""
Run the process that serves ``/metrics`` as a child of the arbiter, and start it again if it dies.

It is another program, not a fork: with preload_app the arbiter has the application.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import greenline

RETRY_S = 5.0  # after one that has ended, so that one that cannot start costs little
# Not `-m`, which puts the current folder first into sys.path: a file of the application may have
# the name of a module of the standard library. Last, where Greenline is imported from.
CODE = "import sys; sys.path.append({!r}); from greenline.ops.__main__ import main; main()"


class OpsProcess:
    """
    Run the process; it reads a pipe that the arbiter alone writes to, and ends at its end.

    :param server: gunicorn's Arbiter.
    :param memory: the descriptor of the counters' memory, int.
    """

    def __init__(self, server: Any, memory: int) -> None:
        self._log = server.log
        self._memory = memory
        self._owner = server.cfg.uid, server.cfg.gid
        self._process: subprocess.Popen[bytes] | None = None
        self._until_s = 0.0
        self._read_end, self._write_end = os.pipe()

    def start(self) -> None:
        """Start the process, unless it runs, or was started less than ``RETRY_S`` ago."""
        if self._process is not None and self._process.poll() is None:
            return
        if monotonic() < self._until_s:
            return
        if self._process is not None:
            self._log.warning("the process of /metrics has ended; it is started again")
        self._until_s = monotonic() + RETRY_S
        folder = str(Path(greenline.__file__).parent.parent)
        command = [sys.executable, "-P", "-c", CODE.format(folder)]
        descriptors = (self._memory, self._read_end)
        arguments = (*descriptors, *self._owner)
        try:
            self._process = subprocess.Popen(
                [*command, *map(str, arguments)], pass_fds=descriptors, stdin=subprocess.DEVNULL
            )
        except OSError as error:  # out of processes or memory: the service goes on
            self._log.error("the process of /metrics cannot be started: %s", error)

    def close_pipe(self) -> None:
        """Close the pipe in a worker: open there, it would not end with the arbiter."""
        os.close(self._write_end)
        os.close(self._read_end)

    def end(self) -> None:
        """End the process."""
        with suppress(OSError):
            os.close(self._write_end)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(RETRY_S)
