"""
Make a response conditional in fewer steps than Werkzeug, where the client sends nothing but ETags.

It takes the place of Werkzeug's method, also for the responses that views make themselves.
"""

from functools import lru_cache
from time import time
from typing import Any

from werkzeug.datastructures import Headers
from werkzeug.http import http_date, parse_etags, unquote_etag
from werkzeug.wrappers import Response

by_werkzeug = Response.make_conditional
MAX_REMEMBERED_LENGTH = 100

http_date_at = lru_cache(1)(http_date)


def install() -> None:
    """Replace Werkzeug's method."""
    Response.make_conditional = make_conditional  # type: ignore[method-assign]


def make_conditional(
    self: Response,
    request_or_environ: Any,
    accept_ranges: bool | str = False,
    complete_length: int | None = None,
) -> Response:
    """Do what :meth:`werkzeug.wrappers.Response.make_conditional` does."""
    environ = getattr(request_or_environ, "environ", request_or_environ)
    if (
        accept_ranges is not False
        or type(environ) is not dict
        or environ["REQUEST_METHOD"] not in ("GET", "HEAD")
        or type(self.headers) is not Headers
        # With one of these Werkzeug compares more than ETags.
        or "HTTP_IF_MATCH" in environ
        or "HTTP_IF_MODIFIED_SINCE" in environ
    ):
        return by_werkzeug(self, request_or_environ, accept_ranges, complete_length)
    has_date = has_length = False
    etag: str | None = None
    for name, value in self.headers._list:
        lower = name.lower()
        if lower == "etag" and etag is None:
            etag = value
        elif lower == "date":
            has_date = True
        elif lower == "content-length":
            has_length = True
    if not has_length:
        return by_werkzeug(self, request_or_environ, accept_ranges, complete_length)
    if not has_date:
        self.headers._list.append(("Date", http_date_at(int(time()))))
    sent = environ.get("HTTP_IF_NONE_MATCH")
    if etag and sent:
        is_short = len(sent) + len(etag) <= MAX_REMEMBERED_LENGTH
        if (_matches if is_short else _matches.__wrapped__)(sent, etag):
            self.status_code = 304
    return self


@lru_cache(1_000)
def _matches(sent: str, etag: str) -> bool:
    """Return whether the ETag of a response is one of those in an If-None-Match header."""
    return bool(parse_etags(sent).contains_weak(unquote_etag(etag)[0]))
