"""greenline.cache.shared: the workers of a host load a key once."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import msgspec
import pytest
from gevent.event import Event

from greenline.cache import Cache, shared
from greenline.cache.cache import MAX_INVALIDATED
from greenline.cache.shared import (
    MAX_RECORD_BYTES,
    RING_BYTES,
    WRITTEN,
    Loaded,
    SharedLoads,
    _number,
)
from greenline.cache.values import keep
from greenline.errors import ConfigError, StoreDown
from greenline.hub import deadline
from greenline.slots.file import lock, other_lock
from tests.helpers.support import CHECKOUT, wait_until

MB = 1 << 20
LOADER = """
import sys, time
from pathlib import Path
from greenline.cache.shared import SharedLoads
with SharedLoads("test", Path(sys.argv[1])).turn("k") as found:
    print("loads", flush=True)
    time.sleep(60)
"""


class Worker:
    """A cache as another process of the host would have it, and what it loads."""

    def __init__(self, folder: Path) -> None:
        self.shared = SharedLoads("test", folder)
        self.cache = Cache(16 * MB, 60)
        self.cache._shared = self.shared
        self.loads = 0
        self.noted: list[str] = []

    def get(self, value: Any = "value", takes_s: float = 0.0, may_end: Any = None) -> Any:
        def load() -> Any:
            self.loads += 1
            gevent.sleep(takes_s) if may_end is None else may_end.wait()
            if isinstance(value, Exception):
                raise value
            return value

        return self.cache.get_or_load("k", load, tags=["t"], note=self.noted.append)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[Worker]]:
    found = [Worker(tmp_path) for _ in range(4)]
    yield found
    for each in found:
        each.shared.close()


def is_awaited(worker: Worker) -> bool:
    """Return whether another one waits for the load of *worker*."""
    return other_lock(worker.shared._file.fileno(), _number("k") + 1) is not None


def together(workers: list[Worker], value: Any = "value", takes_s: float = 0.1) -> list[Any]:
    """Let all ask for one key at once; errors are returned."""

    def get(worker: Worker) -> Any:
        try:
            return worker.get(value, takes_s)
        except Exception as error:
            return error

    asking = [gevent.spawn(get, worker) for worker in workers]
    gevent.joinall(asking, timeout=10)
    return [each.value for each in asking]


@pytest.mark.parametrize("value", ["text", [1, {"a": 2}], None, b"x" * 100_000], ids=type)
def test_one_worker_loads_and_all_have_its_value(workers: list[Worker], value: Any) -> None:
    assert together(workers, value) == [value] * 4
    assert sum(each.loads for each in workers) == 1
    assert [each.cache.stats()["shared"] for each in workers] == [0, 1, 1, 1]
    assert [each.noted[-1] for each in workers] == ["miss", "collapsed", "collapsed", "collapsed"]
    assert [each.get("another") for each in workers] == [value] * 4  # all have kept it


def test_one_after_the_other_each_loads(workers: list[Worker]) -> None:
    """What is shared is a load, and not the cache."""
    for each in workers:
        each.get()
    assert [each.loads for each in workers] == [1] * 4


def test_the_age_is_that_of_the_load(workers: list[Worker]) -> None:
    together(workers)
    begun_s = {each.cache._entries["k"].begun_s for each in workers}
    assert len(begun_s) == 1


def test_after_an_error_each_loads_by_itself_and_at_once(workers: list[Worker]) -> None:
    """One after the other they would wait four times as long."""
    began_s = time.monotonic()
    found = together(workers, StoreDown("it is away"), takes_s=1.0)
    assert [type(each) for each in found] == [StoreDown] * 4
    assert sum(each.loads for each in workers) == 4
    assert time.monotonic() - began_s < 2 * 1.0 + 1.0


def test_a_value_that_is_too_large_is_loaded_by_each(workers: list[Worker]) -> None:
    value = b"x" * MAX_RECORD_BYTES
    assert together(workers, value) == [value] * 4
    assert sum(each.loads for each in workers) == 4


@pytest.mark.parametrize(
    "invalidate",
    [
        lambda cache: cache.invalidate("k"),
        lambda cache: cache.invalidate(tag="t"),
        lambda cache: cache.clear(),
        lambda cache: [cache.invalidate(f"key {number}") for number in range(MAX_INVALIDATED + 1)],
    ],
    ids=["key", "tag", "all", "more than are remembered"],
)
def test_what_was_invalidated_since_is_loaded_again(
    workers: list[Worker], invalidate: Callable[[Cache], object]
) -> None:
    """A worker that has seen a write takes no value whose load began before."""
    one, other = workers[:2]
    loading = gevent.spawn(one.get, "old", 0.2)
    wait_until(lambda: one.loads, "the load")
    invalidate(other.cache)
    assert other.get("new") == "new"
    assert loading.get() == "old"


def test_what_invalidates_another_key_changes_nothing(workers: list[Worker]) -> None:
    """The load of one worker is that of the others."""
    one, other = workers[:2]
    may_end = Event()
    loading = gevent.spawn(one.get, "old", may_end=may_end)
    wait_until(lambda: one.loads, "the load")
    other.cache.invalidate("another key", tag="another tag")
    waiting = gevent.spawn(other.get, "new")
    wait_until(lambda: is_awaited(one), "the other one to wait")
    may_end.set()
    assert waiting.get(timeout=10) == loading.get(timeout=10) == "old"


def test_what_cannot_be_pickled_is_loaded_by_each(workers: list[Worker]) -> None:
    """It is kept by none, or as it is; the one that loads has no error of the others."""

    class Local(msgspec.Struct, frozen=True):
        name: str

    assert together(workers, Local("x")) == [Local("x")] * 4
    assert sum(each.loads for each in workers) == 4
    assert [each.cache.stats()["failures"] for each in workers] == [0] * 4


def test_a_key_is_any_text(workers: list[Worker]) -> None:
    """A lone surrogate as well, which a path may have."""
    assert workers[0].cache.get_or_load("\udce4", lambda: 1) == 1


def test_the_end_of_the_worker_that_loads_costs_its_detection(
    workers: list[Worker], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", LOADER, str(tmp_path)]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as loader:
        assert loader.stdout is not None
        assert loader.stdout.readline() == "loads\n"
        waiting = [gevent.spawn(each.get, "value", 0.2) for each in workers]
        gevent.sleep(0.2)
        assert [each.loads for each in workers] == [0] * 4
        loader.send_signal(signal.SIGKILL)
        loader.wait()
        killed_s = time.monotonic()
        assert [each.get(timeout=10) for each in waiting] == ["value"] * 4
        assert time.monotonic() - killed_s < 0.2 + 1.0
    assert sum(each.loads for each in workers) == 1  # the others go on waiting


def test_another_worker_takes_over_from_a_load_that_is_interrupted(workers: list[Worker]) -> None:
    """And the others go on waiting, with their own deadlines."""
    loading = gevent.spawn(workers[0].get, "value", 30.0)
    wait_until(lambda: workers[0].loads, "the load")
    waiting = [gevent.spawn(each.get, "new", 0.2) for each in workers[1:]]
    gevent.sleep(0.1)
    loading.kill()
    assert [each.get(timeout=10) for each in waiting] == ["new"] * 3
    assert sum(each.loads for each in workers) == 2


def test_of_five_hundred_callers_in_five_processes_one_loads(tmp_path: Path) -> None:
    program = f"""
