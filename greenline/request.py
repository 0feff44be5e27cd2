"""
The two kinds of request, as gunicorn's parser, hooks and logs know one.

A request of the fast lane has everything that gunicorn's has; what only hooks and logs ask for is
made when they do.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any

from gunicorn.http.errors import InvalidHeader
from gunicorn.http.message import Request
from gunicorn.http.parser import RequestParser

if TYPE_CHECKING:
    from greenline.wire import Lane

VERSIONS = ((1, 0), (1, 1))


class InvalidHost(InvalidHeader):  # type: ignore[misc]
    """A request of HTTP/1.1 has no Host header, or one that names no host; it is a 400."""

    def __str__(self) -> str:
        return "a request needs one valid Host header (RFC 9112, section 3.2)"


class PythonRequest(Request):  # type: ignore[misc]
    """A request that gunicorn's Python parser reads, whatever ``http_parser`` says."""

    _parse_fast = Request._parse_python


class PythonParser(RequestParser):  # type: ignore[misc]
    mesg_class = PythonRequest


class FastRequest(Request):  # type: ignore[misc]
    """A request that was provably ordinary; ``length`` is its body's, None without one."""

    length: int | None = None
    body: Any = None
    fragment = ""
    must_close = False
    req_number = 0
    proxy_protocol_info: Any = None

    def __init__(
        self, lane: "Lane", head: Any, environ: dict[str, Any], head_bytes: int, minor: int
    ) -> None:
        self._lane = lane
        self._head = head
        self.environ = environ
        self.head_bytes = head_bytes
        self.method = environ["REQUEST_METHOD"]
        self.version = VERSIONS[minor]
        self._closes = minor == 0

    def obey(self, connection: str | None) -> None:
        """Do as the Connection header says."""
        said = (connection or "").lower().strip(" \t")
        if said == "close":
            self._closes = True
        elif said == "keep-alive":
            self._closes = False

    def should_close(self) -> bool:
        return self._closes or self.must_close

    @cached_property
    def headers(self) -> list[tuple[str, str]]:
        return [
            (name.decode("latin-1").upper(), value.decode("latin-1"))
            for name, value in self._head.headers
        ]

    @cached_property
    def trailers(self) -> list[tuple[str, str]]:
        return []

    @cached_property
    def uri(self) -> str:
        uri: str = self._head.path.decode("ascii")
        return uri

    @cached_property
    def path(self) -> str:
        return self.uri.partition("?")[0]

    @cached_property
    def query(self) -> str:
        return self.uri.partition("?")[2]

    @cached_property
    def scheme(self) -> Any:
        return self.environ["wsgi.url_scheme"]

    @property
    def cfg(self) -> Any:
        return self._lane.rules.cfg

    @property
    def peer_addr(self) -> Any:
        return self._lane.peer_addr

    remote_addr = peer_addr

    @property
    def limit_request_fields(self) -> Any:
        return self._lane.rules.max_fields

    @property
    def limit_request_field_size(self) -> Any:
        return self._lane.rules.max_field_bytes

    @property
    def max_buffer_headers(self) -> Any:
        return self.limit_request_fields * (self.limit_request_field_size + 2) + 4
