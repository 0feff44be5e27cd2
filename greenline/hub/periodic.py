"""Work that is done again and again beside the requests, for as long as its worker lives."""

import logging
from collections.abc import Callable

import gevent

from greenline.errors import GreenlineError

log = logging.getLogger(__name__)


def keep_doing(
    work: Callable[[], object], pause_s: Callable[[], float], what: str
) -> "gevent.Greenlet[..., None]":
    """
    Do *work* in a greenlet of its own, and again after each pause, until it is killed.

    An error of ours ends nothing and is not logged, as readiness tells it; any other is, as *what*.
    """

    def keep() -> None:
        while True:
            try:
                work()
            except GreenlineError:
                pass
            except Exception:
                log.exception("%s failed", what)
            gevent.sleep(pause_s())

    return gevent.spawn(keep)
