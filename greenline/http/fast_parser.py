"""
Bytes to a WSGI environ, for requests that are provably ordinary.

1. gunicorn's Python parser decides what a request means. Read here is only what it would read in
   the same way; everything else is unusual and goes to it, with all its bytes.
2. gunicorn_h1c splits the head. It forgives more than gunicorn does in what ends a line and what
   parts the words of the first one, so that is checked again; its own limits only narrow.
3. A head that has not come as a whole is unusual.
"""

import os
import re
from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from typing import Any

from greenline import settings
from greenline.http import proxy_headers
from greenline.http.gunicorn_compat import (
    DEFAULT_MAX_HEADERFIELD_SIZE,
    MAX_HEADERS,
    MAX_REQUEST_LINE,
    HeaderPolicy,
    Request,
    unquote_to_wsgi_str,
)

try:
    from gunicorn_h1c import parse_request_fast
except ImportError:  # every request takes the slow lane
    parse_request_fast = None
split_head: Callable[[bytes], Any] = parse_request_fast

CHUNKED = -1
UWSGI = "uwsgi"  # of gunicorn's protocols the one that is not HTTP
MAX_LENGTH_DIGITS = 18
# Of what comes again and again so many are remembered, and only short ones.
MAX_REMEMBERED_TARGETS = 1_000
MAX_NAME_BYTES = 64
MAX_TARGET_BYTES = 256
PER_REQUEST = (
    "REQUEST_METHOD", "RAW_URI", "PATH_INFO", "QUERY_STRING", "SERVER_PROTOCOL", "wsgi.input",
    "wsgi.early_hints",
)  # fmt: skip
METHODS = {
    name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
}
VERSIONS = ("HTTP/1.0", "HTTP/1.1")
VERSION_PAIRS = ((1, 0), (1, 1))
# RFC 9110, 7.2: uri-host [ ":" port ], of RFC 3986.
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|([A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*)(:[0-9]*)?")
LINE_BYTES = len("  HTTP/1.1")


class Fallback(Exception):
    """Not provably ordinary."""


def is_valid_host(host: str | None, minor: int) -> bool:
    """Return whether RFC 9112, 3.2, allows it in HTTP/1.*minor*; None is no Host header."""
    return not minor if host is None else HOST.fullmatch(host) is not None


@lru_cache(MAX_REMEMBERED_TARGETS)
def key_of(name: bytes) -> str:
    """
    Return the environ's key for a header.

    Raises:
        Fallback: the name, or what it asks for, is gunicorn's to judge.
    """
    upper = name.decode("latin-1").upper()
    if not 0 < len(name) <= MAX_NAME_BYTES or "_" in upper or upper == "EXPECT":
        raise Fallback
    key = upper.replace("-", "_")
    return key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"


def split_target(script_name: str, target: bytes) -> tuple[str, str, str]:
    """
    Return RAW_URI, PATH_INFO and QUERY_STRING of a request for *target*.

    Raises:
        Fallback: it is not a plain path, or not below *script_name*.
    """
    if not target.startswith(b"/") or b"#" in target or not target.isascii():
        raise Fallback
    uri = target.decode("ascii")
    path, _, query = uri.partition("?")
    if not path.startswith(script_name):
        raise Fallback
    path = path[len(script_name) :]
    return uri, str(unquote_to_wsgi_str(path)) if "%" in path else path, query


class Rules:
    """What gunicorn's settings say about every request of a worker."""

    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg
        fields, size = cfg.limit_request_fields, cfg.limit_request_field_size
        self.max_fields = fields if 0 < fields <= MAX_HEADERS else MAX_HEADERS
        self.max_field_bytes = size if size > 0 else DEFAULT_MAX_HEADERFIELD_SIZE
        self.max_line_bytes = cfg.limit_request_line
        if not 0 < self.max_line_bytes <= MAX_REQUEST_LINE:
            self.max_line_bytes = MAX_REQUEST_LINE
        self.scheme = "https" if cfg.is_ssl else "http"
        self.scheme_headers = tuple(
            (f"HTTP_{name.replace('-', '_')}", value)
            for name, value in cfg.secure_scheme_headers.items()
        )
        # What says something about the message itself; the other headers are only passed on.
        self.special = frozenset(
            {"CONTENT_LENGTH", "HTTP_TRANSFER_ENCODING", "HTTP_CONNECTION"}
            | {key for key, _ in self.scheme_headers}
        )
        self.requires_host = settings.requires_host() and cfg.protocol != UWSGI
        self.script_name = os.environ.get("SCRIPT_NAME", "")
        self._split = partial(split_target, self.script_name)
        self._split_short = lru_cache(MAX_REMEMBERED_TARGETS)(self._split)

    def split(self, target: bytes) -> tuple[str, str, str]:
        """Split a target, perhaps by heart."""
        return (self._split_short if len(target) <= MAX_TARGET_BYTES else self._split)(target)


class FastRequest(Request):  # type: ignore[misc]
    """A request that was provably ordinary; ``length`` is its body's, None without one."""

    length: int | None = None
    body: Any = None
    fragment = ""
    must_close = False
    req_number = 0
    proxy_protocol_info: Any = None

    def __init__(
        self, lane: "FastParser", head: Any, environ: dict[str, Any], head_bytes: int, minor: int
    ) -> None:
        self._lane = lane
        self._head = head
        self.environ = environ
        self.head_bytes = head_bytes
        self.method = environ["REQUEST_METHOD"]
        self.version = VERSION_PAIRS[minor]
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


class FastParser(HeaderPolicy):  # type: ignore[misc]
    """Reads the ordinary requests of one connection."""

    def __init__(self, rules: Rules, base: dict[str, Any], peer_addr: Any, server: Any) -> None:
        self.rules = rules
        self.cfg = rules.cfg  # for the policy
        self.peer_addr = peer_addr
        self.is_trusted = self._peer_is_trusted_proxy()
        self._valid_host = ""  # the last one: most connections have no other
        self.scheme_headers = rules.scheme_headers if self.is_trusted else ()
        self.base = {
            **base,
            "wsgi.multithread": True,
            "wsgi.url_scheme": rules.scheme,
            "SCRIPT_NAME": rules.script_name,
            proxy_headers.IS_TRUSTED: self.is_trusted,
            # Set for each request; here so that a copy has room for them.
            **dict.fromkeys(PER_REQUEST),
        }
        if isinstance(peer_addr, str):
            self.base["REMOTE_ADDR"] = peer_addr
        else:
            self.base["REMOTE_ADDR"] = peer_addr[0]
            self.base["REMOTE_PORT"] = str(peer_addr[1])
        self.server = server.split(":") if isinstance(server, str) else server
        self.is_unix = isinstance(server, str) and len(self.server) == 1
        if not self.is_unix:
            self.base["SERVER_NAME"] = self.server[0]
            self.base["SERVER_PORT"] = str(self.server[1])

    def read(self, data: bytes) -> "FastRequest":
        """
        Read the request that *data* begins with.

        Raises:
            Fallback: gunicorn's own parser is to read it.
        """
        try:
            head = split_head(data)
        except Exception:
            raise Fallback from None
        rules = self.rules
        method, target, minor = head.method, head.path, head.minor_version
        consumed, fields = head.consumed, head.headers
        line_bytes = len(method) + len(target) + LINE_BYTES
        if (
            method not in METHODS
            or minor > 1
            or not data.startswith(b"\r\n", line_bytes)
            or data.count(b"\r\n", 0, consumed) != len(fields) + 2
            or line_bytes > rules.max_line_bytes
            or consumed > rules.max_field_bytes
            or len(fields) > rules.max_fields
        ):
            raise Fallback
        environ = self.base.copy()
        uri, environ["PATH_INFO"], environ["QUERY_STRING"] = rules.split(target)
        environ["RAW_URI"] = uri
        environ["REQUEST_METHOD"] = METHODS[method]
        environ["SERVER_PROTOCOL"] = VERSIONS[minor]
        headers = {key_of(name): value.decode("latin-1") for name, value in fields}
        if len(headers) != len(fields):
            headers = self._joined(fields)
        host = headers.get("HTTP_HOST")
        if host != self._valid_host and rules.requires_host:
            if not is_valid_host(host, minor):
                raise Fallback  # gunicorn's parser answers 400
            self._valid_host = host or ""
        environ.update(headers)
        request = FastRequest(self, head, environ, consumed, minor)
        if not rules.special.isdisjoint(headers):
            request.length = _length(headers, minor)
            request.obey(headers.get("HTTP_CONNECTION"))
            self._set_scheme(environ)
        if self.is_unix:
            self._set_server(environ)
        return request

    def _joined(self, fields: Any) -> dict[str, str]:
        """Join the values of headers that came more than once."""
        values: dict[str, list[str]] = {}
        for name, value in fields:
            values.setdefault(key_of(name), []).append(value.decode("latin-1"))
        if any(len(values.get(key, ())) > 1 for key in self.rules.special):
            raise Fallback
        return {key: ",".join(several) for key, several in values.items()}

    def _set_scheme(self, environ: dict[str, Any]) -> None:
        """The headers of a trusted proxy say which scheme it was asked by."""
        said = None
        for key, secure in self.scheme_headers:
            value = environ.get(key)
            if value is None:
                continue
            scheme = "https" if value == secure else "http"
            if said not in (None, scheme):
                raise Fallback
            said = environ["wsgi.url_scheme"] = scheme

    def _set_server(self, environ: dict[str, Any]) -> None:
        """A unix socket has no name and port; the client may have named some."""
        host = environ.get("HTTP_HOST")
        port: Any = ""
        server = self.server
        if host:
            server = host.split(":")
            port = {"http": 80, "https": 443}.get(environ["wsgi.url_scheme"], "")
        environ["SERVER_NAME"] = server[0]
        environ["SERVER_PORT"] = str(server[1] if len(server) > 1 else port)


def _length(headers: dict[str, str], minor: int) -> int | None:
    """Return the body's length, CHUNKED, or None where there is no body."""
    coding = headers.get("HTTP_TRANSFER_ENCODING")
    digits = headers.get("CONTENT_LENGTH")
    if coding is not None:
        if digits is not None or minor == 0 or coding.lower() != "chunked":
            raise Fallback
        return CHUNKED
    if digits is None:
        return None
    if len(digits) > MAX_LENGTH_DIGITS or not (digits.isascii() and digits.isdigit()):
        raise Fallback
    return int(digits)
