"""A Flask application with a deadline around each handler, and the converters of its routes."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from flask import Response
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import NotFound
from werkzeug.routing import BaseConverter

from app.records import MAX_ID
from greenline.flask import Flask, environ
from greenline.hub import deadline


class DeadlineFlask(Flask):
    """
    Flask with a deadline around each handler except those of health, which have their own.

    :param request_timeout_s: seconds that a request may take, float; a streamed answer may take as
        long for each chunk.
    """

    limits_requests = True  # read by the worker, which then sets no deadline of its own

    def __init__(self, *args: Any, request_timeout_s: float, **kwargs: Any) -> None:
        self._request_timeout_s = request_timeout_s
        super().__init__(*args, **kwargs)

    def add_url_rule(
        self, rule: str, endpoint: str | None = None, view_func: Any = None, *args: Any, **more: Any
    ) -> None:
        if view_func is not None and not (endpoint or "").startswith("health."):
            view_func = self._limited(view_func)
        super().add_url_rule(rule, endpoint, view_func, *args, **more)

    def _limited(self, view: Callable[..., ResponseReturnValue]) -> Callable[..., Response]:
        @wraps(view)
        def limited(**values: Any) -> Response:
            spent_s = environ().setdefault("greenline.spent", {})
            # The time that the request waited in the worker's queue counts.
            left_s = max(self._request_timeout_s - spent_s.get("queued", 0.0), 0.0)
            with deadline.limit(left_s, spent_s):
                return self._begun(self.make_response(view(**values)))

        return limited

    def _begun(self, response: Response) -> Response:
        """Bound the first chunk of a streamed answer by the request's deadline."""
        if response.is_streamed:
            # Each later chunk has its own deadline: a whole list may take longer than a request.
            chunks = iter(response.iter_encoded())
            response.response = deadline.Stream(chunks, response.response, self._request_timeout_s)
        return response


class IdConverter(BaseConverter):
    """``<id:...>`` in a route: a number that no bigint can hold is 404, whatever the method."""

    regex = r"[0-9]{1,19}"

    def to_python(self, value: str) -> int:
        # Refused here: Postgres would answer such a number with an error, not with no rows.
        number = int(value)
        if not 1 <= number <= MAX_ID:
            raise NotFound
        return number


class NameConverter(BaseConverter):
    """``<name:...>`` in a route: the rest of the path, with any characters."""

    part_isolating = False  # so that a name may contain a slash
    regex = r"(?s:.+)"  # a newline, too
    weight = 200  # like Werkzeug's path converter: any more specific route is tried first


class ObjectIdConverter(BaseConverter):
    """``<objectid:...>`` in a route: text that is no ObjectId in lower case hex is 404."""

    regex = r"[0-9a-f]{24}"
