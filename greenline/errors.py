"""
The errors of the runtime.

Each error class has a stable ``code``, and ``retryable``: whether the same request may be tried
again. The service maps the classes to HTTP statuses in a table of its own.
"""

from collections.abc import Mapping
from inspect import getdoc
from typing import ClassVar


class GreenlineError(Exception):
    """An error occurred."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        """
        :param message: str, default: the docstring of the class.
        """
        # So an edit of a docstring changes the responses of the service.
        super().__init__(message or getdoc(type(self)))


class ConfigError(GreenlineError):
    """A setting is invalid."""

    code = "config"


class LatePatching(ConfigError):
    """The standard library was patched too late, or not at all."""

    code = "late_patching"


class Unavailable(GreenlineError):
    """The service is temporarily unavailable; try again in a moment."""

    code = "unavailable"
    retryable = True
    retry_after_s: ClassVar[int] = 1


class PoolTimeout(Unavailable):
    """No connection became free in time."""

    code = "pool_timeout"


class PoolClosed(Unavailable):
    """The connection pool is closed."""

    code = "pool_closed"


class TooManyWaiting(Unavailable):
    """Too many requests are already waiting for a connection."""

    code = "too_many_waiting"


class StoreDown(Unavailable):
    """The database cannot be reached."""

    code = "store_down"


class ConnectionLost(StoreDown):
    """The database connection was lost and nothing was written; repeat the request."""

    code = "connection_lost"


class Overloaded(Unavailable):
    """The server is overloaded; try again in a moment."""

    code = "overloaded"

    def __init__(self, message: str | None = None, reason: str = "") -> None:
        """
        :param message: str, default: the docstring of the class.
        :param reason: why a request is refused, for the metrics, str, default empty.
        """
        super().__init__(message)
        self.reason = reason


class SerializationFailure(Unavailable):
    """The transaction conflicted with a concurrent one; repeat the request."""

    code = "serialization_failure"


class DeadlineExceeded(GreenlineError):
    """The request exceeded its time limit."""

    code = "deadline_exceeded"
    retryable = True

    def __init__(
        self, message: str | None = None, spent_s: Mapping[str, float] | None = None
    ) -> None:
        """
        :param message: str, default: the docstring of the class.
        :param spent_s: seconds spent by name, such as ``postgres``, dict, default empty.
        """
        super().__init__(message)
        self.spent_s: Mapping[str, float] = spent_s or {}


class ClientGone(GreenlineError):
    """The client disconnected while its request waited."""

    code = "client_gone"


class Conflict(GreenlineError):
    """The request conflicts with stored data."""

    code = "conflict"

    def __init__(self, message: str | None = None, constraint: str | None = None) -> None:
        """
        :param message: str, default: the docstring of the class.
        :param constraint: name of the violated constraint, str, default None.
        """
        super().__init__(message)
        self.constraint = constraint


class NestedConnection(GreenlineError):
    """This greenlet already holds a connection of this pool; a second one could deadlock."""

    code = "nested_connection"


class OutcomeUnknown(GreenlineError):
    """The connection was lost during a write, which may be stored: check before you repeat it."""

    code = "outcome_unknown"


class StoreError(GreenlineError):
    """The database rejected the operation."""

    code = "store_error"
