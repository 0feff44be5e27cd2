"""
Notice that the hub is blocked, and by whom.

gevent's own monitor does not serve: it traces every switch (a third of a microsecond each), and
misses most blocks that last less than twice its period.

1. A timer in the hub notes the time, so the hub itself knows exactly how late it ran. A native
   thread sees in the meantime what runs there instead, some looks for each block.
2. The thread only looks. The hub logs when it runs again, from a greenlet: nothing outside ever
   waits for a lock that a greenlet may hold. What is stuck for longer may never run again:
   then the thread writes to stderr by itself.
3. One greenlet that blocks and a thousand that take a millisecond each are not the same: when
   two looks find two greenlets, nobody blocks, there is too much to do.
4. At most one log entry in ``LOG_EVERY_S``; it tells how many there were.
5. The frames of a thread that runs are safe to follow only while it cannot: they are collected by
   calls in C alone, during which nobody gives the interpreter's lock away.
6. A call into C that keeps the interpreter's lock is seen when it ends, where it was called.
"""

import linecache
import logging
import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate, chain, repeat, starmap
from operator import itemgetter
from time import monotonic
from types import FrameType
from typing import Any

import gevent
from gevent.hub import Hub
from gevent.monkey import get_original

from greenline import offload

LOG_EVERY_S = 10.0
LOOKS = 4  # for each limit
STDERR = 2

log = logging.getLogger(__name__)

Stack = list[tuple[str, int, str]]  # file, line and function, the outermost first


class Watchdog:
    """
    Watch the hub of the thread that calls :meth:`start`.

    A hub that comes *limit_s* late was blocked: *on_blocked* is called, in the hub. After
    *stuck_s* its stack is written to stderr even if it never comes back.
    """

    def __init__(
        self,
        limit_s: float = 0.1,
        *,
        stuck_s: float = 15.0,
        on_blocked: Callable[[], object] = lambda: None,
    ) -> None:
        self._limit_s = limit_s
        self._look_s = limit_s / LOOKS
        self._stuck_s = stuck_s
        self._on_blocked = on_blocked
        self._blocked = 0
        self._longest_s = 0.0
        self._unlogged = 0
        self._logged_s = -LOG_EVERY_S
        self._beat_s = 0.0
        self._seen: Stack = []
        self._several = False
        self._timer: Any = None
        self._thread = 0

    def __repr__(self) -> str:
        stats = " ".join(f"{name}={value}" for name, value in self.stats().items())
        return f"<Watchdog {stats}>"

    def stats(self) -> dict[str, int]:
        """Return how often the hub was blocked, and for how many milliseconds at the most."""
        return {"blocked": self._blocked, "longest_ms": round(self._longest_s * 1000)}

    def start(self) -> None:
        """Watch from now on: in a worker, after the fork."""
        self._thread = get_original("_thread", "get_ident")()
        self._beat_s = monotonic()
        self._timer = gevent.get_hub().loop.timer(self._look_s, self._look_s, ref=False)
        self._timer.start(self._beat)
        get_original("_thread", "start_new_thread")(self._watch, (self._timer,))

    def stop(self) -> None:
        """Watch no longer."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.close()

    def _beat(self) -> None:
        """Run in the hub, on time or not."""
        now = monotonic()
        late_s = now - self._beat_s - self._look_s
        self._beat_s = now
        seen, several = self._seen, self._several
        self._seen, self._several = [], False
        if late_s < self._limit_s:
            return
        self._blocked += 1
        self._longest_s = max(self._longest_s, late_s)
        self._on_blocked()
        if now - self._logged_s < LOG_EVERY_S:
            self._unlogged += 1
            return
        gevent.spawn(_log, late_s, seen, several, self._unlogged)
        self._logged_s, self._unlogged = now, 0

    def _watch(self, timer: Any) -> None:
        """Run in the native thread until another watch begins or none is wanted."""
        sleep = get_original("time", "sleep")
        root: FrameType | None = None
        root_s = 0.0  # the beat before it was seen
        told_s = 0.0  # the beat after which it was told that the hub is stuck
        while self._timer is timer:
            sleep(self._look_s)
            beat_s = self._beat_s
            gap_s = monotonic() - beat_s
            if gap_s < self._limit_s / 2:
                root = None
                continue
            found = self._look()
            if found is not None:
                self._several |= root is not None and root_s == beat_s and root is not found
                root, root_s = found, beat_s
            if gap_s >= self._stuck_s and told_s != beat_s:
                told_s = beat_s
                stack = _formatted(self._seen)
                text = f"greenline: the hub has been blocked for {gap_s:.0f} s, here:\n{stack}\n"
                os.write(STDERR, text.encode(errors="replace"))

    def _look(self) -> FrameType | None:
        """Note what runs in the hub's thread; return its outermost frame, one a greenlet."""
        frames = _frames(self._thread)
        if not frames or frames[0].f_code is Hub.run.__code__:
            return None  # It waits, or has just come back: its beat is next.
        self._seen = [
            (frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name)
            for frame in reversed(frames)
        ]
        return frames[-1]


def _frames(thread: int) -> "deque[FrameType]":
    """Return the frames of *thread*, the innermost first; in C alone (rule 5)."""
    frames: deque[Any] = deque()
    innermost = map(itemgetter(thread), starmap(sys._current_frames, ((),)))
    # The outermost has none before it, which ends it.
    with suppress(AttributeError, KeyError):
        frames.extend(accumulate(chain(innermost, repeat("f_back")), getattr))
    if frames and frames[-1] is None:
        frames.pop()
    return frames


def _log(late_s: float, seen: Stack, several: bool, unlogged: int) -> None:
    head = f"the hub was blocked for {late_s * 1000:.0f} ms"
    if several:
        head = f"the hub was {late_s * 1000:.0f} ms late: too many greenlets had work to do"
    if unlogged:
        head += f" (and {unlogged} more times since the last entry)"
    where = f", {'for instance ' * several}here:\n{_formatted(seen)}" if seen else ""
    advice = None if several else offload.advice_for(seen)
    log.warning("%s%s%s", head, where, f"\n{advice}" if advice else "")


def _formatted(stack: Stack) -> str:
    lines = (
        f'  File "{file}", line {number}, in {function}\n'
        f"    {linecache.getline(file, number).strip()}"
        for file, number, function in stack
    )
    return "\n".join(lines)
