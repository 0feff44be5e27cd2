"""
Notice that the hub is blocked, and name the function that blocks it.

A timer in the hub measures how late it ran, less the time in which it waited for a processor: that
is no block, and has a log entry of its own. A native thread records the stack of the hub's thread
in the meantime, several times for each block; the hub evaluates the records and logs when it runs
again: of the blocks in each ``LOG_EVERY_S`` the longest. A hub that is stuck may never run again:
then the thread writes to stderr itself. gevent's own monitor traces every switch (a third of a
microsecond each), and misses most blocks shorter than twice its period.

``faulthandler`` writes the stacks, because a frame of another thread goes stale under a garbage
collection, and reading it crashes the process. It has limits:

- It writes the innermost 100 frames of a thread and the 100 newest threads. In a process with more
  threads the log entry has no stack.
- It does not name greenlets. The progress of the loop between two records distinguishes one
  greenlet that blocks from a thousand that take a millisecond each.
- A call into C that keeps the interpreter's lock is recorded at its end, where it was called.
  ``dump_traceback_later`` would record it earlier, but it reads the frames without that lock, even
  where the process was only stopped; and a process has one such timer, which the application may
  use.
"""

import faulthandler
import gc
import linecache
import logging
import os
import re
import traceback
from array import array
from collections.abc import Callable, Iterator
from itertools import takewhile
from math import inf
from time import monotonic, thread_time
from typing import Any, NamedTuple, TypeVar

import gevent
from gevent.hub import Hub
from gevent.monkey import get_original

from greenline.hub import lateness
from greenline.hub.schedstat import QueuedTime
from greenline.hub.slices import LOOK_S, Slices
from greenline.telemetry.reports import Frame

LOG_EVERY_S = 10.0
RECORDS = 4  # of the stack, in each limit_s
NUMBERS = 6  # values of a record in the notes
MAX_SHARE = 0.01  # of the CPU, for records: each takes 5 us for each frame of each thread
MAX_RECORDED_BYTES = 1024 * 1024
SHOWN_S = 0.25  # a hub that is blocked for longer is reported meanwhile
LATE_S = 0.005  # so late is a hub that something keeps
INTERRUPT_EVERY_S, INTERRUPT_FOR_S = 0.005, 0.1  # what keeps the hub, and how long after it
# A look at the calls into C of a hub in which requests begin, also where it is not late: it costs a
# fiftieth of the processor.
LOOK_EVERY_S, LOOK_FOR_S = 1.0, 0.1
PROMPT_S = 0.0003  # a thread that wakes so late has not waited for the interpreter's lock
STDERR = 2
HUB = (Hub.run.__code__.co_filename, Hub.run.__code__.co_name)
INTERRUPTION = Slices._tick.__code__.co_filename  # of the handler that interrupts what computes

FRAME = re.compile(r'^  File (?:"(.*)"|\?\?\?), line (\d+|\?\?\?) in (.*)$', re.MULTILINE)
ESCAPE = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")

log = logging.getLogger(__name__)

T = TypeVar("T")
Stack = list[Frame]  # the outermost first


class StackRecord(NamedTuple):
    """
    A record of the code that ran in the hub's thread some time after the beat.

    :param gap_s: seconds since the beat, float.
    :param begun: the number of requests begun so far, float.
    :param pending: the number of the loop's watchers whose callbacks are due, float.
    :param callbacks: the number of callbacks in the loop's queue, float.
    :param head: the identity of the first of these callbacks, float; 0 without any.
    :param stack: file, line and function of each frame, the outermost first.
    """

    gap_s: float
    begun: float
    pending: float
    callbacks: float
    head: float
    stack: Stack


