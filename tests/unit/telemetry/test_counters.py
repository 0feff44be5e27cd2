"""The counters between real processes: nothing is lost, nothing is counted twice."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from greenline.telemetry import shared_memory
from greenline.telemetry.counters import (
    ENTRIES,
    HISTOGRAMS,
    OTHER,
    Counters,
    Key,
    Reader,
)
from greenline.telemetry.histograms import quantile
from greenline.telemetry.shared_memory import HANDED_OVER
from tests.helpers.support import CHECKOUT, environ

BEGIN = """
import os, signal, sys
from greenline.telemetry.counters import Counters
counters = Counters(int(sys.argv[1]))
def ready():
    print("ready", flush=True)
    sys.stdin.readline()
"""
COUNT = "for _ in range(1000): counters.count(('requests', '/books', 200))\n"


@pytest.fixture
def memory() -> Iterator[int]:
    """Shared memory as the arbiter makes it."""
    fd = shared_memory.share()
    yield fd
    os.close(fd)


class Worker:
    """A process that counts, is ready, and ends at the end of its input."""

    def __init__(self, memory: int, script: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGIN + script, str(memory)],
            cwd=CHECKOUT,
            env=environ({}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[memory],
            text=True,
        )

    def until_ready(self) -> "Worker":
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        return self

    def end(self) -> None:
        self.process.communicate("\n", timeout=60)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


def totals(memory: int) -> dict[Key, int]:
    """Return the sums that are not 0, as one more worker sees them."""
    script = "print(counters.totals())\n"
    command = [sys.executable, "-c", BEGIN + script, str(memory)]
    done = subprocess.run(
        command, cwd=CHECKOUT, env=environ({}), pass_fds=[memory], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[Key, int] = eval(done.stdout)  # noqa: S307
    return {key: value for key, value in found.items() if value}


def test_counts_of_all_workers_are_added_up(memory: int) -> None:
    """Four at once, some alive and some not: each request is counted once."""
    workers = [Worker(memory, f"{COUNT}ready()\n") for _ in range(4)]
    for worker in workers:
        worker.until_ready()
    workers[0].end()
    assert totals(memory) == {("requests", "/books", 200): 4000}
    for worker in workers[1:]:
        worker.end()
    assert totals(memory) == {("requests", "/books", 200): 4000}


def test_what_a_killed_worker_counted_is_kept_and_its_row_is_used_again(memory: int) -> None:
    """Ten workers, each killed while it waits, leave ten times their counts in one row."""
    for _ in range(10):
        Worker(memory, f"{COUNT}ready()\n").until_ready().kill()
    assert totals(memory) == {("requests", "/books", 200): 10_000}
    same = "assert repr(counters) == '<Counters row=0 entries=2>', counters\nready()\n"
    Worker(memory, f"{COUNT}{same}").until_ready().end()


def test_workers_that_are_killed_while_they_count_break_nothing(memory: int) -> None:
    """A row that was left in the middle of something can be read and gone on with."""
    for _ in range(5):
        worker = Worker(
            memory,
            "ready_said = print('ready', flush=True)\n"
            "n = 0\n"
            "while True:\n"
            "    n += 1\n"
            "    counters.count(('requests', f'/{n % 900}', 200))\n",
        )
        worker.until_ready()
        worker.kill()
    found = totals(memory)
    assert all(len(key) == 3 and key[0] == "requests" for key in found)
    assert all(value > 0 for value in found.values())


def test_values_are_those_of_the_workers_that_live(memory: int) -> None:
    """A pool of a worker that is gone has no connections; one that took its place begins anew."""
    script = "counters.set(('pool', 'active'), 5)\ncounters.set(('pool', 'active'), 3)\nready()\n"
    first, second = (Worker(memory, script).until_ready() for _ in range(2))
    assert totals(memory) == {("pool", "active"): 6}
    reading = Counters(memory)
    assert [reading.value(("pool", name)) for name in ("active", "act", "idle")] == [6, 0, 0]
    first.kill()
    assert totals(memory) == {("pool", "active"): 3}
    assert reading.value(("pool", "active")) == 3
    successor = Worker(memory, "ready()\n").until_ready()
    assert totals(memory) == {("pool", "active"): 3}
    successor.end()
    second.end()
    assert totals(memory) == {}


GROW = """
from greenline.telemetry import counters as module
from greenline.telemetry.pool_statistics import PoolStatistics
module._own = counters
statistics = PoolStatistics()
state = lambda: {"active": 2}
module.add("pool", state, statistics.reader())
"""


def test_counts_of_a_part_outlive_its_worker_and_its_values_do_not(memory: int) -> None:
    """What a pool counted is kept when its worker was killed, and the next worker adds to it."""
    script = f"{GROW}statistics.requests_num += 3\ncounters.read_gauges()\nready()\n"
    first = Worker(memory, script).until_ready()
    assert totals(memory) == {("pool", "active"): 2, ("pool", "requests_num"): 3}
    first.kill()
    assert totals(memory) == {("pool", "requests_num"): 3}
    Worker(memory, script).until_ready().end()
    assert totals(memory) == {("pool", "requests_num"): 6}


def test_a_part_that_is_removed_is_counted_to_its_end(memory: int) -> None:
    """The last look is at its end; another part that took its name by then stays."""
    script = f"""{GROW}
