"""
Read the requests of one client connection, one after the other.

Each request is read by :class:`FastParser` if possible, else by gunicorn's Python parser or its
parser of the uwsgi protocol. Unread bytes are handed from one parser to the other.
"""

from collections.abc import Mapping
from io import BytesIO
from time import monotonic
from typing import Any, NamedTuple

import gevent
from gevent.exceptions import ConcurrentObjectUseError

from greenline.http import proxy_headers
from greenline.http.body import BodyTooLarge, BoundedChunks, bounded, drain, is_unread
from greenline.http.client import Client, ClientTimeout
from greenline.http.fast_parser import (
    CHUNKED,
    UWSGI,
    Fallback,
    FastParser,
    FastRequest,
    is_valid_host,
)
from greenline.http.gunicorn_compat import Body, LengthReader, UWSGIParser, wsgi
from greenline.http.request import InvalidHost, PythonParser
from greenline.http.response import Response
from greenline.hub.cooperate import yield_to_hub


class HandlerOutcome(NamedTuple):
    """The outcome of a request that a handler served instead of the connection's own greenlet."""

    stays: bool = False
    error: BaseException | None = None


class ClientConnection:
    """
    The state of one client's connection.

    :param client: the client's socket and limits.
    :param lane: parses the requests for which gunicorn's parser is not needed.
    :param server: the address of the listener, a tuple or the path of a unix socket.
    :param fast: whether *lane* may be used, bool.
    """

    def __init__(self, client: Client, lane: FastParser, server: Any, *, fast: bool) -> None:
        self.client: Any = client
        self.request: Any = None
        self.started_s: float | None = None  # when the worker began to answer it
        self._response: Response | None = None
        self._is_idle = False
        self._is_withheld = False
        self._greenlet = gevent.getcurrent()
        self.handler: Any = None  # the greenlet in which the application runs
        self._cfg = cfg = lane.rules.cfg
        self._lane = lane
        self.server = server
        self._fast = fast
        parser = UWSGIParser if cfg.protocol == UWSGI else PythonParser
        self._parser = parser(cfg, client, lane.peer_addr)
        self._unreader = self._parser.unreader
        self._data = b""  # read, but not parsed: the beginning of the next request
        self._body: Any = None
        self._proxy: Any = {}  # from the PROXY protocol

    def next_request(self, idle_s: float) -> Any:
        """
        Return the next request, None when the client has closed.

        :param idle_s: seconds to wait for it, float.
        :raises ClientTimeout: it did not arrive in time.
        :raises BodyTooLarge: its body exceeds the limit.
        :raises Exception: gunicorn's, for a malformed request.
        """
        self.request = self._response = self.started_s = None
        self._is_withheld = False
        data = self._data
        if data:
            # A pipelined request: without a wait the client would keep the worker to itself.
            yield_to_hub()
        else:
            # While this is set, _close_if_idle() may throw into the wait below.
            self._is_idle = True
            data = self.client.recv_request(idle_s)
            self._is_idle = False
            if isinstance(data, HandlerOutcome):
                if data.error is not None:
                    raise data.error
                if not data.stays:
                    return None
                data = self._data  # pipelined behind the request that the handler served
            if not data:
                return None
        if self._fast:
            try:
                request = self._lane.read(data)
            except Fallback:
                pass
            else:
                self.request = request
                rest = data[request.head_bytes :]
                if request.length is None:
                    request.body = BytesIO()
                    self._data = rest
                else:
                    self._set_body(request, request.length, rest)
                return request
        return self._read_slowly(data)

    def read_whole(self, data: bytes) -> FastRequest | None:
        """Return the request at the beginning of *data*, None if it needs gunicorn or a wait."""
        try:
            request = self._lane.read(data)
        except Fallback:
            return None
        # A negative length (CHUNKED) and a body that is incomplete or too large need a greenlet
        # that may wait; next_request() reads the same bytes again.
        length = request.length or 0
        end = request.head_bytes + length
        if length < 0 or end > len(data) or length > self.client.limits.max_body_bytes:
            return None
        request.body = BytesIO(data[request.head_bytes : end])
        self._data = data[end:]
        self._response = self.started_s = None
        self._is_withheld = self._is_idle = False
        self.request = request
        return request

    def wait_for_next(self, idle_s: float) -> bool:
        """
        Let the client wait for its next request without a greenlet.

        :param idle_s: seconds to wait, float.
        :returns: False if a part of the next request was read already.
        """
        self.request = self._response = None
        if self._data:
            return False
        self._is_idle = True
        self.client.resume_request(idle_s)
        return True

    def respond(self, request: Any) -> tuple[Response, dict[str, Any]]:
        """Return the response to fill and the environ for the application."""
        client = self.client
        if isinstance(request, FastRequest):
            response = self._response = Response(request, client, self._cfg)
            environ: dict[str, Any] = request.environ
            environ["wsgi.input"] = request.body
            environ["wsgi.early_hints"] = response.early_hints
            response.environ = environ
            return response, environ
        # gunicorn would send 100 Continue now. A request that is not admitted must not cause the
        # client to send its body.
        self._is_withheld, request._expected_100_continue = request._expected_100_continue, False
        response, environ = wsgi.create(
            request, client, self._lane.peer_addr, self.server, self._cfg, Response
        )
        self._response = response
        response.environ = environ
        environ["wsgi.multithread"] = True
        environ[proxy_headers.IS_TRUSTED] = self._lane.is_trusted
        environ["gunicorn.socket"] = client.sock
        environ["wsgi.errors"] = self._lane.base["wsgi.errors"]
        return response, environ

    def ask_for_body(self) -> None:
        """Send 100 Continue to a client that waits for it."""
        if self._is_withheld:
            self._is_withheld = False
            self.client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    def withholds_body(self) -> bool:
        """Return whether the client waits for 100 Continue."""
        return self._is_withheld

    def finish(self) -> bool:
        """
        Read the rest of the body; return whether another request may follow.

        :raises Exception: gunicorn's, for a malformed body.
        """
        self.request = self._response = None
        if self._body is not None:
            # The response said keep-alive, so the next request must be found behind this body.
            try:
                if not drain(self._body):
                    return False
            except (BodyTooLarge, ClientTimeout):  # the response was sent: no error to answer
                return False
            except ConcurrentObjectUseError:  # a greenlet of the application still reads
                return False
            self._body = None
            # gunicorn's buffer may hold pipelined bytes: the next request may be read by the other
            # parser.
            self._data = self._unreader.take_buffered()
        return True

    def is_answered(self) -> bool:
        """Return whether a part of the response to the last request was sent."""
        return self._response is not None and self._response.headers_sent

    def environ(self) -> Mapping[str, Any]:
        """Return the environ of the request in progress, or the part of it that is known."""
        request = self.request
        if self._response is not None:
            return self._response.environ
        if isinstance(request, FastRequest):
            return request.environ
        known = {"REMOTE_ADDR": self._lane.base["REMOTE_ADDR"]}
        if request is not None:
            known |= wsgi.default_environ(request, self.client.sock, self._cfg)
            known["PATH_INFO"] = request.path
        return known

    def took_s(self) -> float:
        """Return the seconds since the worker began to answer the request in progress."""
        return 0.0 if self.started_s is None else monotonic() - self.started_s

    def what(self) -> str | None:
        """Return the method and target of the request in progress, None without one."""
        request = self.request
        return None if request is None else f"{request.method} {request.uri}"

    def idle_s(self) -> float | None:
        """Return the seconds since the last request, None while one is in progress."""
        return monotonic() - self.client.idle_since_s if self._is_idle else None

    def is_trusted(self) -> bool:
        """Return whether the client is a trusted proxy."""
        return bool(self._lane.is_trusted)

    def close_if_idle(self) -> None:
        """Close the connection, unless a request has arrived or is in progress."""
        # Deferred to the hub, where the check and the throw are one step.
        gevent.get_hub().loop.run_callback(self._close_if_idle)

    def cut(self) -> None:
        """End the request in progress, or the wait for one."""
        # The greenlet of the connection may be waiting for the handler, which would go on.
        gevent.kill(self.handler or self._greenlet)

    def _close_if_idle(self) -> None:
        # Runs in the hub: no greenlet switch between the check and the throw. A close would lose
        # input, which is the next request.
        if self._is_idle and not self.client.has_input():
            self._greenlet.throw(gevent.GreenletExit)

    def is_unread(self) -> bool:
        """Return whether the client may still be sending its body."""
        return self._body is not None and is_unread(self._body)

    def _set_body(self, request: FastRequest, length: int, rest: bytes) -> None:
        max_bytes = self.client.limits.max_body_bytes
        if length > max_bytes:
            raise BodyTooLarge(max_bytes)
        if 0 <= length <= len(rest):
            request.body = BytesIO(rest[:length])
            self._data = rest[length:]
            return
        self._unreader.unread(rest)
        if length == CHUNKED:
            reader: Any = BoundedChunks(request, self._unreader, max_bytes)
        else:
            reader = LengthReader(self._unreader, length)
        request.body = self._body = Body(reader)
        self.client.expect_body()

    def _read_slowly(self, data: bytes) -> Any:
        self._unreader.unread(data)
        self.client.expect_head()
        request = self.request = next(self._parser)
        if self._lane.rules.requires_host:
            host = next((value for name, value in request.headers if name == "HOST"), None)
            if not is_valid_host(host, request.version >= (1, 1)):
                raise InvalidHost("Host", request)
        # The PROXY line precedes only the first request of a connection.
        if request.proxy_protocol_info:
            self._proxy = request.proxy_protocol_info
        else:
            request.proxy_protocol_info = self._proxy
        self._body = request.body
        self.client.expect_body()
        max_bytes = self.client.limits.max_body_bytes
        request.body = self._body = bounded(request.body, request, self._unreader, max_bytes)
        return request
