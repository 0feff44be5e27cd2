"""Decide which errors of a server are transient, and retry after them."""

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

# A server may be unreachable for so long: an election takes ten seconds, a restart a minute.
MAX_OUTAGE_S = 120.0
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 10.0

# MongoDB's codes of transient states: elections, restarts, locks, time limits, overload. Azure's
# and Amazon's services answer too many requests with 16500.
PASSING_CODES = frozenset({6, 7, 24, 46, 50, 64, 89, 112, 202, 262, 462, 9001, 16500} | DOWN_CODES)
# Codes of a lost cursor, after which the query can be sent again; also those of a capped collection
# that was overwritten and of a killed plan.
LOST_CODES = CURSOR_CODES | {136, 175}
PASSING_LABELS = ("RetryableWriteError", "RetryableError", "SystemOverloadedError")


class NotYet(Exception):
    """Some documents of a batch were refused with transient errors."""


def passes(error: BaseException) -> bool:
    """Return whether *error* is transient."""
    if isinstance(error, AutoReconnect | ExecutionTimeout | WTimeoutError | NotYet):
        return True
    if not isinstance(error, OperationFailure):
        return False
    return error.code in PASSING_CODES | LOST_CODES or any(
        map(error.has_error_label, PASSING_LABELS)
    )


def retrying(stopping: Event, on_pause: Callable[[float], None] = lambda _: None) -> Retrying:
    """
    Return a callable that calls a function again after transient errors.

    Pauses are exponential with full jitter, as in :mod:`greenline.mongo.retry`.

    :param stopping: once set, a pause ends and no further attempt is made.
    :param on_pause: called with the seconds of each pause before it. Default: nothing.
    """

    def before_sleep(state: RetryCallState) -> None:
        on_pause(state.upcoming_sleep)

    # In place of time.sleep: a signal that sets the event ends the pause.
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
