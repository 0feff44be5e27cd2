"""One load of a key, for which all callers wait that ask for the key meanwhile."""

import copy
import threading
from collections.abc import Collection

import gevent

from greenline.cache.values import Kept
from greenline.errors import ClientGone, DeadlineExceeded
from greenline.hub import deadline
from greenline.hub.gevent_compat import has_ended
from greenline.hub.request_timeout import WaitTimeout

MAX_WAIT_S = 5.0  # for a load that may be stuck
SHORT_S = 0.1  # some waits end when so much of the deadline is left: it is too short for an answer


class NotShared(Exception):
    """
    Raised by a load whose outcome is for its caller alone.

    It reaches each caller that waits for the load, and is no failure.

    :param forgets: whether the value that was kept before is not returned any more, bool.
    """

    def __init__(self, forgets: bool) -> None:
        super().__init__("the outcome of the load is for its caller alone")
        self.forgets = forgets


class Flight:
    """
    A load in progress, then its outcome.

    :param tags: of the value.
    :param begun_s: when it began, float monotonic seconds.
    :param ttl_s: seconds from then on for which the value is fresh, float.
    :param after: one of the same key that has to end first. Default None: the load has begun.
    """

    __slots__ = (
        "_ended", "after", "begun_s", "error", "is_interrupted", "is_valid", "kept", "loader",
        "tags", "ttl_s",
    )  # fmt: skip

    def __init__(
        self, tags: Collection[str], begun_s: float, ttl_s: float, after: "Flight | None" = None
    ) -> None:
        self.after = after
        self.tags = tags
        self.begun_s = begun_s
        self.ttl_s = ttl_s
        self.loader: int | None = None  # the identity of its greenlet or thread
        self.is_valid = True  # until its key or one of its tags is invalidated
        self.kept: Kept | None = None
        self.error: BaseException | None = None
        self.is_interrupted = False
        self._ended = threading.Event()

    @property
    def has_begun(self) -> bool:
        """Whether what is written now may be missing in the value."""
        return self.after is None

    def end(self, error: BaseException | None, is_interrupted: bool) -> None:
        """
        Let the waiting callers go on.

        :param error: what the load has raised; None: it has returned.
        :param is_interrupted: whether another caller has to load, bool.
        """
        self.error, self.is_interrupted = error, is_interrupted
        self._ended.set()

    def wait_for_end(self) -> None:
        """Wait until the load has ended, however that is, or seems to be stuck."""
        self._ended.wait(patience_s())

    def wait(self) -> Kept | None:
        """
        Wait until the load has ended.

        :returns: what it has loaded; None: it was interrupted, and another caller has to load.
        :raises DeadlineExceeded: the caller's own deadline passed first.
        :raises Exception: what the load has raised.
        """
        if not self._ended.wait(deadline.remaining()):
            raise DeadlineExceeded
        error = self.error
        if error is None:
            return self.kept
        if self.is_interrupted:
            return None
        # Each raise adds its frames to the traceback of its object.
        if (copied := _copied(error)) is None:
            raise error
        raise copied from error


def patience_s() -> float:
    """Return for how many seconds to wait for a load that may be stuck, before another one."""
    # Half of the time of a caller is for the load of its own.
    return (deadline.remaining(2 * MAX_WAIT_S) or 0.0) / 2


def _copied(error: BaseException) -> BaseException | None:
    """Return a copy of *error*, None where its class cannot be copied."""
    try:
        copied = copy.copy(error)
        copied.args = error.args  # copy() has called its constructor with them
    except Exception:
        return None
    return copied


def is_interruption(error: BaseException) -> bool:
    """
    Return whether *error* says something about this caller, which loads, and not about the load.
    """
    # The load may have a limit of its own, as a statement_timeout is: all callers would fail by it,
    # one after the other.
    if isinstance(error, DeadlineExceeded):
        return (deadline.remaining(1.0) or 0.0) < SHORT_S
    if isinstance(error, gevent.Timeout):
        return not has_ended(error)
    return not isinstance(error, Exception) or isinstance(error, ClientGone | WaitTimeout)