class Watchdog:
    """
    Watch the hub of the thread that calls :meth:`start`.

    :param limit_s: seconds, float: a hub that is later than this was blocked. Default 0.1.
    :param stuck_s: seconds, float, after which the thread writes the stack to stderr. Default 15.
    :param on_blocked: called in the hub for each block. Default: do nothing.
    :param progress: returns the number of requests begun so far, int. The native thread calls it,
        so it must not wait, nor make an object that the garbage collector tracks. Default: 0.
    :param advise: called in the hub with the stack of a block; returns a sentence with a remedy,
        None where it knows none. Default: None.
    :param on_logged: called in the hub with the stack of each block that is logged with one, and
        its seconds. Default: do nothing.
    :param on_stuck: called in the native thread with the stack while the hub is blocked; no garbage
        collection begins in it. Default: do nothing.
    :param interrupt: called in the native thread, every ``INTERRUPT_EVERY_S`` while the hub is late
        and shortly after; every ``LOOK_S`` for ``LOOK_FOR_S`` in each ``LOOK_EVERY_S`` in which
        requests begin, with True where the thread got the interpreter's lock at once. It must not
        make an object that the garbage collector tracks. Default: do nothing.
    """

    def __init__(
        self,
        limit_s: float = 0.1,
        *,
        stuck_s: float = 15.0,
        on_blocked: Callable[[], object] = lambda: None,
        progress: Callable[[], int] = lambda: 0,
        advise: Callable[[Stack], str | None] = lambda stack: None,
        on_logged: Callable[[Stack, float], object] = lambda stack, late_s: None,
        on_stuck: Callable[[Stack], object] = lambda stack: None,
        interrupt: Callable[[bool], object] = lambda is_look: None,
    ) -> None:
        self._limit_s = limit_s
        self._period_s = limit_s / RECORDS
        self._stuck_s = stuck_s
        self._on_blocked = on_blocked
        self._progress = progress
        self._advise = advise
        self._on_logged = on_logged
        self._on_stuck = on_stuck
        self._interrupt = interrupt
        self._blocked = 0
        self._longest_s = 0.0
        self._unlogged = 0
        self._longest_unlogged_s, self._recorded = 0.0, list[StackRecord]()
        self._logged_s = self._wait_logged_s = -LOG_EVERY_S
        self._beat_s = 0.0
        self._queued_s = 0.0  # in which the thread has waited for a processor, until the beat
        self._late_at_s = -inf  # when the hub was late for the last time
        self._look_s, self._seen = -inf, 0  # since when it looks, and the progress then
        self._queued: Any = None
        self._timer: Any = None
        self._loop: Any = None
        self._thread = 0
        self._fd = -1
        self._shown_from = 0  # where the last record begins
        self._notes = array("d")
        self._failure = ""  # the traceback of a native thread that has ended
        self._restarted_s = -LOG_EVERY_S

    def __repr__(self) -> str:
        stats = " ".join(f"{name}={value}" for name, value in self.stats().items())
        return f"<Watchdog {stats}>"

    def stats(self) -> dict[str, int]:
        """Return how often the hub was blocked, and the longest block in milliseconds."""
        return {"blocked": self._blocked, "longest_ms": round(self._longest_s * 1000)}

    def start(self) -> None:
        """Start to watch. Call this in a worker, after the fork."""
        self._thread = get_original("_thread", "get_ident")()
        # faulthandler writes with the interpreter's lock held: into memory, so that it never waits.
        self._fd = os.memfd_create("greenline-watchdog")
        self._loop = gevent.get_hub().loop
        self._queued = QueuedTime()
        self._beat_s, self._queued_s = monotonic(), self._queued.seconds()
        self._timer = self._loop.timer(self._period_s, self._period_s, ref=False)
        self._timer.start(self._beat)
        self._start_thread()

    def stop(self) -> None:
        """Stop watching."""
        timer, self._timer = self._timer, None
        lateness.due_s = inf
        if timer is not None:
            timer.close()
            self._queued.close()

    def is_looking(self) -> bool:
        """Return whether each call into C is looked for now."""
        return monotonic() - self._look_s < LOOK_FOR_S

    def _start_thread(self) -> None:
        sleep, all_threads = get_original("time", "sleep"), True
        # The bound methods are made here: in the thread, a garbage collection could begin.
        arguments = (self._timer, sleep, (self._fd, all_threads), (self._head, self._show))
        get_original("_thread", "start_new_thread")(self._watch, arguments)

    def _beat(self) -> None:
        """Note the time in the hub, and a block if it is late."""
        now, queued_s = monotonic(), self._queued.seconds()
        late_s = now - self._beat_s - self._period_s
        waited_s = queued_s - self._queued_s
        try:
            if late_s - waited_s >= self._limit_s:
                self._note_block(late_s - waited_s)
            # Less than a half: a machine that was stopped for a moment, of which nothing is known.
            elif late_s >= self._limit_s and waited_s >= late_s / 2:
                self._note_wait(late_s, waited_s, now)
        finally:
            # Not before: the thread deletes its records after a new beat.
            self._beat_s, self._queued_s = now, queued_s
            if late_s >= lateness.MIN_S:
                lateness.last = now, late_s
            lateness.due_s = now + self._period_s
        if self._unlogged and now - self._logged_s >= LOG_EVERY_S:
            self._log_longest(now)
        if self._failure and now - self._restarted_s >= LOG_EVERY_S:
            self._restarted_s = now
            gevent.spawn(self._restart)

    def _note_block(self, late_s: float) -> None:
        self._blocked += 1
        self._longest_s = max(self._longest_s, late_s)
        self._on_blocked()
        self._unlogged += 1
        # Its records cost a millisecond, which a shorter one is not worth.
        if late_s > self._longest_unlogged_s:
            notes = self._notes.tolist()
            sections = _sections(os.pread(self._fd, os.fstat(self._fd).st_size, 0), self._thread)
            self._longest_unlogged_s = late_s
            self._recorded = list(_records(notes, sections, self._beat_s))

    def _log_longest(self, now: float) -> None:
        arguments = self._longest_unlogged_s, self._recorded, self._limit_s, self._unlogged - 1
        # Not here: a log handler may wait, and the hub must not.
        gevent.spawn(_log, *arguments, self._advise, self._on_logged)
        self._logged_s, self._unlogged = now, 0
        self._longest_unlogged_s, self._recorded = 0.0, []

    def _note_wait(self, late_s: float, waited_s: float, now: float) -> None:
        if now - self._wait_logged_s >= LOG_EVERY_S:
            self._wait_logged_s = now
            text = "the hub was %.0f ms late: for %.0f ms it waited for a processor"
            # It may have begun to wait before the beat was due.
            gevent.spawn(log.warning, text, late_s * 1000, min(waited_s, late_s) * 1000)

    def _restart(self) -> None:
        """Log the end of the native thread, and start another one."""
        failure, self._failure = self._failure, ""
        log.error("the watchdog's thread ended, another one is started:\n%s", failure)
        try:
            if self._timer is not None:
                self._forget(self._fd)  # the thread may have ended in the middle of a record
                self._start_thread()
        except RuntimeError as error:  # no thread can start now: _beat() tries again
            self._failure = str(error)

    def _watch(self, timer: Any, sleep: Any, arguments: tuple[int, bool], calls: Any) -> None:
        """Run in the native thread until the watch is stopped or another one begins."""
        try:
            self._record(timer, sleep, arguments, calls)
            os.close(arguments[0])
        except BaseException:
            self._failure = traceback.format_exc()

    def _record(self, timer: Any, sleep: Any, arguments: tuple[int, bool], calls: Any) -> None:
        # This loop makes no object that the garbage collector tracks, so that it begins no
        # collection: that would run the destructors of the hub's objects in this thread.
        dump = faulthandler.dump_traceback
        fd, _ = arguments  # one tuple for all records
        notes = self._notes
        head, show = calls
        recorded_bytes = 0
        recorded_s = 0.0  # the beat before the last record
        reported_s = 0.0  # the beat before the last report on stderr
        # It records before it sleeps: this thread may begin to run only during the first block.
        while self._timer is timer:
            beat_s = self._beat_s
            now = monotonic()
            gap_s = now - beat_s
            pause_s = self._period_s
            if gap_s < self._limit_s / 2:
                if recorded_bytes:
                    self._forget(fd)
                    recorded_bytes = 0
                self._pause(sleep, pause_s)
                continue
            if recorded_bytes > MAX_RECORDED_BYTES and recorded_s != beat_s:
                self._forget(fd)
                recorded_bytes = 0
            # Critical section: the interpreter's lock is not released between here and the dump.
            # Otherwise a hub that has just left a C call that kept the lock would continue to run.
            recorded_s = beat_s
            started_s = thread_time()  # CPU time: on a busy machine this thread waits as well
            notes.append(beat_s)
            notes.append(gap_s)
            notes.append(self._progress())
            notes.append(self._loop.pendingcnt)
            notes.append(len(self._loop._callbacks))
            notes.append(without_collection(head))
            dump(*arguments)
            if gap_s >= SHOWN_S:
                self._shown_from = recorded_bytes
                without_collection(show)
            took_s = thread_time() - started_s
            recorded_bytes = os.lseek(fd, 0, os.SEEK_CUR)
            if gap_s >= self._stuck_s and reported_s != beat_s:
                reported_s = beat_s
                self._report(fd, gap_s)
            # The longer the block, the fewer records: a block of an hour has about fifty.
            if pause_s < gap_s / RECORDS:
                pause_s = gap_s / RECORDS
            if pause_s < took_s / MAX_SHARE:
                pause_s = took_s / MAX_SHARE
            self._pause(sleep, pause_s)

    def _pause(self, sleep: Any, pause_s: float) -> None:
        """Sleep in the native thread; interrupt meanwhile what keeps the hub."""
        now = monotonic()
        until_s, is_prompt = now + pause_s, False
        while now < until_s and self._timer is not None:
            if now - self._beat_s >= self._period_s + LATE_S:
                self._late_at_s = now
            step_s = until_s - now
            if self._looks(now):
                self._interrupt(is_prompt)
                if step_s > LOOK_S:
                    step_s = LOOK_S
            elif now - self._late_at_s < INTERRUPT_FOR_S:
                self._interrupt(False)
                if step_s > INTERRUPT_EVERY_S:
                    step_s = INTERRUPT_EVERY_S
            before_s = monotonic()
            sleep(step_s)
            now = monotonic()
            is_prompt = now - before_s - step_s < PROMPT_S

    def _looks(self, now: float) -> bool:
        if now - self._look_s >= LOOK_EVERY_S:
            before, self._seen = self._seen, self._progress()
            if self._seen > before:
                self._look_s = now
        return now - self._look_s < LOOK_FOR_S

    def _head(self) -> int:
        """Return the identity of the callback that the loop runs next, 0 without any."""
        callbacks = self._loop._callbacks
        if not callbacks:
            return 0
        # The iterator, and a list behind it, are the only objects here that the collector tracks.
        return id(next(iter(callbacks)))

    def _show(self) -> None:
        """Report the last record."""
        size = os.lseek(self._fd, 0, os.SEEK_CUR) - self._shown_from
        sections = _sections(os.pread(self._fd, size, self._shown_from), self._thread)
        stack = stack_of(sections[-1]) if sections else []
        if stack and (stack[-1][0], stack[-1][2]) != HUB:  # else it has just begun to run again
            self._on_stuck(stack)

    def _forget(self, fd: int) -> None:
        """Delete the records of blocks that have ended."""
        while self._notes:
            self._notes.pop()
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)

    def _report(self, fd: int, gap_s: float) -> None:
        """Write to stderr where the hub is stuck."""
        sections = _sections(os.pread(fd, os.fstat(fd).st_size, 0), self._thread)
        head = f"greenline: the hub has been blocked for {gap_s:.0f} s, here"
        text = f"{head} (most recent call first):\n{sections[-1] if sections else ''}"
        os.write(STDERR, text.encode())


