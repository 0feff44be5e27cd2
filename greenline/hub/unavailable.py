"""
Answer 503 for a request that failed because something it needs is temporarily unavailable.

Code that is not written for it answers every unexpected error with a 500, which says that a retry
is of no use.
"""

from typing import Any

from greenlet import getcurrent

from greenline.errors import Unavailable
from greenline.hub.handlers import Handler

STATUS, RETRY_AFTER = "503 Service Unavailable", ("Retry-After", "1")

# The requests in which something was unavailable, by their greenlets, and why.
noted: dict[Any, Unavailable] = {}


def note(error: Unavailable) -> None:
    """Note that the current greenlet's request has got *error*."""
    me = _current()
    if isinstance(me, Handler):
        noted[me] = error


def forget() -> None:
    """Forget what the current greenlet's request has noted."""
    if noted:
        noted.pop(_current(), None)


def _current() -> Any:
    me = getcurrent()
    return getattr(me, "handler", me)  # a request in a native thread is that of its handler


def restate(response: Any) -> None:
    """Make the 500 of a request that has noted an error a 503; other answers stay."""
    if getcurrent() in noted and response.status_code == 500 and not response.headers_sent:
        response.status, response.status_code = STATUS, 503
        response.headers.append(RETRY_AFTER)
        response._lines = None  # the head is made of the headers again


def reason() -> Unavailable | None:
    """Return what the current greenlet's request has noted."""
    return noted.get(getcurrent())
