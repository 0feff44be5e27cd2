"""Give each request an id: the caller's when it is well formed, else one of ours."""

import re
from uuid import uuid4

from flask import Flask, Response, g, request

HEADER = "X-Request-Id"
WELL_FORMED = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def register(app: Flask) -> None:
    """Set ``g.request_id``, and the header of every answer, which the access log shows."""
    app.before_request(_take)
    app.after_request(_tell)


def _take() -> None:
    given = request.headers.get(HEADER, "")
    g.request_id = given if WELL_FORMED.fullmatch(given) else uuid4().hex


def _tell(response: Response) -> Response:
    response.headers[HEADER] = g.request_id
    return response
