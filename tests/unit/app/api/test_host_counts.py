"""app.api.host_counts: exact over processes, through kills, in bounded memory."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from app.api import host_counts
from app.api.host_counts import CHECK_FILE_S, FILE_SIZE, GROUPS, WAYS, HostCounts
from greenline.errors import ConfigError
from tests.helpers.clock import Clock
from tests.helpers.support import CHECKOUT, environ

PROCESSES, EACH = 4, 1_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the counts are."""
    return tmp_path / "counts"


@pytest.fixture
def counts(path: Path) -> Iterator[HostCounts]:
    """This process's counts."""
    counts = HostCounts(path)
    yield counts
    counts.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of all counts."""
    clock = Clock(1_000_000.0)
    monkeypatch.setattr(host_counts, "time", clock)
    return clock


def in_a_process(code: str, path: Path) -> "subprocess.Popen[str]":
    """Run *code* in another process, with ``counts`` and ``fcntl``."""
    before = f"""
        import fcntl, os, signal
        from pathlib import Path
        from app.api.host_counts import HostCounts, FILE_SIZE, _located
        counts = HostCounts(Path({str(path)!r}))
    """
    return subprocess.Popen(
        [sys.executable, "-c", dedent(before) + dedent(code)],
        cwd=CHECKOUT, env=environ({}), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_window_counts_and_ends(counts: HostCounts, clock: Clock) -> None:
    """It begins with the first count, and so does the next one."""
    assert [counts.incr("a", 60), counts.incr("a", 60, 5), counts.incr("b", 60)] == [1, 6, 1]
    assert (counts.get("a"), counts.get_expiry("a"), counts.get("c")) == (6, clock.now + 60, 0)
    clock.now += 60
    assert (counts.get("a"), counts.get_expiry("a")) == (0, clock.now)
    assert counts.incr("a", 60) == 1
    counts.clear("a")
    assert counts.get("a") == 0


def test_a_clock_that_is_set_back_ends_the_window(counts: HostCounts, clock: Clock) -> None:
    """Else a client would wait for as long as it was wrong."""
    counts.incr("a", 60, 100)
    clock.now -= 86_400
    assert counts.incr("a", 60) == 1


def test_no_count_of_several_processes_is_lost(counts: HostCounts, path: Path) -> None:
    """Each gets every number once."""
    code = f"print(*(counts.incr('a', 3600) for _ in range({EACH})))"
    running = [in_a_process(code, path) for _ in range(PROCESSES)]
    numbers = [int(number) for each in running for number in each.communicate()[0].split()]
    assert sorted(numbers) == list(range(1, PROCESSES * EACH + 1))
    assert counts.get("a") == PROCESSES * EACH


def test_a_process_killed_inside_does_not_block_the_others(counts: HostCounts, path: Path) -> None:
    """The kernel frees its lock, and what it counted is there."""
    code = """
        counts.incr("a", 3600)
        counts._try_lock(_located("a")[0])
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = in_a_process(code, path)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert counts.incr("a", 3600) == 2


def test_a_process_stopped_inside_does_not_stop_the_others(
    counts: HostCounts, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for a while, and count then."""
    monkeypatch.setattr(host_counts, "COUNTS_TIMEOUT_S", 0.05)
    code = """
        counts._try_lock(_located("a")[0])
        print("locked", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    """
    stopped = in_a_process(code, path)
    try:
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "locked\n"
        assert counts.incr("a", 3600) == 1
        assert not counts._try_lock(host_counts._located("a")[0])
    finally:
        stopped.kill()
        stopped.communicate()


def test_memory_is_bounded_and_large_counts_stay(counts: HostCounts, path: Path) -> None:
    """Ten times as many clients as there is room for do not replace the one who asks a lot."""
    counts.incr("a lot", 3600, 50)
    for number in range(10 * GROUPS * WAYS // 8):
        counts.incr(f"client {number}", 3600)
    assert counts.get("a lot") == 50
    assert path.stat().st_size == FILE_SIZE


def test_a_file_that_was_removed_is_made_anew(
    counts: HostCounts, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All processes move to the new one in a moment."""
    counts.incr("a", 3600)
    path.unlink()
    other = HostCounts(path)
    other.incr("a", 3600)
    monkeypatch.setattr(host_counts, "monotonic", lambda: counts._check_file_at + CHECK_FILE_S)
    assert counts.incr("a", 3600) == 2
    other.close()


@pytest.mark.parametrize("content", [b"", b"something else", b"x" * FILE_SIZE], ids=len)
def test_a_damaged_file_is_replaced(path: Path, content: bytes) -> None:
    """Its counts are lost, and the service starts."""
    path.write_bytes(content)
    path.chmod(0o600)
    counts = HostCounts(path)
    assert counts.incr("a", 3600) == 1
    counts.close()


def test_a_file_of_others_is_refused(path: Path) -> None:
    """A user that may write it could lock a client out."""
    path.touch()
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="may be used by others"):
        HostCounts(path)


def test_it_is_a_storage_of_the_library(counts: HostCounts) -> None:
    """With what its strategies ask of one."""
    anything: Any = counts
    assert counts.check()
    counts.incr("a", 3600)
    anything.reset()
    assert counts.get("a") == 0
