"""
The undocumented names of gunicorn that the runtime uses, checked once, at import.

A version of gunicorn without one of them, or with another signature, ends the process with one line
that says which version it is and which ones are supported.

An older version that never had a name gets a fallback here. The fallbacks refuse what gunicorn 27
refuses: requests that a proxy may read differently, and responses that break the framing.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import gunicorn

from greenline.errors import ConfigError

SUPPORTED = ">=23,<28"
# Fallbacks are chosen by version: a name that a newer version lacks must be refused, not replaced.
VERSION: tuple[int, int] = gunicorn.version_info[:2]


def _refuse(reason: str) -> None:
    sys.exit(
        f"greenline: gunicorn {gunicorn.__version__} is not supported ({reason}): "
        f"install gunicorn{SUPPORTED}"
    )


if VERSION < (23, 0):
    _refuse("too old")

try:
    from gunicorn.arbiter import Arbiter
    from gunicorn.http import wsgi
    from gunicorn.http.body import Body, ChunkedReader, LengthReader
    from gunicorn.http.errors import (
        ChunkMissingTerminator,
        InvalidHeader,
        InvalidRequestLine,
        NoMoreData,
    )
    from gunicorn.http.message import (
        DEFAULT_MAX_HEADERFIELD_SIZE,
        MAX_HEADERS,
        MAX_REQUEST_LINE,
        Request,
    )
    from gunicorn.http.parser import RequestParser
    from gunicorn.http.wsgi import HEADER_VALUE_RE, TOKEN_RE, WSGIErrorsWrapper, base_environ
    from gunicorn.sock import ssl_context
    from gunicorn.util import hop_headers, http_date, is_ipv6, unquote_to_wsgi_str
    from gunicorn.workers.base_async import ALREADY_HANDLED
    from gunicorn.workers.ggevent import GeventWorker

    if VERSION >= (24, 0):
        from gunicorn.http.message import _ip_in_allow_list
        from gunicorn.uwsgi.parser import UWSGIParser
    else:
        UWSGIParser = None  # without the setting `protocol` no worker asks for it
    if VERSION >= (25, 2):
        from gunicorn.http.message import _check_fast_parser as may_use_fast_parser

        parse_python = Request._parse_python
    else:
        parse_python = Request.parse

        def may_use_fast_parser(cfg: Any) -> bool:
            """Return whether no setting asks for what only the Python parser does."""
            return not (cfg.permit_obsolete_folding or cfg.strip_header_spaces)

    if VERSION >= (26, 0):
        from gunicorn.http.wsgi import _make_early_hints_callback as early_hints_callback
    if VERSION >= (26, 2):
        from gunicorn.http.unreader import Unreader

        take_buffered = Unreader.take_buffered
    if VERSION >= (27, 0):
        from gunicorn.http.wsgi import STATUS_RE
        from gunicorn.http2 import negotiation
        from gunicorn.http2.errors import HTTP2ConnectionError, HTTP2Error
        from gunicorn.http2.response import HTTP2Response
        from gunicorn.sock import is_http2_negotiated
except (AttributeError, ImportError) as error:
    _refuse(str(error))

# The reload of gunicorn 23 waits for no worker, and its SIGCHLD handler reaps during the reload.
RELOAD_REAPS = VERSION >= (24, 0)


def is_trusted_proxy(cfg: Any, peer_addr: Any) -> bool:
    """
    Return whether gunicorn's ``forwarded_allow_ips`` has this address.

    :param cfg: gunicorn's settings.
    :param peer_addr: the client's address; one of a unix socket is trusted.
    """
    allowed = cfg.forwarded_allow_ips
    if not isinstance(peer_addr, tuple):
        return True
    if VERSION < (24, 0):  # it has no networks
        return "*" in allowed or peer_addr[0] in allowed
    return bool(_ip_in_allow_list(peer_addr[0], allowed, cfg.forwarded_allow_networks()))


def check_settings(cfg: Any) -> None:
    """
    Prove that this gunicorn can do what its settings ask for.

    :param cfg: gunicorn's settings.
    :raises ConfigError: HTTP/2, which the worker can serve with gunicorn 27.
    """
    if VERSION >= (27, 0):
        return
    # gunicorn 26.2 does not reset a stream whose response is cut: the client waits for the rest.
    is_clear = getattr(cfg, "http2_cleartext", "off") != "off"
    if is_clear or "h2" in getattr(cfg, "http_protocols", ()):
        name = "http2_cleartext" if is_clear else "http_protocols"
        raise ConfigError(f"{name}: HTTP/2 needs gunicorn 27, this is {gunicorn.__version__}")


class _SignalQueue:
    """
    The arbiter's list of signals, with the methods of a queue.

    :param signals: that list.
    """

    def __init__(self, signals: list[int]) -> None:
        self._signals = signals

    def empty(self) -> bool:
        return not self._signals

    def get_nowait(self) -> int:
        return self._signals.pop(0)


def signal_queue(arbiter: Any) -> Any:
    """Return the queue of the signals that *arbiter* has received and not handled yet."""
    queue = arbiter.SIG_QUEUE
    return _SignalQueue(queue) if isinstance(queue, list) else queue  # a list in gunicorn 23


def forget_dead_workers(arbiter: Any) -> None:
    """
    Remove the workers that have ended, after an error of the arbiter's ``reap_workers()``.

    :param arbiter: gunicorn's Arbiter.
    """
    if VERSION >= (26, 1):
        return
    # It has raised the error before it removed the worker, and would start no other one.
    for pid, worker in list(arbiter.WORKERS.items()):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            del arbiter.WORKERS[pid]
            worker.tmp.close()
            arbiter.cfg.child_exit(arbiter, worker)


class _ContinueNoter:
    """Stands for the socket, and notes 100 Continue instead of sending it."""

    is_expected = False

    def send(self, data: bytes) -> None:
        self.is_expected = True

    sendall = send


def environ_of(request: Any, client: Any, server: Any, cfg: Any) -> tuple[dict[str, Any], bool]:
    """
    Return gunicorn's environ of *request*, and whether the client waits for 100 Continue.

    :param request: gunicorn's request.
    :param client: the client's address.
    :param server: the address of the listener.
    :param cfg: gunicorn's settings.
    """
    # gunicorn would send 100 Continue now. A request that is not admitted must not cause the
    # client to send its body.
    noter = _ContinueNoter()
    _, environ = wsgi.create(request, noter, client, server, cfg)
    return environ, noter.is_expected


StrictRequest: Any = Request
StrictChunkedReader: Any = ChunkedReader
StrictResponse: Any = wsgi.Response

if VERSION < (27, 0):
    STATUS_RE = re.compile(r"[0-9]{3}(?: [ \t\x21-\x7e\x80-\xff]*)?")
    _UNPRINTABLE = re.compile(r"[^\x21-\x7e]")
    _CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
    _BARE_LF = re.compile(rb"(?<!\r)\n")
    _TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
    _QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
    # RFC 9112, section 7.1.1.
    _CHUNK_HEAD = re.compile(
        rb"([0-9A-Fa-f]+)(?:[ \t]*;[ \t]*%b(?:[ \t]*=[ \t]*(?:%b|%b))?)*"
        % (_TOKEN, _TOKEN, _QUOTED)
    )
    # RFC 9110, section 6.5.1, and 5.3.
    _NO_TRAILER = {"HOST", "CONTENT-LENGTH", "TRANSFER-ENCODING", "TRAILER", "AUTHORIZATION", "TE"}
    _ONCE = ("HOST", "CONTENT-TYPE")

    class StrictRequest(Request):  # type: ignore[misc,no-redef]
        """A request that gunicorn 27 would read as well."""

        def set_body_reader(self) -> None:
            uri, names = self.uri, [name for name, _ in self.headers]
            # RFC 9112, section 3.2: the asterisk is for OPTIONS, an authority for CONNECT.
            is_origin = uri.startswith("/") or "://" in uri or self.method == "CONNECT"
            if _UNPRINTABLE.search(uri) or not (
                self.method == "OPTIONS" if uri == "*" else is_origin
            ):
                raise InvalidRequestLine(uri)
            for name, value in self.headers:
                if _CONTROLS.search(value) or (name in _ONCE and names.count(name) > 1):
                    raise InvalidHeader(name, req=self)
                # gunicorn strips U+00A0 and U+0085, too: a proxy reads another coding.
                if name == "TRANSFER-ENCODING" and not value.isascii():
                    raise InvalidHeader(name, req=self)
            super().set_body_reader()
            # RFC 9112, section 6.3: without chunked at its end, its length is unknown.
            if "TRANSFER-ENCODING" in names and not isinstance(self.body.reader, ChunkedReader):
                raise InvalidHeader("TRANSFER-ENCODING", req=self)

        def should_close(self) -> bool:
            # RFC 9931, section 8: what follows may belong to a tunnel.
            return self.method == "CONNECT" or bool(super().should_close())

    class InvalidChunk(InvalidHeader):  # type: ignore[misc]
        """A malformed chunk, answered with a 400."""

        def __str__(self) -> str:
            return f"invalid chunk: {self.hdr!r}"

    class StrictChunkedReader(ChunkedReader):  # type: ignore[misc,no-redef]
        """A chunked body with limits on the lines between the chunks."""

        def parse_chunked(self, unreader: Any) -> Iterator[bytes]:
            try:
                yield from super().parse_chunked(unreader)
            except ChunkMissingTerminator as error:  # an OSError, which is answered with a 500
                raise InvalidChunk(error.term) from None

        def parse_chunk_size(self, unreader: Any, data: Any = None) -> tuple[int, Any]:
            size = getattr(self.req, "limit_request_field_size", 0)
            max_bytes = size or DEFAULT_MAX_HEADERFIELD_SIZE
            line, rest = _read_until(b"\r\n", unreader, data or b"", max_bytes)
            if not (found := _CHUNK_HEAD.fullmatch(line)):
                raise InvalidChunk(line)
            if size := int(found[1], 16):
                return size, rest
            try:
                self._read_trailers(unreader, rest)
            except NoMoreData:  # gunicorn takes it for the end of the body
                raise InvalidChunk(b"the end is missing") from None
            return 0, None

        def _read_trailers(self, unreader: Any, data: bytes) -> None:
            while len(data) < 2:
                data += _read_more(unreader)
            if data.startswith(b"\r\n"):
                unreader.unread(data[2:])
                return
            lines, rest = _read_until(b"\r\n\r\n", unreader, data, self.req.max_buffer_headers)
            unreader.unread(rest)
            trailers = self.req.parse_headers(lines, from_trailer=True)
            for name, value in trailers:
                if name in _NO_TRAILER or _CONTROLS.search(value):
                    raise InvalidHeader(name)
            self.req.trailers = trailers

    def _read_until(end: bytes, unreader: Any, data: bytes, max_bytes: int) -> tuple[bytes, bytes]:
        """Return the bytes before *end*, and those behind it."""
        buffer, start = bytearray(data), 0
        while (at := buffer.find(end, start)) < 0:
            # Every line ends with CRLF. With a bare LF the end may never come.
            if len(buffer) > max_bytes or _BARE_LF.search(buffer, start):
                raise InvalidChunk(bytes(buffer[:20]))
            start = max(len(buffer) - len(end) + 1, 0)  # each byte is searched once
            buffer += _read_more(unreader)
        return bytes(buffer[:at]), bytes(buffer[at + len(end) :])

    def _read_more(unreader: Any) -> bytes:
        data: bytes = unreader.read()
        if not data:
            raise NoMoreData
        return data

    class StrictResponse(wsgi.Response):  # type: ignore[misc,no-redef]
        """A response whose status line and body cannot be taken for another response."""

        _omits_body = False

        def start_response(self, status: Any, headers: Any, exc_info: Any = None) -> Any:
            if not isinstance(status, str) or not STATUS_RE.fullmatch(status):
                raise ValueError(f"Invalid status {status!r}")
            write = super().start_response(status, headers, exc_info)
            if VERSION < (26, 1):
                code = self.status_code
                self._omits_body = self.req.method == "HEAD" or code < 200 or code in (204, 304)
            return write

        def is_chunked(self) -> bool:
            # nginx frames a uwsgi body itself, and would pass chunk markers on as a part of it.
            return getattr(self.cfg, "protocol", "") != "uwsgi" and bool(super().is_chunked())

        def write(self, arg: Any) -> None:
            if self._omits_body:
                self.send_headers()
            else:
                super().write(arg)

        def sendfile(self, respiter: Any) -> bool:
            # write() then drops the parts of the file.
            return not self._omits_body and bool(super().sendfile(respiter))

    class Body(Body):  # type: ignore[misc,no-redef]
        """A body that notes when reading it has failed: where it ends is then unknown."""

        failed = False

        def read(self, size: Any = None) -> Any:
            with self._noting():
                return super().read(size)

        def readline(self, size: Any = None) -> Any:
            with self._noting():
                return super().readline(size)

        @contextmanager
        def _noting(self) -> Iterator[None]:
            try:
                yield
            except Exception:
                self.failed = True
                raise

    HTTP2ConnectionError = HTTP2Error = type("HTTP2Error", (Exception,), {})
    HTTP2Response = object
    # Only gunicorn's own settings allow HTTP/2, and check_settings() refuses them.
    negotiation = SimpleNamespace(
        upgrade_allowed=lambda cfg, peer_addr: False,
        prior_knowledge_allowed=lambda cfg, peer_addr: False,
    )

    def is_http2_negotiated(sock: Any) -> bool:
        """Return False: check_settings() refuses HTTP/2."""
        return False


if VERSION < (26, 2):

    def take_buffered(unreader: Any) -> bytes:
        """Return and forget the bytes that the parser has read and not used."""
        data: bytes = unreader.buf.getvalue()
        unreader.buf = BytesIO()
        return data


if VERSION < (26, 0):

    def early_hints_callback(req: Any, sock: Any, resp: Any) -> Callable[[Any], None]:
        """Return a function that sends 103 Early Hints; gunicorn 25 does not validate them."""

        def send(headers: Any) -> None:
            if resp.headers_sent or req.version < (1, 1):
                return
            lines = "HTTP/1.1 103 Early Hints\r\n"
            for name, value in headers:
                name, value = (
                    one.decode("latin-1") if isinstance(one, bytes) else one
                    for one in (name, value)
                )
                if not TOKEN_RE.fullmatch(name) or not HEADER_VALUE_RE.fullmatch(value):
                    raise InvalidHeader(repr(name))
                lines += f"{name}: {value.strip()}\r\n"
            sock.sendall(f"{lines}\r\n".encode("latin-1"))

        return send


# It writes to the error log. A handler of logging that writes to it, as Flask's does, is one that
# writes to standard error (greenline/telemetry/log_format.py).
WSGIErrorsWrapper.fileno = lambda _: 2

# What is called or overridden, with the parameters that it has in the supported versions.
SIGNATURES: tuple[tuple[Callable[..., Any], str], ...] = (
    (
        wsgi.create,
        "req sock client server cfg"
        + (" response_class response_args" if VERSION >= (26, 2) else ""),
    ),
    (wsgi.default_environ, "req sock cfg"),
    (base_environ, "cfg"),
    (early_hints_callback, "req sock resp"),
    (Request.__init__, "self cfg unreader peer_addr req_number"),
    (parse_python, "self unreader buf" if VERSION >= (25, 2) else "self unreader"),
    (GeventWorker.handle, "self listener client addr"),
    (Arbiter.handle_hup, "self"),
    (Arbiter.manage_workers, "self"),
    (Arbiter.reap_workers, "self"),
    (Arbiter.stop, "self graceful"),
    (negotiation.upgrade_allowed, "cfg peer_addr"),
    (negotiation.prior_knowledge_allowed, "cfg peer_addr"),
)
if VERSION >= (24, 0):
    SIGNATURES += ((_ip_in_allow_list, "ip_str allow_list networks"),)
if VERSION >= (27, 0):
    handle_stream = GeventWorker.handle_http2_request
    SIGNATURES += ((handle_stream, "self listener_name req sock addr h2_conn"),)


def check(signatures: tuple[tuple[Callable[..., Any], str], ...] = SIGNATURES) -> None:
    """
    Prove that gunicorn's functions have the parameters that the runtime knows.

    :param signatures: the functions, each with the names of its parameters.
    :raises SystemExit: one has others; the one line says which function and which versions are
        supported.
    """
    for function, expected in signatures:
        parameters = inspect.signature(function).parameters
        # A monitoring agent may have wrapped it in a function of any arguments.
        is_wrapped = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
        if (found := " ".join(parameters)) != expected and not is_wrapped:
            _refuse(f"{function.__qualname__}({found.replace(' ', ', ')})")


check()
