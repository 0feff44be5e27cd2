"""
The two kinds of request, as gunicorn's parser, hooks and logs know one.

A request of the fast lane has everything that gunicorn's has; what only hooks and logs ask for is
made when they do.
"""

from greenline.http.gunicorn_compat import InvalidHeader, Request, RequestParser


class InvalidHost(InvalidHeader):  # type: ignore[misc]
    """A request of HTTP/1.1 has no Host header, or one that names no host; it is a 400."""

    def __str__(self) -> str:
        return "a request needs one valid Host header (RFC 9112, section 3.2)"


class PythonRequest(Request):  # type: ignore[misc]
    """A request that gunicorn's Python parser reads, whatever ``http_parser`` says."""

    _parse_fast = Request._parse_python


class PythonParser(RequestParser):  # type: ignore[misc]
    mesg_class = PythonRequest
