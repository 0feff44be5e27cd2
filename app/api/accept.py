"""Negotiate the media type (``Accept``, RFC 9110) before a request has any effect."""

from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import Any

from flask import Response
from werkzeug.datastructures import MIMEAccept
from werkzeug.exceptions import NotAcceptable
from werkzeug.http import parse_accept_header

from app.api import http

JSON, PROBLEM, LINES = "application/json", "application/problem+json", "application/x-ndjson"
# Problem documents count: a client that accepts only those can be answered at least an error.
ONE, LIST = (JSON, PROBLEM), (JSON, LINES, PROBLEM)
MAX_REMEMBERED_ACCEPTS = 100  # parsed headers; clients send few different ones


def requiring_json(
    view: Callable[..., Response], *, is_list: bool = False
) -> Callable[..., Response]:
    """
    Return *view*, which then answers 406 if Accept allows none of its media types.

    :param view: returns the response.
    :param is_list: whether the view also answers with lines of JSON, bool. Default False.
    """
    ours = LIST if is_list else ONE

    @wraps(view)
    def answer(**values: Any) -> Response:
        if not allows(http.environ(), ours):
            raise NotAcceptable(f"the answer is {', '.join(ours[:-1])}, or {ours[-1]}")
        return view(**values)

    return answer


def allows(environ: Mapping[str, Any], kinds: tuple[str, ...] = ONE) -> bool:
    """
    Return whether the request's Accept allows one of *kinds*.

    :param environ: the WSGI environ.
    :param kinds: media types. Default: those of an answer with one item.
    """
    accept = environ.get("HTTP_ACCEPT")
    return accept is None or _has_any(accept, kinds)


def prefers_lines() -> bool:
    """
    Return whether the request prefers a list as lines of JSON (NDJSON) to a page.

    :raises NotAcceptable: it does, in an HTTP/1.0 request.
    """
    environ = http.environ()
    accept = environ.get("HTTP_ACCEPT")
    if accept is None or not _prefers_lines(accept):
        return False
    # HTTP/1.0 has no chunks: the end of the connection is the end of the answer, so a client could
    # not distinguish a complete list from one that an error cut off.
    if environ["SERVER_PROTOCOL"] == "HTTP/1.0":
        raise NotAcceptable(f"{LINES} needs HTTP/1.1: see proxy_http_version of nginx")
    return True


@lru_cache(MAX_REMEMBERED_ACCEPTS)
def _prefers_lines(accept: str) -> bool:
    return _kinds(accept).best_match((JSON, LINES)) == LINES


@lru_cache(MAX_REMEMBERED_ACCEPTS)
def _has_any(accept: str, ours: tuple[str, ...]) -> bool:
    kinds = _kinds(accept)
    return not kinds or any(kinds.quality(kind) > 0 for kind in ours)


def _kinds(accept: str) -> MIMEAccept:
    """Parse an Accept header, without parameters: a charset is no reason to refuse JSON."""
    asked = parse_accept_header(accept, MIMEAccept)
    return MIMEAccept([(kind.partition(";")[0].strip(), quality) for kind, quality in asked])
