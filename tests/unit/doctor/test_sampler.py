"""greenline.doctor.sampler: blocks of the hub in the records of the main thread."""

import pytest

from greenline.doctor.observations import Blocks
from greenline.doctor.sampler import Record, blocks, records
from greenline.http import plain_client
from greenline.hub.watchdog import HUB, INTERRUPTION, Stack

WAIT: Stack = [("app.py", 1, "view"), ("driver.py", 7, "query")]
COMPUTE: Stack = [("app.py", 2, "view"), ("app.py", 9, "total")]
IDLE: Stack = [("hub.py", 1, "main"), (HUB[0], 5, HUB[1])]
DUMP = """\
@ 12.0000 11.5000 R 250000000 1000000 7
1000 2000000 9
Thread 0x00000000000012ab (most recent call first):
  File "driver.py", line 7 in query
  File "app.py", line 1 in view

Thread 0x00000000000012ac (most recent call first):
  File "other.py", line 3 in run
@ 12.0100 11.5000 S 260000000 1000000 8
1000 2000000 9
Thread 0x00000000000012ab (most recent call first):
  File "app.py", line 1 in view
"""


def look(
    ms: int, *, beat_ms: int = 0, is_runnable: bool = False, cpu_ms: int = 0,
    queued_ms: int = 0, stack: Stack,
) -> Record:  # fmt: skip
    return Record(ms / 1000, beat_ms / 1000, is_runnable, cpu_ms / 1000, queued_ms / 1000, stack)


def test_records_are_read_from_what_faulthandler_writes() -> None:
    """Of the main thread alone, with its state and its CPU time in seconds."""
    first, second = records(DUMP, 0x12AB)
    assert first == Record(12.0, 11.5, True, 0.25, 0.002, [("app.py", 1, "view"), WAIT[1]])
    assert second.stack == [("app.py", 1, "view")]
    assert not second.is_runnable


def test_what_interrupts_the_application_is_none_of_it() -> None:
    """The handler of the signal, and what it calls, run where it was interrupted."""
    inner = f'  File "schedstat.py", line 2 in seconds\n  File "{INTERRUPTION}", line 3 in _tick\n'
    first, _ = records(DUMP.replace('  File "driver', f'{inner}  File "driver', 1), 0x12AB)
    assert first.stack == WAIT


@pytest.mark.parametrize(
    ("cpu", "is_runnable", "waits"),
    [(0, False, True), (10, True, False), (10, False, False)],
    ids=["waits", "computes", "computes, and sleeps for a moment"],
)
def test_a_block_waits_or_computes(cpu: int, is_runnable: bool, waits: bool) -> None:
    """By its CPU time, and by its state."""
    looks = [look(10 * n, is_runnable=is_runnable, cpu_ms=cpu * n, stack=WAIT) for n in range(1, 6)]
    found = blocks(iter(looks), 1.0)
    (site,) = found.sites
    assert (site.waits, site.count, site.stack) == (waits, 1, WAIT)
    assert site.total_s == site.longest_s == pytest.approx(0.05)
    assert (found.waits_s, found.computes_s) == pytest.approx((0.05, 0) if waits else (0, 0.05))


@pytest.mark.parametrize(("cpu", "found_s"), [(0, (0.05, 0)), (10, (0, 0.05))])
def test_a_wait_for_a_processor_does_not_count(cpu: int, found_s: tuple[float, float]) -> None:
    """It is the machine's: neither after a wait, nor after computing, nor alone."""
    looks = [look(10 * n, is_runnable=cpu > 0, cpu_ms=cpu * n, stack=WAIT) for n in range(1, 6)]
    looks += [look(10 * n, is_runnable=True, cpu_ms=cpu * 5, stack=WAIT) for n in range(6, 20)]
    found = blocks(iter(looks), 1.0)
    assert (found.waits_s, found.computes_s) == pytest.approx(found_s)
    assert blocks(iter(looks[5:]), 1.0).sites == []


def test_a_wait_for_the_thread_that_looks_does_not_count() -> None:
    """That one holds the interpreter's lock, and waits for a processor."""
    looks = [look(10, stack=WAIT), look(20, stack=WAIT), look(500, queued_ms=475, stack=WAIT)]
    assert blocks(iter(looks), 1.0).waits_s == pytest.approx(0.025)


def test_a_wait_of_our_own_client_does_not_count() -> None:
    """Its socket does not block: it waits for the interpreter's lock. What computes there does."""
    sends: Stack = [WAIT[0], (plain_client.__file__, 3, "sendall")]
    looks = [look(10 * n, stack=sends) for n in range(1, 6)]
    assert blocks(iter(looks), 1.0) == Blocks(1.0)
    looks = [look(10 * n, cpu_ms=10 * n, stack=sends) for n in range(1, 6)]
    assert blocks(iter(looks), 1.0).computes_s == pytest.approx(0.05)


def test_a_loop_that_has_run_begins_another_block() -> None:
    """Two blocks of one line are counted together, the longest first."""
    looks = [look(10 * n, stack=WAIT) for n in range(1, 4)]
    looks += [look(100 + 10 * n, beat_ms=100, stack=WAIT) for n in range(1, 6)]
    looks += [look(200 + 10 * n, beat_ms=200, cpu_ms=10 * n, stack=COMPUTE) for n in range(1, 4)]
    waits, computes = blocks(iter(looks), 1.0).sites
    assert (waits.count, waits.longest_s) == (2, pytest.approx(0.05))
    assert waits.total_s == pytest.approx(0.08)
    assert (computes.waits, computes.count) == (False, 1)


def test_what_waits_and_then_computes_is_two_blocks() -> None:
    """Although the loop does not run in between."""
    looks = [look(10 * n, stack=WAIT) for n in range(1, 6)]
    looks += [look(50 + 10 * n, cpu_ms=10 * n, stack=COMPUTE) for n in range(1, 6)]
    found = blocks(iter(looks), 1.0)
    assert [(site.waits, site.stack) for site in found.sites] == [(False, COMPUTE), (True, WAIT)]
    assert found.waits_s == pytest.approx(0.05)


def test_a_hub_that_waits_for_events_and_a_short_block_do_not_count() -> None:
    """One look is less than what a block is."""
    looks = [look(10 * n, stack=IDLE) for n in range(1, 9)]
    looks += [look(110, beat_ms=100, stack=WAIT), look(210, beat_ms=200, stack=WAIT)]
    assert blocks(iter(looks), 1.0).sites == []
