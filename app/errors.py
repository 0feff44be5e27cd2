"""
The errors of the service, which a request causes.

The docstring of an error class is its default message, which clients see.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from greenline.errors import GreenlineError, Unavailable


class AppError(GreenlineError):
    """The request cannot be answered as it is."""

    code = "app_error"


class MalformedRequest(AppError):
    """The request cannot be read."""

    code = "malformed_request"


@dataclass(frozen=True, slots=True)
class Fault:
    """
    One fault of a request.

    :param detail: a description for people, str.
    :param pointer: JSON pointer (RFC 6901) into the body, str. Default None.
    :param name: of a query parameter, str. Default None.
    """

    detail: str
    pointer: str | None = None
    name: str | None = None


class InvalidRequest(AppError):
    """The request is understood, and wrong."""

    code = "invalid_request"

    def __init__(self, message: str | None = None, faults: Sequence[Fault] = ()) -> None:
        # Without a message: the details of all faults, as they also appear in the log.
        super().__init__(message or "; ".join(fault.detail for fault in faults) or None)
        self.faults = tuple(faults)


class KeyReused(AppError):
    """This Idempotency-Key came with another request before."""

    code = "idempotency_key_reused"


class KeyInProgress(AppError):
    """The first request with this Idempotency-Key has not been answered yet."""

    code = "idempotency_key_in_progress"
    retryable = True
    retry_after_s = 1


class PreconditionFailed(AppError):
    """The item has another version by now."""

    code = "precondition_failed"


class Unauthorized(AppError):
    """Send a key, as in "Authorization: Bearer gl_..."; here it is missing, or another one."""

    code = "unauthorized"


class InvalidToken(AppError):
    """There is no such key, or it is over."""

    code = "invalid_token"


class Forbidden(AppError):
    """The key may not do this."""

    code = "forbidden"

    def __init__(self, scope: str) -> None:
        super().__init__(f"the key has no scope {scope}")
        self.scope = scope


class TooManyRequests(AppError):
    """More was asked in this time than is allowed."""

    code = "too_many_requests"
    retryable = True

    def __init__(self, message: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotFound(AppError):
    """There is nothing here."""

    code = "not_found"

    def __init__(self, message: str | None = None, missing: Sequence[int | str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class SchemaBehind(Unavailable):
    """The database's schema is older than this code needs."""

    code = "schema_behind"
