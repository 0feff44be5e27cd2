"""
Versions as entity tags (RFC 9110): ``ETag``, ``If-Match`` and ``If-None-Match``.

Behind a name there may be another item the next time: its tags have the item's id before the
version, and *named* is that id in what reads them.

A weak tag is as good as a strong one, in If-Match, too: a proxy that compresses an answer makes its
tag weak, and a version is of the item and not of the bytes.
"""

import re
from typing import Any

from flask import Response, request

from app.api import http
from app.errors import InvalidRequest
from app.store.ports import Stored

VERSION = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


def expected(named: Any = None) -> frozenset[int] | None:
    """
    Return the versions that the request's conditions allow; None is any.

    Raises:
        InvalidRequest: If-None-Match has tags, which only a GET is asked with.
    """
    if "HTTP_IF_NONE_MATCH" in request.environ:
        if request.if_none_match.star_tag:
            return frozenset()
        raise InvalidRequest("If-None-Match with a tag is for GET; here it can only be *")
    if "HTTP_IF_MATCH" not in request.environ:
        return None
    tags = request.if_match
    if tags.star_tag:
        return None
    before = _before(named)
    # Werkzeug has None for an empty tag.
    found = [
        tag.removeprefix(before) for tag in tags.as_set(True) if tag and tag.startswith(before)
    ]
    return frozenset(int(version) for version in found if VERSION.fullmatch(version))


def refuse_conditions() -> None:
    """
    Refuse the conditions of one item where there are many, or none yet.

    Raises:
        InvalidRequest: there are some.
    """
    for name in ("If-Match", "If-None-Match"):
        if f"HTTP_{name.upper().replace('-', '_')}" in http.environ():
            raise InvalidRequest(f"{name} is for one item; here it would mean nothing")


def answer(stored: Stored, status: int = 200, named: Any = None) -> Response:
    """Answer with *stored* and its version."""
    response = http.json(stored.json, status)
    response.headers["ETag"] = f'"{_before(named)}{stored.version}"'
    return response


def answer_if_new(stored: Stored, named: Any = None) -> Response:
    """Answer with *stored*, or 304 when the client has this version."""
    tag = f"{_before(named)}{stored.version}"
    if "HTTP_IF_NONE_MATCH" in http.environ() and request.if_none_match.contains_weak(tag):
        response = Response(status=304)
        del response.headers["Content-Type"]
        response.headers["ETag"] = f'"{tag}"'
        return response
    return answer(stored, named=named)


def _before(named: Any) -> str:
    return "" if named is None else f"{named}-"
