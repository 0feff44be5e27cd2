"""The service's branch of the error tree: what a client did."""

from greenline.errors import GreenlineError, Unavailable


class AppError(GreenlineError):
    """The request cannot be answered as it is."""

    code = "app_error"


class MalformedRequest(AppError):
    """The request cannot be read."""

    code = "malformed_request"


class InvalidRequest(AppError):
    """The request is understood, and wrong."""

    code = "invalid_request"

    def __init__(self, message: str | None = None, pointer: str | None = None) -> None:
        super().__init__(message)
        self.pointer = pointer


class Unauthorized(AppError):
    """The token is missing, or is another one."""

    code = "unauthorized"


class NotFound(AppError):
    """There is nothing here."""

    code = "not_found"


class SchemaBehind(Unavailable):
    """The database's schema is older than this code needs."""

    code = "schema_behind"
