"""
Versions as entity tags (RFC 9110): ``ETag``, ``If-Match`` and ``If-None-Match``.

An item that is addressed by a name has its id in the tag (*named*), because the name may belong to
another item later.
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
    Return the versions that the request's conditions allow; None allows any.

    :param named: id of the item if it is addressed by a name. Default None.
    :raises InvalidRequest: If-None-Match has tags, which have a meaning only for GET.
    """
    environ = http.environ()
    if "HTTP_IF_NONE_MATCH" in environ:
        if request.if_none_match.star_tag:
            # The request requires that there is no item: no version is allowed.
            return frozenset()
        raise InvalidRequest("If-None-Match with a tag is for GET; here it can only be *")
    if "HTTP_IF_MATCH" not in environ:
        return None
    tags = request.if_match
    if tags.star_tag:
        return None
    before = _before(named)
    # Weak tags count, against RFC 9110: a proxy that compresses an answer makes its tag weak, and
    # a version identifies the item, not its bytes. Werkzeug has None for an empty tag.
    found = [
        tag.removeprefix(before) for tag in tags.as_set(True) if tag and tag.startswith(before)
    ]
    return frozenset(int(version) for version in found if VERSION.fullmatch(version))


def refuse_conditions() -> None:
    """
    Refuse conditions in a request about several items: ignored, they would give a false safety.

    :raises InvalidRequest: the request has some.
    """
    for name in ("If-Match", "If-None-Match"):
        if f"HTTP_{name.upper().replace('-', '_')}" in http.environ():
            raise InvalidRequest(f"{name} is for one item; here it would mean nothing")


def answer(stored: Stored, status: int = 200, named: Any = None) -> Response:
    """
    Answer with an item and its ETag.

    :param stored: the item.
    :param status: HTTP status, int. Default 200.
    :param named: id of the item if it is addressed by a name. Default None.
    """
    return http.json(stored.json, status, [etag(stored, named)])


def etag(stored: Stored, named: Any = None) -> tuple[str, str]:
    """Return the header with the ETag of an item, as :func:`answer` sends it."""
    return "ETag", f'"{_tag(stored, named)}"'


def answer_if_new(stored: Stored, named: Any = None) -> Response:
    """
    Answer with an item, or 304 if the client has this version.

    :param stored: the item.
    :param named: id of the item if it is addressed by a name. Default None.
    """
    if "HTTP_IF_NONE_MATCH" in http.environ():
        tag = _tag(stored, named)
        if request.if_none_match.contains_weak(tag):
            response = Response(status=304)
            del response.headers["Content-Type"]
            response.headers["ETag"] = f'"{tag}"'
            return response
    return answer(stored, named=named)


def _tag(stored: Stored, named: Any) -> str:
    return f"{_before(named)}{stored.version}"


def _before(named: Any) -> str:
    return "" if named is None else f"{named}-"
