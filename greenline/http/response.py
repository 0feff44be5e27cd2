"""
An application's response to bytes: gunicorn's rules, with less work and fewer writes.

1. What is sent is what gunicorn's own Response sends, byte for byte but for the date.
2. The head goes out with the first part of the body, in one write where that is short.
3. Between two parts of a body the others run.
"""

import logging
from collections.abc import Iterable, Mapping
from functools import lru_cache
from time import time
from typing import Any

from gunicorn import SERVER

from greenline.http.gunicorn_compat import (
    HEADER_VALUE_RE,
    STATUS_RE,
    TOKEN_RE,
    early_hints_callback,
    hop_headers,
    http_date,
    wsgi,
)
from greenline.hub.cooperate import yield_to_hub
from greenline.telemetry.access_log import route

log = logging.getLogger(__name__)


class NotRemembered(Exception):
    """gunicorn is to judge."""


JOINED_BYTES = 65_536
MAX_REMEMBERED_HEADERS = 1_000
MAX_REMEMBERED_LENGTH = 100


@lru_cache(MAX_REMEMBERED_HEADERS)
def code_of(status: Any) -> int:
    """Return the code of a status line, 0 when gunicorn is to judge it."""
    if not isinstance(status, str) or not STATUS_RE.fullmatch(status):
        return 0
    return int(status[:3])


def header_line(name: Any, value: Any) -> tuple[tuple[str, str], str, int | None]:
    """
    Return a header as it is kept, its line, and the length of the body where it says that.

    Raises:
        NotRemembered: it is not well formed, or not the application's to send.
    """
    if (
        not isinstance(name, str)
        or not isinstance(value, str)
        or not TOKEN_RE.fullmatch(name)
        or not HEADER_VALUE_RE.fullmatch(value)
        or name.lower() in hop_headers
    ):
        raise NotRemembered
    value = value.strip(" \t")
    length = int(value) if name.lower() == "content-length" else None
    return (name, value), f"{name}: {value}\r\n", length


short_header_line = lru_cache(MAX_REMEMBERED_HEADERS)(header_line)


@lru_cache(1)
def date_at(second: int) -> str:
    """Return the Date header's value."""
    return str(http_date(second))


class Response(wsgi.Response):  # type: ignore[misc]
    """gunicorn's Response, for a client that sends within limits."""

    version = SERVER
    status: str | None = None
    status_code: int | None = None
    chunked = must_close = headers_sent = upgrade = False
    response_length: int | None = None
    is_ending = False  # the worker's: what is answered from now on is the connection's last
    sent = 0
    route = "-"
    environ: Mapping[str, Any] = {}
    _lines: str | None = None
    _omits_body = _omits_body_warned = False

    def __init__(self, request: Any, client: Any, cfg: Any) -> None:
        self.req = request
        self.sock = client
        self.cfg = cfg
        self.headers: list[tuple[str, str]] = []

    def start_response(self, status: str, headers: Any, exc_info: Any = None) -> Any:
        """Take the application's status and headers; gunicorn judges what is unusual."""
        self.route = route(self.environ)
        code = code_of(status)
        if code >= 400 and self.sock.error is not None:
            # The application made this of an error that is the client's.
            raise self.sock.error
        if exc_info is not None:
            return self._replace(status, headers, exc_info)
        if self.status is not None or code < 200 or code in (204, 304):
            return super().start_response(status, headers)
        kept, lines = [], ""
        length = None
        try:
            for name, value in headers:
                known = len(value) <= MAX_REMEMBERED_LENGTH
                header, line, said = (short_header_line if known else header_line)(name, value)
                kept.append(header)
                lines += line
                if said is not None:
                    length = said
        except (NotRemembered, TypeError):
            return super().start_response(status, headers)
        self.status = status
        self.status_code = code
        self.headers = kept
        self._lines = lines
        self.response_length = length
        self._omits_body = self.req.method == "HEAD"
        if length is None:
            self.chunked = self.is_chunked()
        return self.write

    def _replace(self, status: str, headers: Any, exc_info: Any) -> Any:
        """Take what an error handler says instead: gunicorn would send both sets of headers."""
        if not self.headers_sent:
            self.headers, self._lines, self.response_length = [], None, None
        return super().start_response(status, headers, exc_info)

    def send_headers(self) -> None:
        if not self.headers_sent:
            self.sock.sendall(self._head())
            self.headers_sent = True

    def write(self, arg: Any) -> None:
        """Send a part of the body, never more than the Content-Length says."""
        if not isinstance(arg, bytes):
            self.send_headers()
            raise TypeError(f"{arg!r} is not a byte")
        if self._omits_body:
            super().write(arg)
            return
        length = self.response_length
        if length is not None and len(arg) > length - self.sent:
            arg = arg[: max(length - self.sent, 0)]
        self.sent += len(arg)
        if self.chunked and arg:
            arg = b"%X\r\n%b\r\n" % (len(arg), arg)
        if self.headers_sent:
            if arg:
                self.sock.sendall(arg)
            return
        head = self._head()
        self.headers_sent = True
        if len(arg) <= JOINED_BYTES:
            self.sock.sendall(head + arg)
        else:
            self.sock.sendall(head)
            self.sock.sendall(arg)

    def write_all(self, parts: Iterable[Any]) -> None:
        """Send what the application returned, and the end of it."""
        self._write_parts(parts)
        self.close()

    def close(self) -> None:
        """Send the end. After too few bytes the next answer would pass for the rest."""
        if self.chunked or not self.headers_sent:
            super().close()
        missing = 0 if self._omits_body else (self.response_length or 0) - self.sent
        if missing > 0:
            self.must_close = True
            log.warning("%s: %d bytes less than its Content-Length", self.req.uri, missing)

    def write_file(self, parts: Any) -> None:
        if self.sendfile(parts):
            self.sent = 0 if self._omits_body else self.response_length or self.sent
        else:
            self._write_parts(parts)

    def _write_parts(self, parts: Iterable[Any]) -> None:
        first = True
        for part in parts:
            if not first:
                yield_to_hub()
            first = False
            self.write(part)

    def early_hints(self, headers: Any) -> None:
        """Send 103 Early Hints, as gunicorn does."""
        early_hints_callback(self.req, self.sock, self)(headers)

    def _head(self) -> bytes:
        version = self.req.version
        if self.is_ending:
            self.must_close = True
        connection = "close" if self.should_close() else "keep-alive"
        if self.upgrade:
            connection = "upgrade"
        lines = self._lines
        if lines is None:
            lines = "".join([f"{name}: {value}\r\n" for name, value in self.headers])
        coding = "Transfer-Encoding: chunked\r\n" if self.chunked else ""
        return (
            f"HTTP/{version[0]}.{version[1]} {self.status}\r\nServer: {self.version}\r\n"
            f"Date: {date_at(int(time()))}\r\nConnection: {connection}\r\n{coding}{lines}\r\n"
        ).encode("latin-1")
