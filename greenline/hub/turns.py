"""
Start the requests of pages that compute for long one after the other, behind all that is ready.

A thread that computes is interrupted after 5 ms; a greenlet keeps its worker until it waits. If
twenty clients ask for pages that compute for 10 ms, a small page would wait for all that became
ready before it. So the requests of a page that has computed for long without a wait are started in
turns: one in each round of the event loop, or as many as take the time that all others of the round
had. So few of them are in progress, and a small page waits for one or two, whether they compute at
once or after their statements. A turn after each wait would cost a request with thirty statements a
tenth of its time.

Their order is that in which they would end if they shared the processor, by the virtual time of
fair queueing (Demers, Keshav and Shenker, 1989): a page of 3 ms is not behind all of 30.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count
from math import inf
from time import monotonic, thread_time
from typing import Any

import gevent

from greenline.hub.cooperate import Rounds

LONG_S = 0.002  # a page that computes for so long takes turns, below half of it no more
REST_S = 0.0075  # so long computes one that was interrupted, or longer
SLICE_S = 0.001  # so long they run between two looks at the sockets, if each has less to do
SMOOTHING = 4  # requests
ALONE_S = 2.0  # so long after the last request of another page those of long ones take turns
MAX_PAGES = 256
MAX_PATH, MAX_PARTS = 200, 4  # characters and parts of a path that tell pages apart
MAX_SHARES = 16  # of the processor, as threads would have: more that wait slow a long one no more
DIGIT = re.compile(r"\d")

Page = tuple[str, int, str]
# The virtual time at which one would end if all shared the processor, and a number.
Turn = tuple[float, int]


@lru_cache(4 * MAX_PAGES)
def page_of(method: str, path: str) -> Page:
    """Return what requests have in common that take about the same time."""
    # An application's routes are not known here: parts with digits are taken for identifiers.
    parts = path[:MAX_PATH].split("/", MAX_PARTS)[:MAX_PARTS]
    parts = ["0" if DIGIT.search(part) else part for part in parts]
    return method, path.count("/"), "/".join(parts)


class Turns:
    """Remember which pages compute for long, and let their requests wait. Call from one thread."""

    def __init__(self) -> None:
        self._loop: Any = gevent.get_hub().loop
        self._round = Rounds(self._loop)
        self._waiting: list[tuple[Turn, int, Callable[[], object]]] = []
        self._numbers = count()
        self._virtual_s = 0.0  # what each would have had of the processor until _advanced_s
        self._advanced_s = 0.0
        self._ended_s = 0.0  # when the last turn ended
        self._other_s = -inf  # when a page that takes no turns was last requested
        self._measured = 0  # requests of known pages
        self._taken = -1  # the round of the loop in which one runs
        # The seconds of the processor that a request of a page computes without a wait, 0 until one
        # was measured; those that were requested of late.
        self.pages: dict[Page, float] = {}
        self._used: set[Page] = set()

    def clock(self, request: Any) -> Callable[[], float]:
        """
        Return what measures in seconds how long *request* computes.

        A page that has taken long by the monotonic clock is measured by the processor's time at its
        next requests, which is exact and takes longer to read: another process may have had the
        processor, and the first request of a page may import modules.

        :param request: has a ``method`` and a ``path``; None: it is of no page.
        """
        if not self.pages or request is None:
            return monotonic
        known_s = self.pages.get(page_of(request.method, request.path))
        if known_s:  # one of some requests is enough
            self._measured += 1
            return monotonic if self._measured % SMOOTHING else thread_time
        return monotonic if known_s is None else thread_time

    def must_wait(self, request: Any) -> bool:
        """
        Return whether *request* has to wait for its turn; if not, it may go on at once.

        :param request: has a ``method`` and a ``path``.
        """
        if not self.known_s(request):
            self._other_s = monotonic()
            return False
        # Long pages alone gain nothing by turns.
        if monotonic() - self._other_s > ALONE_S:
            return False
        now = self._loop.iteration
        if self._waiting or now == self._taken:
            return True
        self._taken = now
        return False

    def known_s(self, request: Any) -> float:
        """
        Return how long the page of *request* computes without a wait.

        :param request: has a ``method`` and a ``path``; None: it is of no page.
        :returns: seconds, float; 0 where it was not measured.
        """
        if not self.pages or request is None:
            return 0.0
        return self.pages.get(page_of(request.method, request.path), 0.0)

    def wait(
        self,
        request: Any,
        begin: Callable[[], object],
        computed_s: float = 0.0,
        last: Turn | None = None,
    ) -> Turn:
        """
        Call *begin* in its turn.

        :param request: has a ``method`` and a ``path``; None: it is of no page.
        :param begin: is called in the hub.
        :param computed_s: seconds that it has computed already, float. Default 0.
        :param last: what this has returned for its last turn. Default None: it had none.
        :returns: its turn.
        """
        now = monotonic()
        self._advance(now)
        if request is not None:
            self._used.add(page_of(request.method, request.path))
        if computed_s:
            self._ended_s = now  # what it has had is no time of the others
        left_s = self.known_s(request) - computed_s
        turn = last
        # The last turn has all the time of its page: those of one page end one after the other.
        if turn is None or left_s <= 0:
            begins_s = self._virtual_s if turn is None else max(self._virtual_s, turn[0])
            least_s = REST_S if computed_s else LONG_S
            turn = begins_s + max(left_s, least_s), next(self._numbers)
        heappush(self._waiting, (turn, next(self._numbers), begin))
        if not self._round.active:
            self._ended_s = now
            # A callback runs when all events of a round are through, and before the next look at
            # the sockets.
            self._round.start(self._loop.run_callback, self._next)
        return turn

    def note(self, request: Any, computed_s: float, clock: Callable[[], float]) -> None:
        """
        Note how long a request has computed.

        :param request: has a ``method`` and a ``path``; None: it is of no page.
        :param computed_s: seconds without a wait, float.
        :param clock: what they were measured by.
        """
        if request is None:
            return
        page = page_of(request.method, request.path)
        before_s = self.pages.get(page)
        if before_s is None:
            if computed_s < LONG_S or not self._has_place():
                return
            self.pages[page] = computed_s if clock is thread_time else 0.0
        elif clock is thread_time:
            change_s = computed_s - before_s
            found_s = before_s + (change_s / SMOOTHING if before_s else change_s)
            if found_s < (LONG_S / 2 if before_s else LONG_S):
                del self.pages[page]
                return
            self.pages[page] = found_s
        self._used.add(page)

    def forget_unused(self) -> None:
        """Forget the pages that were not requested since the last call."""
        self.pages = {page: each for page, each in self.pages.items() if page in self._used}
        self._used.clear()

    def _has_place(self) -> bool:
        """Return whether another page can be remembered, instead of one that was not measured."""
        if len(self.pages) >= MAX_PAGES:
            unmeasured = next((page for page, each in self.pages.items() if not each), None)
            if unmeasured is None:
                return False
            del self.pages[unmeasured]
        return True

    def _advance(self, now: float) -> None:
        self._virtual_s += (now - self._advanced_s) / min(max(len(self._waiting), 1), MAX_SHARES)
        self._advanced_s = now

    def _next(self) -> None:
        # One of them, or as many as take the time that all others had since the last turn.
        now = monotonic()
        until_s = now + max(now - self._ended_s, SLICE_S)
        while self._waiting and now < until_s:
            self._advance(now)
            _, _, begin = heappop(self._waiting)
            begun_s = now
            begin()
            now = monotonic()
            # It computes after its first wait: more of its kind would only be in progress.
            if now - begun_s < SLICE_S:
                break
        if not self._waiting:
            self._round.stop()
        self._ended_s = now