def without_collection(function: Callable[[], T]) -> T:
    """
    Call *function* so that no garbage collection begins in it, and return its result.

    For native threads, in which a collection would run the destructors of the hub's objects.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return function()
    finally:
        if is_enabled:
            gc.enable()


def _sections(recorded: bytes, thread: int) -> list[str]:
    """Return the frames of *thread* in each dump of faulthandler, a line for each frame."""
    # From Python 3.14 on, the name of the thread follows its number.
    section = rf"^Thread 0x0*{thread:x}\b.*\n((?:  .*\n)*)"
    return re.findall(section, recorded.decode("ascii", "replace"), re.MULTILINE)


def _records(notes: list[float], sections: list[str], beat_s: float) -> Iterator[StackRecord]:
    """Yield the records after the beat of *beat_s*, without those of a hub that waited."""
    # Not strict: the thread may be in the middle of _forget(), and a dump may lack this thread.
    numbers = zip(*[iter(notes)] * NUMBERS, strict=False)
    for section, (noted_s, *values) in zip(sections, numbers, strict=False):
        stack = stack_of(section)
        # The hub waits for events, or has just begun to run again.
        is_waiting = not stack or (stack[-1][0], stack[-1][2]) == HUB
        if noted_s == beat_s and not is_waiting:
            gap_s, begun, pending, callbacks, head = values
            yield StackRecord(gap_s, begun, pending, callbacks, head, stack)


def stack_of(section: str) -> Stack:
    """
    Return the frames in a section of one thread, as faulthandler writes it.

    What interrupts the application is none of it: the frames end where that begins.
    """
    frames = [
        (_unescaped(file), int(number) if number.isdigit() else 0, _unescaped(function))
        for file, number, function in FRAME.findall(section)
    ]
    return list(takewhile(lambda frame: frame[0] != INTERRUPTION, reversed(frames)))


def _unescaped(text: str) -> str:
    """Return *text* with its characters beyond ASCII, which faulthandler writes as numbers."""
    return ESCAPE.sub(lambda found: chr(int(found[1] or found[2] or found[3], 16)), text)


def _is_same(last: StackRecord, record: StackRecord) -> bool:
    """Return whether the same greenlet ran at both records."""
    return (
        (last.begun, last.pending) == (record.begun, record.pending)
        # The greenlet itself may have added callbacks, which come last in the queue.
        and last.callbacks <= record.callbacks
        and (last.head == record.head or not last.head or not record.head)
    )


def _longest_run(records: list[StackRecord]) -> tuple[list[StackRecord], bool]:
    """Return the records of the greenlet that ran for longest, and whether it ran alone."""
    runs: list[list[StackRecord]] = []
    for record in records:
        if runs and _is_same(runs[-1][-1], record):
            runs[-1].append(record)
        else:
            runs.append([record])
    longest = max(runs, key=lambda run: run[-1].gap_s - run[0].gap_s, default=[])
    return longest, len(runs) <= 1


def _log(
    late_s: float,
    records: list[StackRecord],
    limit_s: float,
    unlogged: int,
    advise: Callable[[Stack], str | None],
    on_logged: Callable[[Stack, float], object],
) -> None:
    run, is_alone = _longest_run(records)
    several = not is_alone and run[-1].gap_s - run[0].gap_s < limit_s
    head = f"the hub was blocked for {late_s * 1000:.0f} ms"
    if several:
        head = f"the hub was {late_s * 1000:.0f} ms late: too many greenlets had work to do"
    if unlogged:
        head += f" (and {unlogged} more times since the last entry)"
    stack = run[-1].stack if run else []
    where = f", {'for instance ' * several}here:\n{_formatted(stack)}" if stack else ""
    advice = None if several else advise(stack)
    log.warning("%s%s%s", head, where, f"\n{advice}" if advice else "")
    if stack and not several:
        on_logged(stack, late_s)


def _formatted(stack: Stack) -> str:
    lines = (
        f'  File "{file}", line {number}, in {function}\n'
        f"    {linecache.getline(file, number).strip()}"
        for file, number, function in stack
    )
    return "\n".join(lines)
