"""Starting and stopping what is measured."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import proc
from bench.servers import Gunicorn, ServerError, free_port, wait_until_quiet, without_settings

APP = """
import os
def app(environ, start_response):
    status = "200 OK" if environ["PATH_INFO"] == "/ready" else "404 Not Found"
    start_response(status, [("Content-Type", "text/plain")])
    return [os.environ.get("WEB_CONCURRENCY", "unset").encode()]
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with a small application in it."""
    (tmp_path / "small.py").write_text(APP)
    return tmp_path


def gunicorn(site: Path, app: str = "small:app", workers: int = 2) -> Gunicorn:
    """Return a gunicorn of the application in *site*."""
    arguments = ["--no-control-socket", "--workers", str(workers), app]
    return Gunicorn(arguments, ready="/ready", env={}, log=site / "log", cwd=site)


def runs(pid: int) -> bool:
    """Say whether *pid* runs; one that ended and is not yet waited for does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def ended(pids: list[int], limit_s: float = 10) -> bool:
    """Wait until none of *pids* runs."""
    until = time.monotonic() + limit_s
    while any(runs(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_server_is_ready_with_all_its_workers_and_leaves_none(site: Path) -> None:
    """A started server answers, holds memory, and leaves no process when it is stopped."""
    with gunicorn(site) as server:
        assert server.get("/ready") == (200, b"unset")
        assert server.status("/other") == 404
        assert server.process is not None
        pids = proc.tree(server.process.pid)
        assert len(pids) == 3
        assert server.rss_mb() > 10
    assert ended(pids)
    assert server.status("/ready") == 0


def test_start_waits_for_the_workers_to_go_quiet(site: Path) -> None:
    """One worker answers while another still imports: that does not count as started."""
    (site / "slow.py").write_text(
        "import os, time\n"
        "from small import app\n"
        "try:\n"
        "    os.mkdir('first')\n"
        "except FileExistsError:\n"
        "    end = time.monotonic() + 2\n"
        "    while time.monotonic() < end: pass\n"
        "    os.mkdir('second')\n"
    )
    with gunicorn(site, app="slow:app"):
        assert (site / "second").exists()


def test_settings_of_the_caller_do_not_reach_the_server(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gunicorn's own variables are left out, so that everyone starts alike."""
    monkeypatch.setenv("WEB_CONCURRENCY", "7")
    monkeypatch.setenv("GUNICORN_CMD_ARGS", "--no-such-option")
    with gunicorn(site) as server:
        assert server.get("/ready") == (200, b"unset")


def test_a_server_that_cannot_start_is_reported_with_its_log(site: Path) -> None:
    """An application that does not import fails the start, and its error is in the message."""
    server = gunicorn(site, app="missing:app")
    with pytest.raises(ServerError, match="missing"):
        server.start()
    assert server.process is None


def test_a_server_that_is_never_ready_is_given_up(site: Path) -> None:
    """A server that answers something else in time is stopped and reported."""
    server = Gunicorn(
        ["--no-control-socket", "small:app"], ready="/no", env={}, log=site / "log", cwd=site
    )
    with pytest.raises(ServerError, match="not ready at /no"):
        server.start(limit_s=2)
    assert server.process is None


def test_a_blocked_worker_is_killed(site: Path) -> None:
    """A worker that does not end by itself ends with its session."""
    (site / "deaf.py").write_text(
        "import signal\nfrom small import app\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    )
    server = gunicorn(site, app="deaf:app")
    server.start()
    assert server.process is not None
    pids = proc.tree(server.process.pid)
    began = time.monotonic()
    server.stop(grace_s=0.5)
    assert time.monotonic() - began < 5
    assert ended(pids)


def test_a_busy_process_is_waited_for() -> None:
    """A process that still works is not quiet; the wait ends when it is, or at its limit."""
    busy = "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\n"
    process = subprocess.Popen([sys.executable, "-c", f"{busy}time.sleep(60)"])
    try:
        began = time.monotonic()
        wait_until_quiet(process.pid, limit_s=0.5)
        assert time.monotonic() - began < 2
        wait_until_quiet(process.pid, limit_s=30)
        assert 1.5 < time.monotonic() - began < 15
    finally:
        process.kill()
        process.wait()


def test_a_process_that_gets_no_processor_is_not_quiet() -> None:
    """One that works and has to wait for a processor uses none, and is waited for all the same."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        until = time.monotonic() + 10
        while not proc.is_runnable(process.pid) and time.monotonic() < until:
            time.sleep(0.02)
        began = time.monotonic()
        wait_until_quiet(process.pid, quiet_s=0, limit_s=0.5)  # within one tick
        assert time.monotonic() - began >= 0.5
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def family() -> Iterator[int]:
    """Start a process with a child that has a child, which has started its Python."""
    command = (
        "import subprocess, sys, time\n"
        "if len(sys.argv) > 1:\n"
        "    subprocess.Popen([sys.executable, '-c', *sys.argv[1:]])\n"
        "time.sleep(60)"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", command, command, "import time; print(flush=True); time.sleep(60)"],
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    with first:
        assert first.stdout is not None
        first.stdout.readline()
        yield first.pid
        os.killpg(first.pid, signal.SIGKILL)


def test_tree_holds_all_generations(family: int) -> None:
    """A process's tree is itself, its children and theirs."""
    tree = proc.tree(family)
    assert tree[0] == family
    assert len(tree) == 3
    assert proc.rss_mb(family) > proc.rss_mb(tree[-1]) > 0


def test_a_process_that_is_gone_has_nothing() -> None:
    """A process that ended meanwhile counts as nothing instead of failing the bench."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert proc.children(done.pid) == []
    assert proc.rss_mb(done.pid) == 0
    assert proc.cpu_ticks(done.pid) == 0
    assert proc.cpu_ns(done.pid) == 0
    assert proc.pss_bytes(done.pid) == 0


def test_processor_time_and_memory_are_those_of_all_generations(family: int) -> None:
    """A sum over the tree, as the kernel counts each process."""
    one, *below = proc.tree(family)
    last = below[-1]
    assert proc.cpu_ns(family) > proc.cpu_ns(last) > 1_000_000  # a Python has started
    assert proc.pss_bytes(one) > proc.pss_bytes(last) > 500_000
    assert proc.pss_bytes(last) <= (proc.rss_mb(last) + 0.1) * proc.MB


def test_processor_time_is_counted_in_less_than_a_tick() -> None:
    """Ours is what Python says of itself; in a process that has no children, as the tests' may."""
    code = """
import os, time
from bench import proc
before_ns = time.process_time_ns()
found_ns = proc.cpu_ns(os.getpid())
assert before_ns <= found_ns <= time.process_time_ns(), (before_ns, found_ns)
"""
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


def test_settings_of_ours_are_left_out_unless_they_are_given() -> None:
    """What is no setting of ours stays."""
    found = {"LANG": "C", "GREENLINE_POOL": "1", "REQUEST_TIMEOUT": "3"}
    assert without_settings(found, {"REQUEST_TIMEOUT": "3"}) == {
        "LANG": "C",
        "REQUEST_TIMEOUT": "3",
    }


def test_free_port_can_be_listened_on() -> None:
    """The port given out is one that a server can take."""
    assert 1024 <= free_port() <= 65535
