"""Locks of files are waited for in the hub, and in order."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event

from greenline.offload import locks

HOLD_S = 0.002


def _lock_by_flock(file: Any) -> None:
    locks.flock(file, fcntl.LOCK_EX)


def _lock_by_ofd(file: Any) -> None:
    locks.fcntl_(file, fcntl.F_OFD_SETLKW, _range(fcntl.F_WRLCK))


def _range(kind: int) -> bytes:
    return kind.to_bytes(2, "little") + bytes(30)


@pytest.mark.parametrize("lock", [_lock_by_flock, _lock_by_ofd], ids=["flock", "ofd"])
def test_a_lock_that_is_taken_again_and_again_goes_to_one_that_waits(
    tmp_path: Path, lock: Callable[[Any], None]
) -> None:
    """Three greenlets take the lock again as soon as they have closed the file."""
    path = tmp_path / "locked"
    taken = []

    def take(name: str) -> None:
        with open(path, "w") as file:
            lock(file)
            taken.append(name)
            gevent.sleep(HOLD_S)

    def take_always() -> None:
        while "late" not in taken[-1:] and len(taken) < 200:
            take("again")

    greedy = [gevent.spawn(take_always) for _ in range(3)]
    gevent.sleep(5 * HOLD_S)
    late = gevent.spawn(take, "late")
    before = len(taken)
    gevent.joinall([late, *greedy], timeout=20, raise_error=True)
    assert taken.index("late") - before < 20


def test_shared_locks_are_held_side_by_side_once_the_exclusive_one_is_released(
    tmp_path: Path,
) -> None:
    """Ten wait for one writer, and hold the lock together after it."""
    path = tmp_path / "locked"
    holding, all_hold = 0, Event()

    def read() -> None:
        nonlocal holding
        with open(path) as file:
            locks.flock(file, fcntl.LOCK_SH)
            holding += 1
            if holding == 10:
                all_hold.set()
            all_hold.wait(20)

    with open(path, "w") as file:
        locks.flock(file, fcntl.LOCK_EX)
        readers = [gevent.spawn(read) for _ in range(10)]
        gevent.sleep(0.02)
        assert not holding
    assert all_hold.wait(20)
    gevent.joinall(readers, timeout=20, raise_error=True)
    assert not locks._waiting


def test_a_shared_lock_becomes_exclusive_while_another_waits_for_it(tmp_path: Path) -> None:
    """The first in the queue waits for the shared lock of the second, which is let past it."""
    path = tmp_path / "locked"
    order = []

    def write() -> None:
        with open(path) as file:
            locks.flock(file, fcntl.LOCK_EX)
            order.append("writer")

    with open(path, "w") as mine, open(path) as other:
        locks.flock(mine, fcntl.LOCK_SH)
        locks.flock(other, fcntl.LOCK_SH)
        writer = gevent.spawn(write)
        gevent.sleep(0.01)
        gevent.spawn_later(0.01, locks.flock, other, fcntl.LOCK_UN)
        with gevent.Timeout(20):
            locks.flock(mine, fcntl.LOCK_EX)
        order.append("upgraded")
    writer.get(timeout=20)
    assert order == ["upgraded", "writer"]


def test_a_lock_that_is_held_for_long_is_tried_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits for it all day must not keep the processor busy."""
    # Of a clock that no busy machine stops: a part of the attempts would be missing.
    attempts, now_s = 0, 100.0

    def is_held(*_: Any) -> None:
        nonlocal attempts
        attempts += 1
        raise BlockingIOError(errno.EAGAIN, "held")

    def wait_in(_: Any, pause_s: float) -> None:
        nonlocal now_s
        now_s += pause_s
        if now_s > 101.5:
            raise TimeoutError

    monkeypatch.setattr(locks, "_flock", is_held)
    monkeypatch.setattr(locks, "wait_in", wait_in)
    monkeypatch.setattr(locks, "monotonic", lambda: now_s)
    with open(tmp_path / "locked", "w") as file, pytest.raises(TimeoutError):
        locks.flock(file, fcntl.LOCK_EX)
    assert 30 < attempts < 200


def test_another_range_is_locked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that begins at another position of the file, for which nothing waits."""
    monkeypatch.setattr(locks, "MIN_LATER_PAUSE_S", 60.0)
    monkeypatch.setattr(locks, "MAX_LATER_PAUSE_S", 60.0)
    path = tmp_path / "locked"
    path.write_bytes(bytes(20))
    held = "import os, sys; fd = os.open(sys.argv[1], os.O_RDWR); os.lockf(fd, os.F_LOCK, 1)"
    command = [sys.executable, "-c", f"{held}; print(flush=True); sys.stdin.read()", str(path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder,
        open(path, "r+b") as first,
        open(path, "r+b") as second,
    ):
        assert holder.stdout is not None
        holder.stdout.readline()
        waiting = gevent.spawn(locks.os_lockf, first.fileno(), os.F_LOCK, 1)
        gevent.sleep(0.01)
        second.seek(10)
        with gevent.Timeout(20):
            locks.os_lockf(second.fileno(), os.F_LOCK, 1)
        assert not waiting.dead
        holder.communicate()
        waiting.get(timeout=20)


def test_a_pipe_is_locked() -> None:
    """It has no position."""
    read_end, write_end = os.pipe()
    locks.os_lockf(write_end, os.F_LOCK, 0)
    os.close(read_end)
    os.close(write_end)


def test_an_error_of_the_system_is_raised(tmp_path: Path) -> None:
    """A descriptor that is closed cannot be locked, whoever waits for another file."""
    with open(tmp_path / "locked", "w") as file, open(tmp_path / "locked") as other:
        locks.flock(file, fcntl.LOCK_EX)
        waiting = gevent.spawn(locks.flock, other, fcntl.LOCK_EX)
        gevent.sleep(0.01)
        closed = os.dup(file.fileno())
        os.close(closed)
        with pytest.raises(OSError, match="Bad file descriptor"):
            locks.flock(closed, fcntl.LOCK_EX)
        locks.flock(file, fcntl.LOCK_UN)
        waiting.get(timeout=20)
