"""
Send an application's response as gunicorn's Response does, with less work and fewer writes.

The bytes sent are the same, except for the date.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from io import BufferedIOBase, BufferedRandom, BufferedReader
from math import inf
from time import monotonic, time
from typing import Any

from gunicorn import SERVER

from greenline.http.gunicorn_compat import (
    HEADER_VALUE_RE,
    STATUS_RE,
    TOKEN_RE,
    StrictResponse,
    early_hints_callback,
    hop_headers,
    http_date,
)
from greenline.hub.cooperate import yield_to_hub
from greenline.telemetry.access_log import route

log = logging.getLogger(__name__)


class NotRemembered(Exception):
    """gunicorn must process this header."""


SLICE_S = 0.0002  # for parts that come without a wait: then others have their turn, or longer:
MAX_SLICE_S = 0.005  # as long as the interpreter lets a thread run, and at most
SHARES = 16  # of what all others had meanwhile, of which one is its own, as threads share
JOINED_BYTES = 65_536  # a longer body is not copied behind its head
MAX_REMEMBERED_HEADERS = 1_000
MAX_REMEMBERED_LENGTH = 100


def has_the_bytes_of_its_descriptor(file: Any) -> bool:
    """
    Return whether sendfile() sends what reading the file gives.

    :param file: what the application passed to ``wsgi.file_wrapper``.
    """
    # The descriptor of a GzipFile, BZ2File or LZMAFile is that of the compressed file. Wrappers of
    # files, such as Django's File, have the wrapped one as their attribute.
    inner = getattr(file, "file", file)
    return isinstance(inner, BufferedReader | BufferedRandom) or not isinstance(
        inner, BufferedIOBase
    )


@lru_cache(MAX_REMEMBERED_HEADERS)
def code_of(status: Any) -> int:
    """Return the code of a status line, 0 if gunicorn must process it."""
    if not isinstance(status, str) or not STATUS_RE.fullmatch(status):
        return 0
    return int(status[:3])


@lru_cache(MAX_REMEMBERED_HEADERS)
def kind_of(name: Any) -> str:
    """
    Return "length" for Content-Length, "dropped" for a hop-by-hop header, such as Date, and "".

    :param name: the header's name, from the application.
    :raises NotRemembered: it is malformed, or gunicorn must process it.
    """
    if not isinstance(name, str) or not TOKEN_RE.fullmatch(name):
        raise NotRemembered
    lower = name.lower()
    if lower in ("connection", "upgrade"):
        raise NotRemembered
    return "length" if lower == "content-length" else "dropped" if lower in hop_headers else ""


def header_line(name: Any, value: Any) -> tuple[tuple[str, str] | None, str, int | None]:
    """
    Return a header, its line, and the value of a Content-Length.

    :param name: the header's name, from the application.
    :param value: its value.
    :returns: name and stripped value, the line, and the length, None for another header. A header
        that is not sent is None, and its line empty.
    :raises NotRemembered: it is malformed, or gunicorn must process it.
    """
    kind = kind_of(name)
    if not isinstance(value, str) or not HEADER_VALUE_RE.fullmatch(value):
        raise NotRemembered
    if kind == "dropped":
        return None, "", None
    value = value.strip(" \t")
    return (name, value), f"{name}: {value}\r\n", int(value) if kind == "length" else None


short_header_line = lru_cache(MAX_REMEMBERED_HEADERS)(header_line)


@lru_cache(1)
def date_at(second: int) -> str:
    """Return the Date header's value; formatted once in a second."""
    return str(http_date(second))


_written_s = 0.0  # how long all bodies together have run between two yields


def write_parts(write: Callable[[Any], object], parts: Iterable[Any]) -> None:
    """Send the parts of a body by *write*; let others run where they come without a wait."""
    global _written_s
    began_s, until_s = 0.0, inf
    for part in parts:
        if until_s == inf:
            until_s = 0.0
        elif (now_s := monotonic()) >= until_s:
            if began_s:
                _written_s += min(now_s - began_s, MAX_SLICE_S)  # it may have waited
            written_s = _written_s
            yield_to_hub()  # a body of many small parts must not block the other requests
            # Beside pages that compute, a round takes as long as their slices: with a short one of
            # its own a body would take a hundred rounds. Not what other bodies had meanwhile: each
            # would make the next one's longer.
            began_s = monotonic()
            others_s = began_s - now_s - (_written_s - written_s)
            until_s = began_s + min(max(others_s / SHARES, SLICE_S), MAX_SLICE_S)
        write(part)


