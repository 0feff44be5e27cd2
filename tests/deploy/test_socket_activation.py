"""gunicorn on a socket that somebody else holds, as systemd does, here without a systemd."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.load import Address, Load
from tests.helpers.support import (
    BIN,
    CHECKOUT,
    IS_LONG,
    START_LIMIT_S,
    Databases,
    environ,
    free_port,
    wait_until,
)

RESTARTS = 10 if IS_LONG else 2
# What systemd does between fork and exec.
PASS_ON = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.executable, [sys.executable, "-B", *sys.argv[2:]])
"""
READY = b"READY=1"


class Holder:
    """Who holds the socket, and starts gunicorn on it."""

    def __init__(self, folder: Path, held: socket.socket) -> None:
        self.held = held
        held.listen(4096)
        self.log_file = folder / "log"
        self._notify_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify_socket.bind(str(folder / "notify"))
        self._notify_socket.settimeout(START_LIMIT_S)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> Address:
        """Where clients connect."""
        name: Address = self.held.getsockname()
        return name

    @property
    def log(self) -> str:
        """What gunicorn wrote."""
        return self.log_file.read_text(errors="replace")

    def start(self, more: dict[str, str], *arguments: str) -> None:
        """Start gunicorn, and return when it has notified that it is ready."""
        notify = {"NOTIFY_SOCKET": str(self._notify_socket.getsockname())}
        command = [sys.executable, "-c", PASS_ON, str(self.held.fileno()), str(BIN / "gunicorn")]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *arguments], cwd=CHECKOUT, env=environ({**more, **notify}),
                stdout=log, stderr=log, pass_fds=[self.held.fileno()],
            )  # fmt: skip
        try:
            assert self._notify_socket.recv(4096).startswith(READY), self.log
        except TimeoutError:
            pytest.fail(self.log)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the arbiter."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """Stop it as systemd does."""
        if self._process is not None:
            self.signal(signal.SIGTERM)
            assert self._process.wait(timeout=60) == 0, self.log
            self._process = None

    def close(self) -> None:
        """Stop it, and let the socket go."""
        self.stop()
        self.held.close()
        self._notify_socket.close()


@pytest.fixture(params=["unix socket", "TCP"])
def holder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holder]:
    """A socket that listens, and no process that accepts."""
    is_unix = request.param == "unix socket"
    held = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
    held.bind(str(tmp_path / "http.sock") if is_unix else ("127.0.0.1", 0))
    one = Holder(tmp_path, held)
    yield one
    one.close()


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1: test_systemd.py has it as well")
def test_a_restart_refuses_and_loses_no_client(holder: Holder, databases: Databases) -> None:
    """Who comes meanwhile waits; the socket of the configuration is not opened."""
    unused = free_port()
    more = {**databases.environ, "PORT": str(unused)}
    service = ("-c", "gunicorn.conf.py", "app.wsgi:app")
    holder.start(more, *service)
    load = Load(holder.address, clients=50, path="/books/1")
    for _ in range(RESTARTS):
        before = len(load.answered)
        wait_until(lambda: len(load.answered) > before + 500, "some load")  # noqa: B023
        holder.stop()
        holder.start(more, *service)
    before = len(load.answered)
    wait_until(lambda: len(load.answered) > before + 500, "some more")
    load.stop()
    print(f"{RESTARTS} restarts: {dict(load.statuses)}, refused {load.refused}, {load.failures}")
    assert (load.refused, load.failures) == (0, {})
    assert set(load.statuses) == {200}
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", unused)) != 0


def test_a_release_with_another_address_is_refused(holder: Holder, tmp_path: Path) -> None:
    """It would leave the socket, and all who wait there; one with the same address is taken."""
    conf = tmp_path / "conf.py"
    lines = "control_socket_disable = True\nworker_class = 'greenline.worker.GreenWorker'\n"
    conf.write_text(f"{lines}bind = '127.0.0.1:{free_port()}'\n")
    counting = {"COUNTING": str(tmp_path / "counting")}
    holder.start(counting, "-c", str(conf), "tests.e2e.counting:app")
    load = Load(holder.address)
    wait_until(lambda: len(load.answered) > 100, "some load")
    good = conf.read_text()
    conf.write_text(f"{lines}bind = '127.0.0.1:{free_port()}'\n")
    holder.signal(signal.SIGHUP)
    wait_until(lambda: "reload refused" in holder.log, "the line")
    assert "reload: the new release is loaded in a process of its own first" in holder.log
    assert "the socket is systemd's" in holder.log
    conf.write_text(good)
    holder.signal(signal.SIGHUP)
    wait_until(lambda: holder.log.count("Booting worker") == 2, "the new worker")
    before = len(load.answered)
    wait_until(lambda: len(load.answered) > before + 100, "some load on it")
    load.stop()
    assert (load.refused, load.failures) == (0, {})
    assert set(load.statuses) == {200}
