"""What must be done although the request that began it is over: its deadline does not count."""

import logging
from collections.abc import Callable

import gevent

from greenline.hub import deadline

LIMIT_S = 5.0
PER_ITEM_S = 0.02

log = logging.getLogger(__name__)


def limit_s(items: int) -> float:
    """Return how long the work on so many items may take."""
    return LIMIT_S + items * PER_ITEM_S


def do(work: Callable[[], object], what: str, items: int = 0) -> bool:
    """
    Return whether *work* was done; the log tells what went wrong, as *what*.

    It goes on in its own greenlet when the caller is interrupted.
    """
    return bool(begin(work, what, items).get())


def begin(work: Callable[[], object], what: str, items: int = 0) -> "gevent.Greenlet[[], bool]":
    """Begin *work* as :func:`do` does, and do not wait for it."""

    def run() -> bool:
        try:
            with deadline.limit(limit_s(items)):
                work()
        except Exception:
            log.exception("%s failed", what)
            return False
        return True

    return gevent.spawn(run)
