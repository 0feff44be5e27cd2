"""What waits for the disk waits in native threads."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.lock import Semaphore
from gevent.monkey import get_original

from greenline.hub import deadline
from greenline.offload import disk

sleep = get_original("time", "sleep")
get_ident = get_original("_thread", "get_ident")
ALL = ("fsync", "fdatasync", "sync", "sendfile", "copy_file_range")
NAMES = [name for name in ALL if hasattr(os, name)]
MUCH = os.urandom(disk.MIN_COPIED_BYTES)


@pytest.fixture
def idents(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads in which the originals run."""
    found: list[int] = []

    def noted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            found.append(get_ident())
            return original(*args, **kwargs)

        return call

    for name in NAMES:
        monkeypatch.setattr(disk, f"_{name}", noted(getattr(disk, f"_{name}")))
    return found


@pytest.mark.parametrize("name", ["fsync", "fdatasync"])
def test_a_file_is_written_to_the_disk(tmp_path: Path, idents: list[int], name: str) -> None:
    """By its descriptor, or by the object that has one."""
    sync = getattr(os, name)
    with (tmp_path / "file").open("wb") as file:
        assert sync(file) is sync(fd=file.fileno()) is None
        fd = file.fileno()
    assert len(idents) == 2
    assert get_ident() not in idents
    for wrong, error in ((fd, OSError), ("file", TypeError)):
        with pytest.raises(error):
            sync(wrong)


def test_all_files_are_written(idents: list[int]) -> None:
    assert os.sync() is None  # type: ignore[func-returns-value]
    assert len(idents) == 1
    assert idents[0] != get_ident()


def test_no_deadline_ends_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor does its greenlet leave it, which would close the file."""
    ended: list[float] = []

    def slow(_: object) -> None:
        sleep(0.1)
        ended.append(True)

    monkeypatch.setattr(disk, "_fsync", slow)
    with (tmp_path / "file").open("wb") as file:
        with deadline.limit(0.02):
            os.fsync(file)
            assert ended
            os.fsync(file)
        killed = gevent.spawn(os.fsync, file)
        gevent.sleep(0.01)
        killed.kill()
    assert len(ended) == 3


def test_nor_the_wait_for_a_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk._turns, "turns", Semaphore(1))
    disk._turns.turns.acquire()
    gevent.spawn_later(0.1, disk._turns.turns.release)
    with (tmp_path / "file").open("wb") as file, deadline.limit(0.02):
        os.fsync(file)


def test_others_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    goes_on: list[bool] = []

    def slow(_: object) -> None:
        while not goes_on:
            sleep(0.001)

    monkeypatch.setattr(disk, "_fsync", slow)
    with (tmp_path / "file").open("wb") as file:
        waiting = gevent.spawn(os.fsync, file.fileno())
        gevent.sleep(0.01)
        goes_on.append(True)
        waiting.get(timeout=10)


@pytest.mark.parametrize(("size", "is_in_thread"), [(len(MUCH), True), (1000, False)])
@pytest.mark.parametrize("name", ["sendfile", "copy_file_range"])
def test_a_file_is_copied(
    tmp_path: Path, idents: list[int], name: str, size: int, is_in_thread: bool
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(MUCH)
    with source.open("rb") as of, copy.open("wb") as to:
        if name == "sendfile":
            assert os.sendfile(to.fileno(), of.fileno(), 0, size) == size
        else:
            assert os.copy_file_range(of.fileno(), to.fileno(), size, offset_src=0) == size
    assert copy.read_bytes() == MUCH[:size]
    assert len(idents) == 1
    assert (idents[0] != get_ident()) is is_in_thread


@pytest.mark.parametrize(("size", "is_in_thread"), [(len(MUCH), True), (1000, False)])
def test_shutil_copies_by_it(
    tmp_path: Path, idents: list[int], size: int, is_in_thread: bool
) -> None:
    """A small file is copied before a thread would have begun."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(MUCH[:size])
    shutil.copyfile(source, copy)
    assert copy.read_bytes() == MUCH[:size]
    assert (get_ident() not in idents) is is_in_thread


def test_a_socket_is_sent_to_in_the_greenlet(tmp_path: Path, idents: list[int]) -> None:
    """It is not in blocking mode, and its greenlet waits for it."""
    source = tmp_path / "source"
    source.write_bytes(MUCH)
    ours, theirs = socket.socketpair()
    with ours, theirs, source.open("rb") as of:
        sent = os.sendfile(ours.fileno(), of.fileno(), 0, len(MUCH))
        assert theirs.recv(sent, socket.MSG_WAITALL) == MUCH[:sent]
    assert idents == [get_ident()]
    with pytest.raises(TypeError):
        os.sendfile("no", "file", 0, len(MUCH))