from greenline.patch import patch_all
patch_all()
import gevent, os, sys
from pathlib import Path
from greenline.cache import Cache
from greenline.cache.shared import SharedLoads
folder = Path({str(tmp_path)!r})
cache = Cache(1 << 20, 60)
cache._shared = SharedLoads("test", folder)
def load():
    with (folder / "loads").open("a") as file:
        file.write("x")
    while len(list(folder.glob("asked-*"))) < 5: gevent.sleep(0.01)
    gevent.sleep(0.5)
    return "value"
print("ready", flush=True)
sys.stdin.read()
found = [gevent.spawn(cache.get_or_load, "k", load) for _ in range(100)]
gevent.sleep(0)  # from now on all of them wait
(folder / f"asked-{{os.getpid()}}").touch()
gevent.joinall(found)
assert {{each.get() for each in found}} == {{"value"}}
"""
    command, pipe = [sys.executable, "-c", program], subprocess.PIPE
    found = [
        subprocess.Popen(command, cwd=CHECKOUT, stdin=pipe, stdout=pipe, text=True)
        for _ in range(5)
    ]
    for each in found:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in found:
        assert each.stdin is not None
        each.stdin.close()
    for each in found:
        assert each.wait(timeout=30) == 0
        assert each.stdout is not None
        each.stdout.close()
    assert (tmp_path / "loads").read_text() == "x"


def test_half_of_the_time_of_one_who_waits_is_for_a_load_of_its_own(workers: list[Worker]) -> None:
    one, other = workers[:2]
    loading = gevent.spawn(one.get, "value", 30.0)
    wait_until(lambda: one.loads, "the load")
    with deadline.limit(3.0):
        assert other.get("mine", 0.2) == "mine"
    loading.kill()


def test_a_load_that_was_waited_for_in_vain_is_not_waited_for_again(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it ends."""
    monkeypatch.setattr("greenline.cache.flight.MAX_WAIT_S", 1.0)
    one, other = workers[:2]
    loading = gevent.spawn(one.get, "value", 60.0)
    wait_until(lambda: one.loads, "the load")
    began_s = time.monotonic()
    for number in range(5):
        assert other.get(number) == number
        other.cache.invalidate("k")
    assert time.monotonic() - began_s < 2 * 1.0
    loading.kill()
    assert other.get(5) == 5
    other.cache.invalidate("k")
    may_end = Event()
    gevent.spawn(one.get, "new", may_end=may_end)
    wait_until(lambda: one.loads == 2, "the load")
    waiting = gevent.spawn(other.get, 6)
    wait_until(lambda: is_awaited(one), "the other one to wait")
    may_end.set()
    assert waiting.get(timeout=10) == "new"


