"""Finish work that outlives its request, such as an undo: the request's deadline does not apply."""

import logging
from collections.abc import Callable

import gevent

from greenline.hub import deadline

LIMIT_S = 5.0
PER_ITEM_S = 0.02

log = logging.getLogger(__name__)


def limit_s(items: int) -> float:
    """Return how many seconds the work on *items* documents may take."""
    return LIMIT_S + items * PER_ITEM_S


def do(work: Callable[[], object], what: str, items: int = 0) -> bool:
    """
    Run *work* in its own greenlet, which goes on when the caller is interrupted.

    :param work: a callable without arguments.
    :param what: the name of the work in the log, str.
    :param items: the number of documents, which extends the time limit, int, default 0.
    :returns: True when the work was done, False when it failed; the error is in the log.
    """
    return bool(begin(work, what, items).get())


def begin(work: Callable[[], object], what: str, items: int = 0) -> "gevent.Greenlet[[], bool]":
    """
    Begin *work* as :func:`do` does, without waiting for its end.

    :param work: a callable without arguments.
    :param what: the name of the work in the log, str.
    :param items: the number of documents, which extends the time limit, int, default 0.
    :returns: the greenlet, whose value is the result of :func:`do`.
    """

    def run() -> bool:
        try:
            # A new greenlet has an empty context, so this limit is not cut to the request's.
            with deadline.limit(limit_s(items)):
                work()
        except Exception:
            log.exception("%s failed", what)
            return False
        return True

    return gevent.spawn(run)
