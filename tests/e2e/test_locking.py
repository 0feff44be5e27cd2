"""Calls that block in C do not block the worker: locks of sqlite3 and of files, child processes."""

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.helpers.processes import processor_wait_s
from tests.helpers.support import CHECKOUT, IS_LONG, Service, run, service, wait_until

WORKER = ("-k", "greenline.worker.GreenWorker", "-w", "1")
LONGEST_S = 1.0 + 1.0  # of a request that waits for nothing
CROWDS = [(5, 0.1), (50, 0.005), *([(200, 0.004)] if IS_LONG else [])]
NAMES = [str(writers) for writers, _ in CROWDS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the application has its files."""
    return tmp_path_factory.mktemp("locking")


@pytest.fixture(scope="module")
def locking(folder: Path) -> Iterator[Service]:
    """Run the application on one worker, without any setting."""
    with service(
        {"LOCKING": str(folder)}, *WORKER,
        target="tests.e2e.locking:app", config="tests/e2e/plain_conf.py", wait=False,
    ) as running:  # fmt: skip
        wait_until(lambda: _answers(running), "the worker to serve")
        yield running


def _answers(running: Service) -> bool:
    assert running.process.poll() is None, running.log
    try:
        return running.get("/dns").status == 200
    except OSError:
        return False


def look_up_until_done(running: Service, done: list[bool]) -> float:
    """
    Resolve names until *done* has something; return the seconds of the slowest request.

    What its threads waited for a processor does not count: that is another program's work.
    """
    pids, slowest_s = [os.getpid(), *running.workers()], 0.0
    while not done:
        started_s = time.monotonic() - processor_wait_s(pids)
        assert running.get("/dns").body == b"True"
        slowest_s = max(slowest_s, time.monotonic() - processor_wait_s(pids) - started_s)
    return slowest_s


def ask_beside_look_ups(running: Service, paths: list[str]) -> list[bytes]:
    """Ask all *paths* at once, resolve names meanwhile; return the answers."""
    done: list[bool] = []
    with ThreadPoolExecutor(len(paths) + 1) as clients:
        beside = clients.submit(look_up_until_done, running, done)
        try:
            answers = list(clients.map(running.get, paths))
        finally:
            done.append(True)
        assert beside.result() < LONGEST_S
    assert [answer.status for answer in answers] == [200] * len(paths), running.log
    return [answer.body for answer in answers]


@pytest.mark.parametrize(("writers", "hold_s"), CROWDS, ids=NAMES)
def test_writers_that_hold_the_lock_of_a_database_all_end(
    locking: Service, folder: Path, writers: int, hold_s: float
) -> None:
    """``begin immediate``, sleep, commit, at once: each row is written once, others are served."""
    first = writers * 1000
    paths = [f"/write?{first + number},{hold_s}" for number in range(writers)]
    assert ask_beside_look_ups(locking, paths) == [b"written"] * writers
    with closing(sqlite3.connect(folder / "rows.db")) as conn:
        query = "select number from row where number >= ? and number < ? order by number"
        rows = conn.execute(query, (first, first + writers)).fetchall()
    assert rows == [(first + number,) for number in range(writers)]


@pytest.mark.parametrize(("writers", "hold_s"), CROWDS, ids=NAMES)
def test_holders_of_flock_all_end(
    locking: Service, folder: Path, writers: int, hold_s: float
) -> None:
    """Each waits for its turn, holds the lock across a sleep and writes its line once."""
    (folder / "locked").write_text("")
    paths = [f"/flock?{number},{hold_s}" for number in range(writers)]
    assert ask_beside_look_ups(locking, paths) == [b"written"] * writers
    written = (folder / "locked").read_text().split()
    assert sorted(map(int, written)) == list(range(writers))


def test_a_lock_of_another_process_is_waited_for_beside_the_others(
    locking: Service, folder: Path
) -> None:
    """Twenty wait in ``lockf``, more than gevent has threads: names are resolved meanwhile."""
    with open(folder / "locked", "a") as file, ThreadPoolExecutor(20) as clients:
        fcntl.lockf(file, fcntl.LOCK_EX)
        waiting = [clients.submit(locking.get, "/lockf") for _ in range(20)]
        for _ in range(20):
            assert locking.get("/dns").body == b"True"
        assert not any(one.done() for one in waiting)
        fcntl.lockf(file, fcntl.LOCK_UN)
        assert {one.result().body for one in waiting} == {b"locked"}


@pytest.mark.parametrize("path", ["/system", "/waitpid", "/wait4"])
def test_children_are_waited_for_side_by_side(locking: Service, path: str) -> None:
    """Ten at once take as long as one, and each has its own exit status."""
    started_s = time.monotonic()
    answers = ask_beside_look_ups(locking, [f"{path}?{number},0.5" for number in range(10)])
    assert time.monotonic() - started_s < 4
    codes = [number << 8 if path == "/system" else number for number in range(10)]
    assert answers == [str(code).encode() for code in codes]


def test_a_long_query_does_not_block_the_others(locking: Service) -> None:
    """sqlite counts to half a million in four of its threads."""
    number = 500_000
    paths = [f"/read?{number}"] * 4
    assert ask_beside_look_ups(locking, paths) == [str(number).encode()] * 4


REPLACED = """
import bz2, concurrent.futures, fcntl, hashlib, lzma, multiprocessing.pool, subprocess, zlib
import sqlite3, sys
from greenline.patch import patch_all
patch_all()
import sqlite3.dbapi2
for module in list(sys.modules.values()):
    for name, value in list(vars(module).items()):
        parts = [value, *(vars(value).values() if isinstance(value, type) else ())]
        codes = [getattr(getattr(part, "__func__", part), "__code__", None) for part in parts]
        if any("/greenline/offload/" in getattr(code, "co_filename", "") for code in codes):
            if not module.__name__.startswith("greenline."):
                print(module.__name__, name)
"""


def test_off_leaves_everything_as_it_is() -> None:
    """With ``GREENLINE_OFFLOAD=off`` nothing is replaced but what a pool of processes needs."""
    replaced = set(_output(REPLACED).splitlines())
    of_all = {
        "fcntl flock", "os read", "os fsync", "os system", "os waitpid", "builtins open",
        "sqlite3 connect", "zlib compress", "hashlib pbkdf2_hmac",
        "threading Thread", "concurrent.futures.thread ThreadPoolExecutor",
    }  # fmt: skip
    assert of_all <= replaced
    left = _output(REPLACED, GREENLINE_OFFLOAD="off").splitlines()
    assert left == ["_multiprocessing SemLock", "multiprocessing.connection Connection"]


def _output(code: str, **environ: str) -> str:
    return run(["python", "-c", code], {**environ, "PYTHONPATH": str(CHECKOUT)}).stdout
