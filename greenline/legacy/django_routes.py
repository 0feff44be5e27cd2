"""Note the route that Django has found for a request, for the counts, the logs and the traces."""

from functools import wraps
from typing import Any

from greenline.telemetry.access_log import ROUTE


def install() -> None:
    """Note the routes of all requests from now on; a Django that resolves otherwise notes none."""
    from django.core.handlers.base import BaseHandler

    resolve = getattr(BaseHandler, "resolve_request", None)
    if resolve is None:
        return

    @wraps(resolve)
    def resolve_request(self: Any, request: Any) -> Any:
        match = resolve(self, request)
        environ = getattr(request, "environ", None)  # of WSGI alone
        if environ is not None:
            # A pattern of re_path() is a regular expression, which has a begin of its own.
            route = match.route
            environ[ROUTE] = route if route.startswith("^") else f"/{route}"
        return match

    BaseHandler.resolve_request = resolve_request
