"""
Parse the bytes of common requests into a WSGI environ.

gunicorn's Python parser is the reference. FastParser reads a request only if that parser would
read the same from it; any other request, and an incomplete head, raises Fallback and is left to
gunicorn with all its bytes. gunicorn_h1c, a C extension, splits the head.
"""

import os
import re
from functools import cached_property, lru_cache, partial
from typing import Any

from greenline import settings
from greenline.http import proxy_headers
from greenline.http.gunicorn_compat import (
    DEFAULT_MAX_HEADERFIELD_SIZE,
    MAX_HEADERS,
    MAX_REQUEST_LINE,
    Request,
    is_trusted_proxy,
    unquote_to_wsgi_str,
)
from greenline.http.h1c_compat import split_head

CHUNKED = -1
UWSGI = "uwsgi"  # gunicorn's only protocol that is not HTTP
MAX_LENGTH_DIGITS = 18  # fits into 64 bits
# Bounds of the caches: a client must not fill the memory with targets and names that differ.
MAX_REMEMBERED_TARGETS = 1_000
MAX_NAME_BYTES = 64
MAX_TARGET_BYTES = 256
PER_REQUEST = (
    "REQUEST_METHOD", "RAW_URI", "PATH_INFO", "QUERY_STRING", "SERVER_PROTOCOL", "wsgi.input",
    "wsgi.early_hints", "gunicorn.socket",
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
    """gunicorn's parser must read this request."""


def is_valid_host(host: str | None, minor: int) -> bool:
    """
    Return whether RFC 9112, section 3.2, allows this Host header.

    :param host: its value, None without one.
    :param minor: 0 for HTTP/1.0, which may omit it, else 1.
    """
    return not minor if host is None else HOST.fullmatch(host) is not None


@lru_cache(MAX_REMEMBERED_TARGETS)
def key_of(name: bytes) -> str:
    """
    Return the environ's key for a header.

    :raises Fallback: gunicorn must decide about this header.
    """
    upper = name.decode("latin-1").upper()
    # X_Y and X-Y have the same key, so `header_map` decides. Expect needs an answer of its own.
    if not 0 < len(name) <= MAX_NAME_BYTES or "_" in upper or upper == "EXPECT":
        raise Fallback
    key = upper.replace("-", "_")
    return key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"


def split_target(script_name: str, target: bytes) -> tuple[str, str, str, str]:
    """
    Return RAW_URI, its path, PATH_INFO and QUERY_STRING of a request for *target*.

    :param script_name: the path that the application is mounted at.
    :param target: of the request line.
    :raises Fallback: it is not a plain path, or not below *script_name*.
    """
    # The absolute form, `*` and fragments are gunicorn's to split.
    if not target.startswith(b"/") or b"#" in target or not target.isascii():
        raise Fallback
    uri = target.decode("ascii")
    path, _, query = uri.partition("?")
    if not path.startswith(script_name):
        raise Fallback
    info = path[len(script_name) :]
    return uri, path, str(unquote_to_wsgi_str(info)) if "%" in info else info, query


class Rules:
    """
    gunicorn's settings for the requests of a worker, in the form that FastParser needs.

    :param cfg: gunicorn's settings.
    """

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
        # Headers about the message itself; the others are only passed on.
        self.special = frozenset(
            {"CONTENT_LENGTH", "HTTP_TRANSFER_ENCODING", "HTTP_CONNECTION"}
            | {key for key, _ in self.scheme_headers}
        )
        self.is_uwsgi = getattr(cfg, "protocol", None) == UWSGI  # gunicorn 23 has no such setting
        self.requires_host = settings.REQUIRE_HOST.read() and not self.is_uwsgi
        self.script_name = os.environ.get("SCRIPT_NAME", "")
        self._split = partial(split_target, self.script_name)
        self._split_short = lru_cache(MAX_REMEMBERED_TARGETS)(self._split)

    def split(self, target: bytes) -> tuple[str, str, str, str]:
        """Return the parts of a target, from a cache if it is short."""
        return (self._split_short if len(target) <= MAX_TARGET_BYTES else self._split)(target)


class FastRequest(Request):  # type: ignore[misc]
    """
    A request that FastParser has read.

    It has the attributes of gunicorn's Request. Those that only hooks and logs read are computed
    on demand.

    :param parser: the one that has read it.
    :param head: the head as gunicorn_h1c has split it.
    :param environ: for the application.
    :param uri: the target of the request line.
    :param path: its path, as the client has encoded it.
    :param head_bytes: length of the head, int.
    :param minor: 0 for HTTP/1.0, 1 for HTTP/1.1.
    """

    length: int | None = None  # of the body; CHUNKED; None without one
    body: Any = None
    fragment = ""
    must_close = False
    req_number = 0
    proxy_protocol_info: Any = None

    def __init__(
        self, parser: "FastParser", head: Any, environ: dict[str, Any], uri: str, path: str,
        head_bytes: int, minor: int,
    ) -> None:  # fmt: skip
        self._parser = parser
        self._head = head
        self.environ = environ
        self.head_bytes = head_bytes
        self.method = environ["REQUEST_METHOD"]
        # Not on demand, as the others: functools.cached_property makes a dict of the attributes,
        # from which all of them are read more slowly then. Many requests need these two.
        self.uri, self.path = uri, path
        self.version = VERSION_PAIRS[minor]
        self._closes = minor == 0  # HTTP/1.0 closes by default

    def obey(self, connection: str | None) -> None:
        """Set whether to close from the Connection header."""
        # Only these two values, as in gunicorn: a list such as "close, TE" changes nothing.
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
    def query(self) -> str:
        return self.uri.partition("?")[2]

    @cached_property
    def scheme(self) -> Any:
        return self.environ["wsgi.url_scheme"]

    @property
    def cfg(self) -> Any:
        return self._parser.rules.cfg

    @property
    def peer_addr(self) -> Any:
        return self._parser.peer_addr

    remote_addr = peer_addr

    @property
    def limit_request_fields(self) -> Any:
        return self._parser.rules.max_fields

    @property
    def limit_request_field_size(self) -> Any:
        return self._parser.rules.max_field_bytes

    @property
    def max_buffer_headers(self) -> Any:
        return self.limit_request_fields * (self.limit_request_field_size + 2) + 4


class FastParser:
    """
    Parse the common requests of one connection.

    :param rules: gunicorn's settings of the worker.
    :param base: the part of the environ that all requests share.
    :param peer_addr: the client's address.
    :param server: the address of the listener, a tuple or the path of a unix socket.
    """

    def __init__(self, rules: Rules, base: dict[str, Any], peer_addr: Any, server: Any) -> None:
        self.rules = rules
        self.peer_addr = peer_addr
        self.is_trusted = is_trusted_proxy(rules.cfg, peer_addr)
        self._valid_host = ""  # the last valid Host: most connections send only one
        # The scheme headers of an untrusted peer are ordinary headers.
        self.scheme_headers = rules.scheme_headers if self.is_trusted else ()
        self.base = {
            **base,
            "wsgi.multithread": True,
            "wsgi.url_scheme": rules.scheme,
            "SCRIPT_NAME": rules.script_name,
            proxy_headers.IS_TRUSTED: self.is_trusted,
            # Set for each request; reserved here so that the copy's table never grows.
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
        Return the request at the beginning of *data*.

        :raises Fallback: gunicorn's parser must read it.
        """
        try:
            head = split_head(data)
        except Exception:  # malformed or incomplete: gunicorn's parser waits for the rest
            raise Fallback from None
        rules = self.rules
        method, target, minor = head.method, head.path, head.minor_version
        consumed, fields = head.consumed, head.headers
        # gunicorn_h1c accepts lines that end with a bare LF, and several spaces between the words
        # of the request line. gunicorn does not, so the position of the first CRLF and the number
        # of all are checked. A head that exceeds a limit is gunicorn's to refuse.
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
        uri, path, environ["PATH_INFO"], environ["QUERY_STRING"] = rules.split(target)
        environ["RAW_URI"] = uri
        environ["REQUEST_METHOD"] = METHODS[method]
        environ["SERVER_PROTOCOL"] = VERSIONS[minor]
        headers = {key_of(name): value.decode("latin-1") for name, value in fields}
        if len(headers) != len(fields):  # a name came more than once
            headers = self._joined(fields)
        host = headers.get("HTTP_HOST")
        if host != self._valid_host and rules.requires_host:
            if not is_valid_host(host, minor):
                raise Fallback  # gunicorn's parser answers 400
            self._valid_host = host or ""
        environ.update(headers)
        request = FastRequest(self, head, environ, uri, path, consumed, minor)
        if not rules.special.isdisjoint(headers):
            request.length = _length(headers, minor)
            request.obey(headers.get("HTTP_CONNECTION"))
            self._set_scheme(environ)
        if self.is_unix:
            self._set_server(environ)
        return request

    def _joined(self, fields: Any) -> dict[str, str]:
        """Return the headers, with the values of a repeated one joined."""
        values: dict[str, list[str]] = {}
        for name, value in fields:
            values.setdefault(key_of(name), []).append(value.decode("latin-1"))
        # A repeated Content-Length or Transfer-Encoding may be request smuggling.
        if any(len(values.get(key, ())) > 1 for key in self.rules.special):
            raise Fallback
        return {key: ",".join(several) for key, several in values.items()}

    def _set_scheme(self, environ: dict[str, Any]) -> None:
        """Set the scheme of the client's request to a trusted proxy, from that one's headers."""
        said = None
        for key, secure in self.scheme_headers:
            value = environ.get(key)
            if value is None:
                continue
            scheme = "https" if value == secure else "http"
            if said not in (None, scheme):  # gunicorn refuses headers that contradict each other
                raise Fallback
            said = environ["wsgi.url_scheme"] = scheme

    def _set_server(self, environ: dict[str, Any]) -> None:
        """Take the server's name and port from Host: a unix socket has none."""
        host = environ.get("HTTP_HOST")
        port: Any = ""
        server = self.server
        if host:
            server = host.split(":")
            port = {"http": 80, "https": 443}.get(environ["wsgi.url_scheme"], "")
        environ["SERVER_NAME"] = server[0]
        environ["SERVER_PORT"] = str(server[1] if len(server) > 1 else port)


def _length(headers: dict[str, str], minor: int) -> int | None:
    """Return the body's length, CHUNKED, or None without a body."""
    coding = headers.get("HTTP_TRANSFER_ENCODING")
    digits = headers.get("CONTENT_LENGTH")
    if coding is not None:
        # With a Content-Length, or in HTTP/1.0, it may be request smuggling (RFC 9112, 6.1).
        if digits is not None or minor == 0 or coding.lower() != "chunked":
            raise Fallback
        return CHUNKED
    if digits is None:
        return None
    # int() accepts signs, spaces, underscores and digits of other scripts; HTTP does not.
    if len(digits) > MAX_LENGTH_DIGITS or not (digits.isascii() and digits.isdigit()):
        raise Fallback
    return int(digits)
