"""
The errors of the runtime.

Each error class has a stable ``code``, and ``retryable``: whether the same request may be tried
again. The service maps the classes to HTTP statuses in a table of its own.
"""

from collections.abc import Mapping
from inspect import getdoc
from typing import ClassVar


class GreenlineError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        """
        :param message: str, default: the docstring of the class.
        """
        # So an edit of a docstring changes the responses of the service.
        super().__init__(message or getdoc(type(self)))


class ConfigError(GreenlineError):
    """A setting is wrong."""

    code = "config"


class LatePatching(ConfigError):
    """The standard library was patched too late, or not at all."""

    code = "late_patching"


class Unavailable(GreenlineError):
    """The service cannot do this now; try again in a moment."""

    code = "unavailable"
    retryable = True
    retry_after_s: ClassVar[int] = 1


class PoolTimeout(Unavailable):
    """No connection became free in time."""

    code = "pool_timeout"


class PoolClosed(Unavailable):
    """The pool is closed."""

    code = "pool_closed"


class TooManyWaiting(Unavailable):
    """Too many are waiting for a connection already."""

    code = "too_many_waiting"


class StoreDown(Unavailable):
    """The database cannot be reached."""

    code = "store_down"


class ConnectionLost(StoreDown):
    """The connection was lost, and nothing was written; the same again may succeed."""

    code = "connection_lost"


class Overloaded(Unavailable):
    """There is more to do than this server can do now; try again in a moment."""

    code = "overloaded"


class SerializationFailure(Unavailable):
    """Another transaction was in the way; the same again may succeed."""

    code = "serialization_failure"


class DeadlineExceeded(GreenlineError):
    """The request took longer than it was allowed to."""

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
    """The client hung up while its request waited."""

    code = "client_gone"


class Conflict(GreenlineError):
    """This contradicts what is stored."""

    code = "conflict"

    def __init__(self, message: str | None = None, constraint: str | None = None) -> None:
        """
        :param message: str, default: the docstring of the class.
        :param constraint: name of the violated constraint, str, default None.
        """
        super().__init__(message)
        self.constraint = constraint


class NestedConnection(GreenlineError):
    """This greenlet holds a connection of this pool already: two could wait for each other."""

    code = "nested_connection"


class OutcomeUnknown(GreenlineError):
    """The connection was lost after the database was told to write: look before you repeat it."""

    code = "outcome_unknown"


class StoreError(GreenlineError):
    """The database refused the operation."""

    code = "store_error"
