"""``Accept`` (RFC 9110): refuse what is not served, before anything is done; choose for a list."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

from flask import Response
from werkzeug.datastructures import MIMEAccept
from werkzeug.exceptions import NotAcceptable
from werkzeug.http import parse_accept_header

from app.api import http

JSON, PROBLEM, LINES = "application/json", "application/problem+json", "application/x-ndjson"
MAX_REMEMBERED_ACCEPTS = 100  # clients say the same again and again


def requiring_json(
    view: Callable[..., Response], *, is_list: bool = False
) -> Callable[..., Response]:
    """
    Return *view*, but 406 for a request whose Accept has nothing of what we answer with.

    :param is_list: whether it answers with lines of JSON as well, bool, default False.
    """
    ours = (JSON, LINES, PROBLEM) if is_list else (JSON, PROBLEM)

    @wraps(view)
    def answer(**values: Any) -> Response:
        accept = http.environ().get("HTTP_ACCEPT")
        if accept is not None and not _has_any(accept, ours):
            raise NotAcceptable(f"the answer is {', '.join(ours[:-1])}, or {ours[-1]}")
        return view(**values)

    return answer


def prefers_lines() -> bool:
    """
    Return whether the request asks for a list as lines of JSON (NDJSON) rather than as a page.

    :raises NotAcceptable: it does, over HTTP/1.0.
    """
    environ = http.environ()
    accept = environ.get("HTTP_ACCEPT")
    if accept is None or not _prefers_lines(accept):
        return False
    # There the end of the connection is the end of the answer: a cut would look like the end.
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
    """Return what *accept* has, without parameters: a charset is no reason to refuse JSON."""
    asked = parse_accept_header(accept, MIMEAccept)
    return MIMEAccept([(kind.partition(";")[0].strip(), quality) for kind, quality in asked])