statistics.requests_num += 1
counters.read_gauges()
statistics.requests_num += 4
module.remove("pool", lambda: {{}})
assert "pool" in module.gauges and "pool" in module.growths
module.remove("pool", state)
assert not module.gauges and not module.growths
ready()
"""
    worker = Worker(memory, script).until_ready()
    assert totals(memory)["pool", "requests_num"] == 5
    worker.end()


def test_parts_of_one_name_are_added_up(memory: int) -> None:
    """Two pools of one name; when one is removed, the values are those of the other."""
    script = f"""{GROW}
other = PoolStatistics()
idle = lambda: {{"active": 1}}
module.add("pool", idle, other.reader())
statistics.requests_num += 3
other.requests_num += 4
counters.read_gauges()
ready()
other.requests_num += 1
module.remove("pool", idle)
statistics.requests_num += 1
counters.read_gauges()
ready()
"""
    worker = Worker(memory, script).until_ready()
    assert totals(memory) == {("pool", "active"): 3, ("pool", "requests_num"): 7}
    assert worker.process.stdin is not None
    worker.process.stdin.write("\n")
    worker.process.stdin.flush()
    worker.until_ready()
    assert totals(memory) == {("pool", "active"): 2, ("pool", "requests_num"): 9}
    worker.end()


def test_a_forked_child_does_not_write_the_row_of_its_parent(memory: int) -> None:
    """Nor when it closes the pools that it has inherited."""
    script = f"""{GROW}
counters.read_gauges()
if os.fork() == 0:
    statistics.requests_num += 5
    module.set_value(("pool", "active"), 9)
    module.remove("pool", state)
    os._exit(0)
