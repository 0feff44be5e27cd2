"""
Count requests by route, method and status, and add their durations to histograms.

A request that has spent time in a queue or a database is in another histogram than one that has
not: for the latter, all of its time is the application's, and nothing else is noted.
"""

from collections.abc import Callable, Mapping
from typing import Any

from greenline.telemetry.counters import OTHER, Counters, Histogram, Key

# Clients may send any word as a method.
METHODS = {
    "CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE", "-",
}  # fmt: skip
# Why a request is refused: the queue is full (GREENLINE_MAX_WAITING), it has waited too long
# (GREENLINE_MAX_WAIT), or more wait than will be answered in time.
QUEUE_FULL, WAITED, OVERLOAD = REASONS = "queue_full", "waited_too_long", "overload"
MAX_KEPT = 1_000  # functions: an application may have any number of routes
PLAIN, MIXED, PART, APPLICATION = "plain", "mixed", "part", "application"


class RequestCounts:
    """
    Count the requests of one worker.

    :param counters: the counters of the worker.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._count: dict[tuple[str, str, int], Callable[[], None]] = {}
        self._observe: dict[tuple[str, ...], Callable[[float], None]] = {}
        self._plain: dict[str, Callable[[float], None]] = {}  # by route

    def count(self, environ: Mapping[str, Any], route: str, status: int) -> None:
        """
        Count a request.

        :param environ: of the request; empty if that could not be read.
        :param route: the rule that matched, str.
        :param status: the status code, int.
        """
        key = route, environ.get("REQUEST_METHOD", "-"), status
        (self._count.get(key) or self._new_counter(key))()

    def note(self, environ: Mapping[str, Any], route: str, took_s: float) -> None:
        """
        Note the duration of a request, and of its parts.

        :param environ: of the request; empty if that could not be read.
        :param route: the rule that matched, str.
        :param took_s: seconds that it took, float.
        """
        if "greenline.spent" not in environ:
            # By the route alone, without a call: most requests of a small application pass here.
            try:
                self._plain[route](took_s)
            except KeyError:
                observe = self._new_observer((PLAIN, route))
                if len(self._plain) < MAX_KEPT:
                    self._plain[route] = observe
                observe(took_s)
            return
        spent_s = environ["greenline.spent"]
        self._note((MIXED, route), took_s)
        for part, part_s in spent_s.items():
            self._note((PART, route, part), part_s)
        # Several greenlets of a request may have waited at once.
        self._note((PART, route, APPLICATION), max(took_s - sum(spent_s.values()), 0.0))

    def _note(self, key: tuple[str, ...], duration_s: float) -> None:
        (self._observe.get(key) or self._new_observer(key))(duration_s)

    def _new_counter(self, key: tuple[str, str, int]) -> Callable[[], None]:
        route, method, status = key
        known = method if method in METHODS else OTHER
        count = self._counters.counter(("requests", route, known, status))
        if len(self._count) < MAX_KEPT:
            self._count[key] = count
        return count

    def _new_observer(self, key: tuple[str, ...]) -> Callable[[float], None]:
        observe = self._counters.observer(key)
        if len(self._observe) < MAX_KEPT:
            self._observe[key] = observe
        return observe


def by_route(
    found: Mapping[Key, Histogram],
) -> tuple[dict[tuple[str, ...], Histogram], dict[tuple[str, ...], Histogram]]:
    """Return the histograms of whole requests by route, and those of parts by route and part."""
    whole: dict[tuple[str, ...], Histogram] = {}
    parts: dict[tuple[str, ...], Histogram] = {}

    def add(
        family: dict[tuple[str, ...], Histogram], labels: tuple[str, ...], one: Histogram
    ) -> None:
        family[labels] = family[labels] + one if labels in family else one

    for (name, *rest), histogram in found.items():
        labels = tuple(map(str, rest))
        if name in (PLAIN, MIXED):
            add(whole, labels, histogram)
        if name == PLAIN:
            add(parts, (*labels, APPLICATION), histogram)
        if name == PART:
            add(parts, labels, histogram)
    return whole, parts
