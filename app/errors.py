"""
The errors of the service, which a request causes.

The docstring of an error class is its default message, which clients see.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from greenline.errors import GreenlineError, Unavailable


class AppError(GreenlineError):
    """The request cannot be processed."""

    code = "app_error"


class MalformedRequest(AppError):
    """The request is malformed."""

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
    """The request is invalid."""

    code = "invalid_request"

    def __init__(self, message: str | None = None, faults: Sequence[Fault] = ()) -> None:
        """
        :param message: for the client, str, default: the details of *faults*, or the docstring of
            the class.
        :param faults: what is wrong with the request, default none.
        """
        # The details of all faults also appear in the log.
        super().__init__(message or "; ".join(fault.detail for fault in faults) or None)
        self.faults = tuple(faults)


class IdempotencyKeyReused(AppError):
    """This Idempotency-Key was already used with a different request."""

    code = "idempotency_key_reused"


class IdempotencyKeyInProgress(AppError):
    """The first request with this Idempotency-Key is still in progress."""

    code = "idempotency_key_in_progress"
    retryable = True
    retry_after_s = 1


class PreconditionFailed(AppError):
    """The item has changed: its current version is another one."""

    code = "precondition_failed"


class Unauthorized(AppError):
    """Send an API key as "Authorization: Bearer gl_...": it is missing or malformed."""

    code = "unauthorized"


class InvalidToken(AppError):
    """The API key is unknown, expired or revoked."""

    code = "invalid_token"


class Forbidden(AppError):
    """The API key does not allow this operation."""

    code = "forbidden"

    def __init__(self, scope: str) -> None:
        """
        :param scope: the right that the API key lacks, str.
        """
        super().__init__(f"the API key lacks the scope {scope}")
        self.scope = scope


class TooManyRequests(AppError):
    """The rate limit is exceeded."""

    code = "too_many_requests"
    retryable = True

    def __init__(self, message: str | None = None, retry_after_s: int = 1) -> None:
        """
        :param message: for the client, str, default: the docstring of the class.
        :param retry_after_s: seconds after which the client may try again, int, default 1.
        """
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotFound(AppError):
    """The resource was not found."""

    code = "not_found"

    def __init__(self, message: str | None = None, missing: Sequence[int | str] = ()) -> None:
        """
        :param message: for the client, str, default: the docstring of the class.
        :param missing: the ids or names that were not found, default none.
        """
        super().__init__(message)
        self.missing = tuple(missing)


class SchemaBehind(Unavailable):
    """The schema of the database is older than this release requires."""

    code = "schema_behind"
