"""The requests that gunicorn's Python parser reads: those that ``FastParser`` does not."""

from greenline.http.gunicorn_compat import InvalidHeader, RequestParser, StrictRequest, parse_python


class InvalidHost(InvalidHeader):  # type: ignore[misc]
    """An HTTP/1.1 request without a valid Host header, which is answered with a 400."""

    def __str__(self) -> str:
        return "a request needs one valid Host header (RFC 9112, section 3.2)"


class PythonRequest(StrictRequest):  # type: ignore[misc]
    """A request that gunicorn's Python parser reads, for any value of ``http_parser``."""

    # The Python parser is the reference; FastParser has tried the C parser already.
    _parse_fast = parse_python


class PythonParser(RequestParser):  # type: ignore[misc]
    mesg_class = PythonRequest
