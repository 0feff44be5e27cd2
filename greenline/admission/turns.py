"""
Start the requests of pages that compute for long one after the other, behind all that have arrived.

A thread that computes is interrupted after 5 ms; a greenlet keeps its worker until it waits. If
twenty clients ask for pages that compute for 10 ms, a small page would wait for all that were read
before it. So a page that has computed for long before its first wait takes turns: one in each round
of the event loop, after the other requests of that round. A small page waits for one of them.
"""

import re
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from time import monotonic
from typing import Any

import gevent

from greenline.hub.cooperate import FIRST

LONG_S = 0.002  # a page that computes for so long takes turns, below half of it no more
MAX_S = 0.02  # what counts of one request: the first one of a page may import modules
SMOOTHING = 4  # requests
MAX_PAGES = 256
MAX_PATH, MAX_PARTS = 200, 4  # characters and parts of a path that tell pages apart
NUMBER = re.compile(r"[^/]*\d[^/]*")

Page = tuple[str, int, str]


@lru_cache(4 * MAX_PAGES)
def page_of(method: str, path: str) -> Page:
    """Return what requests have in common that take about the same time."""
    # An application's routes are not known here: parts with digits are taken for identifiers.
    parts = NUMBER.sub("0", path[:MAX_PATH]).split("/", MAX_PARTS)[:MAX_PARTS]
    return method, path.count("/"), "/".join(parts)


class Turns:
    """
    Start requests in handlers. Call from the hub.

    :param start: calls a function in a handler, and returns when that waits or ends.
    """

    def __init__(self, start: Callable[..., None]) -> None:
        self._start = start
        self._loop: Any = gevent.get_hub().loop
        self._round: Any = self._loop.idle(priority=FIRST)  # called once in each round of the loop
        self._waiting: deque[Callable[[], object]] = deque()
        self._ended_s = 0.0  # when the last turn ended
        self.long: dict[Page, float] = {}  # the seconds that its requests compute

    def start(self, work: Callable[..., None], request: Any) -> None:
        """
        Call *work* with *request* in a handler; return when it waits for the first time, or ends.

        :param work: a function that handles its errors itself.
        :param request: has a ``method`` and a ``path``.
        """
        begun_s = monotonic()
        self._start(work, request)
        took_s = monotonic() - begun_s
        if self.long or took_s >= LONG_S:
            self._note(page_of(request.method, request.path), took_s)

    def must_wait(self, request: Any) -> bool:
        """Return whether *request* has to wait for its turn."""
        return page_of(request.method, request.path) in self.long

    def wait(self, begin: Callable[[], object]) -> None:
        """Call *begin* in its turn."""
        self._waiting.append(begin)
        if not self._round.active:
            self._ended_s = monotonic()
            # A callback runs when all events of a round are through, and before the next look at
            # the sockets.
            self._round.start(self._loop.run_callback, self._next)

    def _next(self) -> None:
        # One of them, or as many as take the time that all others had since the last turn: neither
        # kind of request keeps the other one from being served.
        now = monotonic()
        until_s = 2 * now - self._ended_s
        while self._waiting and now < until_s:
            self._waiting.popleft()()
            now = monotonic()
        if not self._waiting:
            self._round.stop()
        self._ended_s = now

    def _note(self, page: Page, took_s: float) -> None:
        took_s = min(took_s, MAX_S)
        before_s = self.long.get(page)
        if before_s is not None:
            took_s = before_s + (took_s - before_s) / SMOOTHING
            if took_s < LONG_S / 2:
                del self.long[page]
                return
        elif took_s < LONG_S:
            return
        elif len(self.long) == MAX_PAGES:
            del self.long[next(iter(self.long))]
        self.long[page] = took_s
