"""
Turn a request to stop into one exception in the main thread.

1. The first SIGINT, SIGTERM or SIGHUP raises :class:`Stopped`, wherever the start is by then.
2. While a child is being started it waits: a child is never alive and unknown.
3. Once stopping has begun further ones only get an answer: the clean-up is not interrupted.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_held = False
_arrived = False


class Stopped(BaseException):
    """The person, or the system, asked us to stop."""


def raise_stopped() -> None:
    """From now on turn the first signal into :class:`Stopped`."""
    for each in SIGNALS:
        signal.signal(each, _on_signal)


def only_answer() -> None:
    """From now on stopping is under way: do not interrupt it."""
    for each in SIGNALS:
        signal.signal(each, _already_stopping)


@contextmanager
def held() -> Iterator[None]:
    """Keep a signal that comes in the block until its end."""
    global _held
    _held = True
    try:
        yield
    finally:
        _held = False
    if _arrived:
        _stop()


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _arrived
    _arrived = True
    if not _held:
        _stop()


def _stop() -> None:
    global _arrived
    _arrived = False
    only_answer()
    raise Stopped


def _already_stopping(number: int, frame: FrameType | None) -> None:
    print("serve: stopping, one moment", file=sys.stderr, flush=True)
