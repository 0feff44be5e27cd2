"""The service's kind of Flask: a deadline around each handler, and ids in its routes."""

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


class Service(Flask):
    """Flask with a deadline around each handler, but for those of health: they have their own."""

    limits_requests = True  # for the worker, whose own deadline it does not need

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
            # The time in the worker's queue counts.
            left_s = max(self._request_timeout_s - spent_s.get("queued", 0.0), 0.0)
            with deadline.limit(left_s, spent_s):
                return self._begun(self.make_response(view(**values)))

        return limited

    def _begun(self, response: Response) -> Response:
        """Begin a streamed answer in the request's time, and give each further chunk its own."""
        if response.is_streamed:
            chunks = iter(response.iter_encoded())
            response.response = deadline.Stream(chunks, response.response, self._request_timeout_s)
        return response


class IdConverter(BaseConverter):
    """``<id:...>`` in a route: what no bigint could hold is not there, whatever the method."""

    regex = r"[0-9]{1,19}"

    def to_python(self, value: str) -> int:
        number = int(value)
        if not 1 <= number <= MAX_ID:
            raise NotFound
        return number


class NameConverter(BaseConverter):
    """``<name:...>`` in a route: all that is left of the path, whatever characters it has."""

    part_isolating = False
    regex = r"(?s:.+)"
    weight = 200


class ObjectIdConverter(BaseConverter):
    """``<objectid:...>`` in a route: what could be no id of MongoDB's is not there."""

    regex = r"[0-9a-f]{24}"
