"""
Record what the main thread does while its event loop does not run.

A native thread looks every ``PERIOD_S`` whether the loop has run since the last look. If it has
not, the stack of the main thread, its state and its CPU time are written to a file, which is read
at the end: what waits sleeps and uses no CPU time. The time in which it waits for a processor, on a
busy machine, is not the application's and is not counted. The native thread makes no object that
the garbage collector tracks, for the reason in :mod:`greenline.hub.watchdog`.
"""

import faulthandler
import os
import re
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from time import monotonic
from typing import Any, NamedTuple

import gevent
from gevent.monkey import get_original

from greenline import http
from greenline.doctor.observations import Blocks, Site
from greenline.hub import schedstat
from greenline.hub.watchdog import HUB, Stack, stack_of, without_collection

PERIOD_S = 0.01
BLOCK_S = 0.02  # what is shorter is not counted
COMPUTING_SHARE = 0.5  # of the time between two looks, on a processor: it computes
NS = 1e-9
STATE = "/proc/self/stat"  # of the main thread; of Linux: man 5 proc
RUNNABLE = "R"
MAX_BYTES = 512  # of it
HTTP = os.path.join(os.path.dirname(http.__file__), "")
RECORD = re.compile(
    r"^@ (\S+) (\S+) (\S) (\d+)[^\n]*\n\d+ (\d+)[^\n]*\n(.*?)(?=^@ |\Z)", re.M | re.S
)


class Record(NamedTuple):
    """
    One look at the main thread.

    :param now_s: the time, float seconds of the monotonic clock.
    :param beat_s: when the loop has run last, float.
    :param is_runnable: it has a processor or waits for one, bool.
    :param cpu_s: the CPU time of the main thread so far, float seconds.
    :param queued_s: the time in which the native thread has waited for a processor so far, float
        seconds: it may hold the interpreter's lock then, for which the main thread waits.
    :param stack: its frames, the outermost first.
    """

    now_s: float
    beat_s: float
    is_runnable: bool
    cpu_s: float
    queued_s: float
    stack: Stack


class Sampler:
    """Record the thread that calls :meth:`start`, which must be the main thread."""

    def __init__(self) -> None:
        self._thread = 0
        self._beat_s = self._began_s = self._now_s = 0.0
        self._state = self._statistics = self._own = -1
        self._timer: Any = None
        self._file: Any = None

    def start(self) -> None:
        """Begin to record."""
        self._thread = get_original("_thread", "get_ident")()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  until stop()
        self._beat_s = self._began_s = monotonic()
        self._timer = gevent.get_hub().loop.timer(PERIOD_S / 2, PERIOD_S / 2, ref=False)
        self._timer.start(self._beat)
        get_original("_thread", "start_new_thread")(self._record, (self._timer,))

    def stop(self) -> Blocks:
        """Stop, and return the blocks that were recorded."""
        timer, self._timer = self._timer, None
        timer.close()
        get_original("time", "sleep")(2 * PERIOD_S)  # the native thread ends its last record
        self._file.seek(0)
        with self._file:
            text = self._file.read().decode("ascii", "replace")
        return blocks(records(text, self._thread), monotonic() - self._began_s)

    def _beat(self) -> None:
        self._beat_s = monotonic()

    def _record(self, timer: Any) -> None:
        """Run in the native thread until the sampler is stopped."""
        sleep, write_head, fd = get_original("time", "sleep"), self._write_head, self._file.fileno()
        own = get_original("_thread", "get_native_id")()
        files = [os.open(STATE, os.O_RDONLY), *map(schedstat.open_of, (os.getpid(), own))]
        self._state, self._statistics, self._own = files
        while self._timer is timer:
            sleep(PERIOD_S)
            self._now_s = monotonic()
            if self._now_s - self._beat_s >= PERIOD_S:
                without_collection(write_head)
                faulthandler.dump_traceback(fd, True)
        for each in files:
            os.close(each)

    def _write_head(self) -> None:
        # The name of the program, in parentheses, is before the state.
        state = os.pread(self._state, MAX_BYTES, 0).rpartition(b") ")[2][:1]
        os.write(self._file.fileno(), b"@ %.4f %.4f %s " % (self._now_s, self._beat_s, state))
        os.write(self._file.fileno(), os.pread(self._statistics, schedstat.SIZE, 0))
        os.write(self._file.fileno(), os.pread(self._own, schedstat.SIZE, 0))


def records(text: str, thread: int) -> Iterator[Record]:
    """
    Yield the records in *text*.

    :param thread: the identity of the main thread, int.
    """
    section = re.compile(rf"^Thread 0x0*{thread:x}\b.*\n((?:  .*\n)*)", re.M)
    for now_s, beat_s, state, cpu_ns, queued_ns, dump in RECORD.findall(text):
        found = section.search(dump)
        if found is not None:
            yield Record(
                float(now_s), float(beat_s), state == RUNNABLE, int(cpu_ns) * NS,
                int(queued_ns) * NS, stack_of(found[1]),
            )  # fmt: skip


def blocks(found: Iterator[Record], seconds: float) -> Blocks:
    """
    Return the blocks in the records.

    Records that follow each other belong to one block while the loop has not run in between and the
    main thread does the same: wait, or compute.

    :param seconds: the length of the run, float.
    """
    result, by_stack = Blocks(seconds), dict[Any, Site]()
    block: list[Record] = []
    is_waiting = False
    last: Record | None = None
    for record in found:
        if last is None or last.beat_s != record.beat_s or _is_hub(record):
            _close(block, is_waiting, result, by_stack)
            block, is_waiting = [] if _is_hub(record) else [record], False
        else:
            was_waiting = is_waiting
            # One that is runnable and computes little waits for a processor: it does as before.
            is_asleep = is_waiting or not record.is_runnable
            is_waiting = is_asleep and not _computes(last, record)
            if len(block) > 1 and was_waiting != is_waiting:
                _close(block, was_waiting, result, by_stack)
                block = [last]
            block.append(record)
        last = record
    _close(block, is_waiting, result, by_stack)
    result.sites = sorted(by_stack.values(), key=lambda site: -site.total_s)
    return result


def _is_hub(record: Record) -> bool:
    return not record.stack or (record.stack[-1][0], record.stack[-1][2]) == HUB


def _computes(last: Record, record: Record) -> bool:
    return record.cpu_s - last.cpu_s >= COMPUTING_SHARE * (record.now_s - last.now_s)


def _close(
    block: list[Record], is_waiting: bool, result: Blocks, by_stack: dict[Any, Site]
) -> None:
    """Count a block that has ended."""
    if is_waiting:
        slept_s = (
            max(0.0, each.now_s - last.now_s - (each.queued_s - last.queued_s))
            for last, each in pairwise(block)
            if not each.is_runnable
        )
        took_s = PERIOD_S + sum(slept_s)
    else:
        took_s = PERIOD_S + block[-1].cpu_s - block[0].cpu_s if block else 0.0
    if took_s < BLOCK_S:
        return
    stack = block[len(block) // 2].stack
    # Our HTTP code uses sockets that do not block: there it waits for the interpreter's lock.
    if is_waiting and stack[-1][0].startswith(HTTP):
        return
    if is_waiting:
        result.waits_s += took_s
    else:
        result.computes_s += took_s
    key = (is_waiting, tuple(stack) if is_waiting else stack[-1][:1] + stack[-1][2:])
    site = by_stack.setdefault(key, Site(stack, is_waiting))
    site.count += 1
    site.total_s += took_s
    site.longest_s = max(site.longest_s, took_s)
