"""``Accept`` (RFC 9110): whoever takes no JSON is told so before anything is done."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

from flask import Response
from werkzeug.datastructures import MIMEAccept
from werkzeug.exceptions import NotAcceptable
from werkzeug.http import parse_accept_header

from app.api import http

OURS = ("application/json", "application/problem+json")


def requiring_json(view: Callable[..., Response]) -> Callable[..., Response]:
    """Return *view*, but 406 for a request whose Accept has neither of what we answer with."""

    @wraps(view)
    def answer(**values: Any) -> Response:
        accept = http.environ().get("HTTP_ACCEPT")
        if accept is not None and not _has_ours(accept):
            raise NotAcceptable(f"the answer is {OURS[0]}, or {OURS[1]}")
        return view(**values)

    return answer


@lru_cache(maxsize=100)  # clients say the same again and again
def _has_ours(accept: str) -> bool:
    asked = parse_accept_header(accept, MIMEAccept)
    # Parameters, a charset say, are no reason to refuse what is JSON.
    kinds = MIMEAccept([(kind.partition(";")[0].strip(), quality) for kind, quality in asked])
    return not kinds or any(kinds.quality(ours) > 0 for ours in OURS)
