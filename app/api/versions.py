"""Versions as entity tags (RFC 9110): ``ETag``, ``If-Match`` and ``If-None-Match``."""

import re

from flask import Response, request

from app.api import http
from app.store.ports import Stored

VERSION = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


def expected() -> frozenset[int] | None:
    """Return the versions that If-Match allows; None is any."""
    if "HTTP_IF_MATCH" not in request.environ:
        return None
    tags = request.if_match
    if tags.star_tag:
        return None
    # Werkzeug has None for an empty tag.
    return frozenset(int(tag) for tag in tags.as_set() if tag and VERSION.fullmatch(tag))


def answer(stored: Stored, status: int = 200) -> Response:
    """Answer with *stored* and its version."""
    response = http.json(stored.json, status)
    response.headers["ETag"] = f'"{stored.version}"'
    return response


def answer_if_new(stored: Stored) -> Response:
    """Answer with *stored*, or 304 when the client has this version."""
    environ = http.environ()
    if "HTTP_IF_NONE_MATCH" in environ and request.if_none_match.contains_weak(str(stored.version)):
        response = Response(status=304)
        del response.headers["Content-Type"]
        response.headers["ETag"] = f'"{stored.version}"'
        return response
    return answer(stored)
