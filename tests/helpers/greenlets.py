"""Do several things at once, each in a greenlet."""

from collections.abc import Callable
from typing import Any

import gevent

LIMIT_S = 30.0


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Return what *works* return, each in a greenlet of its own."""
    with gevent.Timeout(LIMIT_S):
        running = [gevent.spawn(work) for work in works]
        gevent.joinall(running, raise_error=True)
    return [one.value for one in running]
