"""What must be done although the request that began it is over: its deadline does not count."""

import logging
from collections.abc import Callable

import gevent

from greenline import deadline

LIMIT_S = 5.0

log = logging.getLogger(__name__)


def do(work: Callable[[], object], what: str) -> bool:
    """
    Return whether *work* was done; the log tells what went wrong, as *what*.

    It goes on in its own greenlet when the caller is interrupted.
    """

    def run() -> bool:
        try:
            with deadline.limit(LIMIT_S):
                work()
        except Exception:
            log.exception("%s failed", what)
            return False
        return True

    return bool(gevent.spawn(run).get())
