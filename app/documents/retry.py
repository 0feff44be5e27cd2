"""Which of a server's errors pass, and how long they are waited for."""

from collections.abc import Callable
from threading import Event

from pymongo.errors import AutoReconnect, ExecutionTimeout, OperationFailure, WTimeoutError
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_delay,
    stop_any,
    stop_when_event_set,
    wait_random_exponential,
)

from greenline.mongo.errors import CURSOR_CODES, DOWN_CODES

# As long as this a server may be away: an election takes ten seconds, a restart a minute.
MAX_OUTAGE_S = 120.0
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 10.0

# MongoDB's codes of states that pass: elections, restarts, locks, time limits, overload; 16500 is
# what Azure's and Amazon's services answer to too many requests.
PASSING_CODES = frozenset({6, 7, 24, 46, 50, 64, 89, 112, 202, 262, 462, 9001, 16500} | DOWN_CODES)
# The cursor is gone, and the same question may be asked again; also for a capped collection's end
# and a plan that was killed.
LOST_CODES = CURSOR_CODES | {136, 175}
PASSING_LABELS = ("RetryableWriteError", "RetryableError", "SystemOverloadedError")


class NotYet(Exception):
    """Some documents of a batch were refused by errors that pass."""


def passes(error: BaseException) -> bool:
    """Return whether the same operation may succeed a little later."""
    if isinstance(error, AutoReconnect | ExecutionTimeout | WTimeoutError | NotYet):
        return True
    if not isinstance(error, OperationFailure):
        return False
    return error.code in PASSING_CODES | LOST_CODES or any(
        map(error.has_error_label, PASSING_LABELS)
    )


def retrying(stopping: Event, on_pause: Callable[[float], None] = lambda _: None) -> Retrying:
    """
    Return what calls a function until its errors are none that pass.

    Pauses are exponential with full jitter, as in :mod:`greenline.mongo.retry`.

    :param stopping: once set, no pause is waited for and no further attempt made.
    :param on_pause: is given the length of each pause, in seconds, before it.
    """

    def before_sleep(state: RetryCallState) -> None:
        on_pause(state.upcoming_sleep)

    def sleep(pause_s: float) -> None:
        stopping.wait(pause_s)

    return Retrying(
        retry=retry_if_exception(passes),
        wait=wait_random_exponential(multiplier=MIN_BACKOFF_S, max=MAX_BACKOFF_S),
        stop=stop_any(stop_after_delay(MAX_OUTAGE_S), stop_when_event_set(stopping)),
        sleep=sleep,
        before_sleep=before_sleep,
        reraise=True,
    )