os.wait()
ready()
"""
    worker = Worker(memory, script).until_ready()
    found = totals(memory)
    assert found["pool", "active"] == 2
    assert found.get(("pool", "requests_num"), 0) == 0
    worker.end()


def test_keys_beyond_the_room_are_counted_as_other(memory: int) -> None:
    """However many there are, the table stays as it is and the sum stays right."""
    mine = Counters(memory)
    for n in range(3 * ENTRIES):
        mine.count(("requests", f"/{n}", 200 + n % 2))
        mine.count(("requests", f"/{n}", 200 + n % 2))
    found = mine.totals()
    assert len(found) <= ENTRIES
    assert sum(found.values()) == 6 * ENTRIES
    assert found["requests", OTHER, 200] > 2000
    assert found["requests", "/1", 201] == 2
    for n in range(3 * ENTRIES):
        mine.count((f"another{n}",))
    assert len(mine.totals()) <= ENTRIES
    assert sum(mine.totals().values()) == 9 * ENTRIES


def test_a_key_that_is_too_long_is_counted_as_other(memory: int) -> None:
    """A route of a thousand characters has no entry of its own."""
    mine = Counters(memory)
    for letter in "ab":
        mine.count(("requests", letter * 1000, 200))
    assert mine.totals()["requests", OTHER, 200] == 2


def test_the_memory_has_no_name_and_goes_with_its_last_user(memory: int) -> None:
    """Nothing is left on any disk, and what is unused takes no memory."""
    Counters(memory).count(("requests", "/", 200))
    status = os.fstat(memory)
    assert status.st_nlink == 0
    assert status.st_blocks * 512 <= 65_536


def test_a_forked_child_does_not_hold_the_row(memory: int) -> None:
    """A process that the application forked and that outlives the worker is no worker."""
    worker = Worker(
        memory,
        "counters.set(('pool', 'active'), 1)\n"
        "if os.fork() == 0:\n"
        "    sys.stdin.readline()\n"
        "    os._exit(0)\n"
        "ready()\n",
    )
    worker.until_ready()
    worker.process.kill()
    worker.process.wait(30)
    try:
        assert totals(memory) == {}
    finally:
        assert worker.process.stdin is not None
        worker.process.stdin.close()


def test_durations_of_all_workers_are_added_up(memory: int) -> None:
    """Also those of workers that have ended; a key beyond the room is counted as other."""
    script = (
        "observe = counters.observer(('plain', '/books'))\n"
        "for n in range(1000): observe(0.001 * n)\n"
        "counters.flush()\n"
        "ready()\n"
    )
    workers = [Worker(memory, script).until_ready() for _ in range(3)]
    workers[0].end()
    workers[1].kill()
    reader = Reader(memory)
    found = reader.histograms()["plain", "/books"]
    assert sum(found.counts) == 3000
    assert found.sum_s == pytest.approx(3 * 0.001 * 999 * 1000 / 2)
    assert quantile(found.counts, 0.5) == pytest.approx(0.5, rel=0.05)
    workers[2].end()
    mine = Counters(memory)
    for n in range(2 * HISTOGRAMS):
        mine.observer(("plain", f"/{n}"))(0.001)
    mine.flush()
    counts = {key: sum(each.counts) for key, each in reader.histograms().items()}
    assert sum(counts.values()) == 3000 + 2 * HISTOGRAMS
    assert counts["plain", OTHER] > HISTOGRAMS
    assert len(counts) <= HISTOGRAMS


def test_only_the_values_of_running_workers_are_read(memory: int) -> None:
    """By the number of the row; those of one worker alone are not summed."""
    script = "counters.set(('worker', 'pid'), os.getpid())\ncounters.set(('a', 'b'), 1)\nready()\n"
    workers = [Worker(memory, script).until_ready() for _ in range(2)]
    reader = Reader(memory)
    pids = {values["worker", "pid"] for values in reader.running().values()}
    assert pids == {worker.process.pid for worker in workers}
    assert reader.totals() == {("workers",): 0, ("a", "b"): 2}
    workers[0].kill()
    (values,) = reader.running().values()
    assert values["worker", "pid"] == workers[1].process.pid
    workers[1].end()


def test_another_program_continues_from_the_counts(memory: int) -> None:
    """As an arbiter that is executed by another one at USR2; of another form they are not used."""
    Counters(memory).count(("requests", "/", 200), 5)
    script = (
        "import os\nfrom greenline.telemetry import counters, shared_memory\n"
        "fd = shared_memory.share()\n"
        "print(os.get_inheritable(fd), counters.Counters(fd).totals())\n"
    )
    given = environ({})
    with shared_memory.handed_over(memory, given):
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=CHECKOUT, env=given, pass_fds=[memory],
            capture_output=True, text=True,
        )  # fmt: skip
        other = {**given, HANDED_OVER: f"{memory}:0"}
        new = subprocess.run(
            [sys.executable, "-c", script], cwd=CHECKOUT, env=other, pass_fds=[memory],
            capture_output=True, text=True,
        )  # fmt: skip
    assert HANDED_OVER not in given
    assert not os.get_inheritable(memory)
    assert done.stdout == "False {('workers',): 0, ('requests', '/', 200): 5}\n"
    assert new.stdout == "False {('workers',): 0}\n"


def test_a_look_locks_no_row(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that starts meanwhile would take another one, and leave this one empty."""
    worker = Worker(memory, "counters.set(('worker', 'pid'), 1)\nready()\n").until_ready()
    reader = Reader(memory)

    def locked(*_: object) -> None:
        raise AssertionError("a row was locked")

    monkeypatch.setattr("greenline.telemetry.counters.fcntl.lockf", locked)
    assert list(reader.running()) == [0]
    worker.end()
    assert list(reader.running()) == []