def test_a_worker_that_is_stuck_is_waited_for_so_long(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hub is blocked, for instance: the others can load."""
    monkeypatch.setattr("greenline.cache.flight.MAX_WAIT_S", 0.2)
    one, other = workers[:2]
    loading = gevent.spawn(one.get, "value", 30.0)
    wait_until(lambda: one.loads, "the load")
    assert other.get("mine") == "mine"
    loading.kill()


def test_a_worker_that_has_just_started_takes_no_older_value(
    workers: list[Worker], tmp_path: Path
) -> None:
    """It does not know what was invalidated before."""
    one = workers[0]
    loading = gevent.spawn(one.get, "old", 0.3)
    wait_until(lambda: one.loads, "the load")
    late = Worker(tmp_path)
    assert late.get("new") == "new"
    assert loading.get() == "old"
    late.shared.close()


def test_what_cannot_be_read_is_loaded(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another release of the application has written it."""

    def loads(_: bytes) -> object:
        raise ModuleNotFoundError

    monkeypatch.setattr(shared.pickle, "loads", loads)
    assert together(workers, "text") == ["text"] * 4
    assert sum(each.loads for each in workers) == 4


def test_a_load_that_does_not_wait_for_one_that_is_stuck_leaves_the_turn_to_that(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The locks of a file do not exclude their own process."""
    one, other = workers[:2]
    may_end = Event()
    first = gevent.spawn(one.get, "old", may_end=may_end)
    wait_until(lambda: one.loads, "the load")
    one.cache.invalidate("k")
    with monkeypatch.context() as patch:
        patch.setattr("greenline.cache.flight.MAX_WAIT_S", 0.01)
        assert one.get("new") == "new"
    waiting = gevent.spawn(other.get, "mine")
    gevent.sleep(0.1)
    assert other.loads == 0
    may_end.set()
    assert first.get(timeout=10) == "old"
    assert waiting.get(timeout=10) == "mine"


def test_other_keys_do_not_wait(workers: list[Worker]) -> None:
    one, other = workers[:2]
    loading = gevent.spawn(one.get, "value", 5.0)
    wait_until(lambda: one.loads, "the load")
    assert other.cache.get_or_load("another", lambda: 1) == 1
    loading.kill()


def test_records_of_any_size_are_found_around_the_end_of_the_ring(tmp_path: Path) -> None:
    writer, reader = SharedLoads("test", tmp_path), SharedLoads("test", tmp_path)
    chance = random.Random(1)
    written = 0
    while written < 3 * RING_BYTES:
        size = chance.choice([0, 1, 1_000, 100_000, MAX_RECORD_BYTES - 1_000])
        loaded = Loaded(keep(os.urandom(size)), 1.0, 2.0)
        find = wait_for(reader, "k", "other")
        writer.publish("other", Loaded(keep(None), 1.0, 2.0))
        writer.publish("k", loaded)
        assert find("k") == loaded
        written += size
    writer.close()
    reader.close()


def wait_for(reader: SharedLoads, *keys: str) -> Callable[[str], Loaded | None]:
    """Begin to wait for *keys*; return what finds what was published for one since."""
    position = reader._cells[WRITTEN]
    for key in keys:
        assert lock(reader._file.fileno(), _number(key) + 1, is_shared=True)
    return lambda key: reader._published(key, _number(key), position)[-1]


def test_what_was_overwritten_is_not_found(tmp_path: Path) -> None:
    writer, reader = SharedLoads("test", tmp_path), SharedLoads("test", tmp_path)
    find = wait_for(reader, "k", "other")
    writer.publish("k", Loaded(keep("x"), 1.0, 2.0))
    for _ in range(10):
        writer.publish("other", Loaded(keep(b"y" * (MAX_RECORD_BYTES - 1_000)), 1.0, 2.0))
    assert find("k") is None
    writer.close()
    reader.close()


def test_what_is_not_waited_for_is_not_written(tmp_path: Path) -> None:
    own = SharedLoads("test", tmp_path)
    before = own._cells[WRITTEN]
    with own.turn("k"):
        own.publish("k", Loaded(keep("x"), 1.0, 2.0))
    assert own._cells[WRITTEN] == before
    own.close()


def test_a_forked_child_loads_for_itself(tmp_path: Path) -> None:
    """Its parent's turn stays its parent's."""
    own, other = SharedLoads("test", tmp_path), SharedLoads("test", tmp_path)
    with own.turn("k"):
        pid = os.fork()
        if pid == 0:
            with own.turn("k") as found:
                os._exit(0 if found is None else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert not lock(other._file.fileno(), _number("k"))
    own.close()
    other.close()


def test_a_file_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    own = SharedLoads("test", tmp_path)
    own.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="it is damaged"):
        SharedLoads("test", tmp_path)