class Response(StrictResponse):  # type: ignore[misc]
    """
    gunicorn's Response for a :class:`~greenline.http.connection.ClientConnection`.

    :param request: a FastRequest, or gunicorn's request.
    :param connection: the one that it is sent over.
    :param cfg: gunicorn's settings.
    """

    # Defaults of the class in place of gunicorn's assignments for each response.
    version = SERVER
    status: str | None = None
    status_code: int | None = None
    chunked = must_close = headers_sent = upgrade = False
    response_length: int | None = None
    is_counted = False
    # Set on the class: counts a response by its environ, its route and its status.
    count: Callable[[Mapping[str, Any], str, int], None] = staticmethod(lambda *_: None)
    is_ending = False  # set on the class: the worker stops, so each response closes its connection
    sent = 0
    sent_s = 0.0  # when its head was made, in monotonic seconds
    route = "-"
    environ: Mapping[str, Any] = {}
    _lines: str | None = None
    _omits_body = _omits_body_warned = False

    def __init__(self, request: Any, connection: Any, cfg: Any) -> None:
        self.req = request
        self.sock = connection
        self.cfg = cfg
        self.headers: list[tuple[str, str]] = []

    def start_response(self, status: str, headers: Any, exc_info: Any = None) -> Any:
        """
        Take the application's status and headers, as :pep:`3333` says.

        gunicorn's method processes all but the common ones.
        """
        self.route = route(self.environ)  # now: Flask forgets the request at its end
        code = code_of(status)
        if code >= 400 and self.sock.error is not None:
            # The application has turned the client's error into a response, such as a 500 for a
            # body that was too large. ErrorResponses answers the original error.
            raise self.sock.error
        if exc_info is not None:
            return self._replace(status, headers, exc_info)
        # These statuses have rules of their own for Content-Length.
        if self.status is not None or code < 200 or code == 204:
            return super().start_response(status, headers)
        kept: list[tuple[str, str]] = []
        lines = ""
        length = None
        try:
            for name, value in headers:
                # A cached header costs no validation. Long values are rarely repeated.
                known = len(value) <= MAX_REMEMBERED_LENGTH
                header, line, declared = (short_header_line if known else header_line)(name, value)
                if header is not None:
                    kept.append(header)
                    lines += line
                if declared is not None:
                    length = declared
        except (NotRemembered, TypeError):
            # Nothing was changed yet: gunicorn begins from the first header, or raises.
            return super().start_response(status, headers)
        self.status = status
        self.status_code = code
        self.headers = kept
        self._lines = lines
        self.response_length = length
        self._omits_body = code == 304 or self.req.method == "HEAD"
        if length is None:
            self.chunked = self.is_chunked()
        return self.write

    def _replace(self, status: str, headers: Any, exc_info: Any) -> Any:
        """Take the status and headers of an error handler in place of the first ones."""
        # gunicorn appends to the headers: both sets would be sent.
        if not self.headers_sent:
            self.headers, self._lines, self.response_length = [], None, None
        return super().start_response(status, headers, exc_info)

    def send_headers(self) -> None:
        if not self.headers_sent:
            self.sock.sendall(self._head())
            self.headers_sent = True

    def write(self, arg: Any) -> None:
        """Send a part of the body, at most as much as the Content-Length."""
        if not isinstance(arg, bytes):
            self.send_headers()
            raise TypeError(f"{arg!r} is not a byte")
        if self._omits_body:
            super().write(arg)  # it sends the head, and warns once
            return
        length = self.response_length
        # A client would take any bytes beyond the Content-Length for the next response.
        if length is not None and len(arg) > length - self.sent:
            arg = arg[: max(length - self.sent, 0)]
        self.sent += len(arg)
        if self.chunked and arg:  # an empty chunk would end the body
            arg = b"%X\r\n%b\r\n" % (len(arg), arg)
        if self.headers_sent:
            if arg:
                self.sock.sendall(arg)
            return
        head = self._head()
        self.headers_sent = True
        # Head and body in one write: one system call and one packet for most responses.
        if len(arg) <= JOINED_BYTES:
            self.sock.sendall(head + arg)
        else:
            self.sock.sendall(head)
            self.sock.sendall(arg)

    def write_all(self, parts: Iterable[Any]) -> None:
        """Send the parts of the body, and its end."""
        write_parts(self.write, parts)
        self.close()

    def close(self) -> None:
        """Send the end of the body."""
        if self.chunked or not self.headers_sent:
            super().close()
        missing = 0 if self._omits_body else (self.response_length or 0) - self.sent
        if missing > 0:
            # The client would take the next response for the rest of this one.
            self.must_close = True
            log.warning("%s: %d bytes less than its Content-Length", self.req.path, missing)

    def write_file(self, parts: Any) -> None:
        if has_the_bytes_of_its_descriptor(parts.filelike) and self.sendfile(parts):
            self.sent = 0 if self._omits_body else self.response_length or self.sent
        else:
            write_parts(self.write, parts)

    def early_hints(self, headers: Any) -> None:
        """Send 103 Early Hints, as gunicorn does."""
        early_hints_callback(self.req, self.sock, self)(headers)

    def _head(self) -> bytes:
        version = self.req.version
        self.is_counted = True
        self.sent_s = monotonic()
        self.count(self.environ, self.route, self.status_code or 500)
        # Checked as late as possible: the stop may have begun while the application ran.
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
