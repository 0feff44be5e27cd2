"""A service whose releases are files, and what serves of it."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.support import BIN, CHECKOUT, Service, environ, free_port, wait_until

GOOD = "from tests.e2e.counting import app\n"
SAYS_READY = r"""
def post_worker_init(worker):
    import os
    os.write(1, f"ready: {worker.pid}\n".encode())  # at once: the others write into the same file
"""


class Releases:
    """A service whose application and whole configuration are files to be edited."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.bind = f"127.0.0.1:{self.port}"
        self.log_file = folder / "log"

    def write(self, app: str = GOOD, *, bind: list[str] | None = None, more: str = "") -> None:
        """Write both; *more* are lines of the configuration."""
        (self.folder / "release.py").write_text(app)
        (self.folder / "conf.py").write_text(
            "control_socket_disable = True\nworkers = 2\n"
            "worker_class = 'greenline.worker.GreenWorker'\n"
            f"pidfile = {str(self.folder / 'pid')!r}\n"
            f"bind = {bind or [self.bind]!r}\n{SAYS_READY}{more}\n"
        )

    def start(self) -> Service:
        """Start gunicorn."""
        command = [sys.executable, "-B", str(BIN / "gunicorn"), "-c", str(self.folder / "conf.py")]
        more = {"COUNTING": str(self.folder / "requests"), "PYTHONPATH": str(self.folder)}
        with self.log_file.open("wb") as log:
            process = subprocess.Popen(
                [*command, "release:app"], cwd=CHECKOUT, env=environ(more), stdout=log, stderr=log
            )
        return Service(process, self.port, self.log_file)

    @contextmanager
    def served(self) -> Iterator[Service]:
        """Run what is written."""
        running = self.start()
        try:
            # First without a request, which would count for max_requests of the first worker.
            wait_until(lambda: running.log.count("ready: ") >= 2, "two workers that have booted")
            wait_until(lambda: all_serve(running), "two workers")
            yield running
        finally:
            running.stop()
            print(running.log)  # pytest shows it if the test fails


def serving(running: Service) -> set[int]:
    """Return the workers that answer."""
    try:
        seen = {re.findall(rb"\d+", running.get("/?probe").body)[0] for _ in range(20)}
    except OSError:
        return set()
    return {int(pid) for pid in seen}


def all_serve(running: Service) -> bool:
    """Return whether two workers answer, and no other child is there."""
    return len(seen := serving(running)) == 2 and seen == set(running.workers())


def hang_up(running: Service) -> None:
    """Have the arbiter take what is written now."""
    running.process.send_signal(signal.SIGHUP)
