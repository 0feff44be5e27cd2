"""
Own the conversation with one client: its requests, its errors and the limits on its time.

The seconds that reads wait are subtracted from one budget for each stage: the rest of a request's
head, and its body. The application's own time is not counted.

Each request is read by :class:`FastParser` if possible, else by gunicorn's Python parser or its
parser of the uwsgi protocol. Unread bytes are handed from one parser to the other.

A plain client has no greenlet of its own: the hub reads its requests and starts their handlers. One
is spawned for what may wait outside of the application: a body that is not complete, gunicorn's
parser, the turn of a request, the answer to an error.
"""

import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from io import BytesIO
from socket import SHUT_WR
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import gevent
from gevent.exceptions import ConcurrentObjectUseError
from gevent.socket import socket as gevent_socket

from greenline.admission.limiter import ConcurrencyLimiter
from greenline.admission.queue import QueuedRequest
from greenline.http import proxy_headers
from greenline.http.body import BodyTooLarge, BoundedChunks, drain, is_unread
from greenline.http.client import (
    NEVER,
    RECV_BYTES,
    BodyTimeout,
    Client,
    ClientTimeout,
    HeadTimeout,
    IdleTimeout,
    Over,
)
from greenline.http.fast_parser import (
    CHUNKED,
    Fallback,
    FastParser,
    FastRequest,
    Rules,
    is_valid_host,
)
from greenline.http.gunicorn_compat import (
    Body,
    ChunkedReader,
    LengthReader,
    UWSGIParser,
    environ_of,
    take_buffered,
    wsgi,
)
from greenline.http.plain_client import PlainClient, Sweep
from greenline.http.request import InvalidHost, PythonParser
from greenline.http.response import Response
from greenline.http.tls_client import TlsClient
from greenline.hub import taken_socket
from greenline.hub.cooperate import yield_to_hub
from greenline.hub.handlers import Handlers
from greenline.settings import Limits

LINGER_S, LINGER_READ_S = 30.0, 5.0  # in total, and for each read
LINGER_BYTES = 16 * 1024 * 1024
DRAIN_S = 300.0  # seconds that the rest of a body, which the application has not read, may take
STREAM_S = 0.5  # from then on an answer that has begun is a stream


class HandlerOutcome(NamedTuple):
    """
    The outcome of a request that a handler answered instead of the connection's own greenlet.

    :param stays: the connection stays open for a next request, bool. Default False.
    :param error: the error that the handler ended with. Default None.
    """

    stays: bool = False
    error: BaseException | None = None


class ClientConnection:
    """
    The state of one client's connection, which :meth:`begin` or :meth:`converse` serves.

    gunicorn's parser reads from it and responses are written to it as if it were the socket.

    :param sock: the client's socket, gevent's.
    :param addr: the client's address.
    :param server: the address of the listener, a tuple or the path of a unix socket.
    :param rules: gunicorn's settings for requests.
    :param base: the part of the environ that the requests of all connections share.
    :param limits: seconds and bytes that the client may take.
    :param limiter: admits the requests.
    :param keepalive_s: seconds to wait for a request after the first, float.
    :param answer: answers a request; called with the connection, the request, and whether the
        greenlet that calls it is a handler. It returns whether another request may follow.
    :param handlers: start the application; None: gunicorn's parser must read every request.
    :param spawn: returns a new greenlet that calls :meth:`converse`.
    :param on_end: called once, when the connection is closed.
    :param sweep: interrupts the waits that have expired.
    """

    # Instances have at most 30 attributes: with more CPython stops sharing the keys of their dicts,
    # and a request takes a tenth more time. What most connections never set is set in the class.
    needs_greenlet = True  # for the wait for a request
    greenlet: Any = None  # the one in converse()
    queued: QueuedRequest | None = None  # the request in progress, while no greenlet waits for it
    _found: Any = None  # what converse() begins with: bytes, HandlerOutcome, or nothing
    error: OSError | None = None  # the client's, which ended the conversation
    _proxy: Any = MappingProxyType({})  # from the PROXY protocol
    # The budget of the stage, see _expect().
    _late: type[ClientTimeout] = HeadTimeout
    _left_s, _each_s = 0.0, NEVER

    def __init__(
        self,
        sock: Any,
        addr: Any,
        server: Any,
        *,
        rules: Rules,
        base: dict[str, Any],
        limits: Limits,
        limiter: ConcurrencyLimiter,
        keepalive_s: float,
        answer: Callable[["ClientConnection", Any, bool], bool],
        handlers: Handlers | None,
        spawn: Callable[["ClientConnection"], Any],
        on_end: Callable[["ClientConnection"], object],
        sweep: Sweep,
    ) -> None:
        self.sock = sock
        self.addr = addr
        self.server = server
        self.request: Any = None
        self.started_s = NEVER  # when the answer to it began
        self._handler: Any = None  # the greenlet in which the application runs
        self._cfg = rules.cfg
        self._limits = limits
        self._limiter = limiter
        self._keepalive_s = keepalive_s
        self._answer = answer
        self._handlers = handlers
        self._spawn = spawn
        self._on_end: Callable[[ClientConnection], object] | None = on_end
        self._response: Response | None = None
        self._is_idle = False
        self._idle_since_s = 0.0
        self._is_withheld = False
        self._fast_parser = FastParser(rules, base, addr, server)
        self._data = b""  # read, but not parsed: the beginning of the next request
        self._body: Any = None
        self._client: Any
        if type(sock) is gevent_socket:
            self._client = PlainClient(sock, limits, sweep)
            if handlers is not None:
                self._client.on_request = self._take
                self.needs_greenlet = False
        else:
            self._client = (TlsClient if isinstance(sock, ssl.SSLSocket) else Client)(sock, limits)

    def begin(self) -> None:
        """Serve a client that needs no greenlet; call it in the hub."""
        self._park(self._limits.head_s)

    def _park(self, idle_s: float) -> None:
        """Wait for the next request without a greenlet, *idle_s* seconds."""
        self.greenlet = None
        self._idle_since_s = now = monotonic()
        self._client.expect_request(now + idle_s)
        self._is_idle = True

    def _take(self, data: bytes) -> None:
        """Serve the request that begins with *data*, none if it is empty; runs in the hub."""
        if not data:
            self.close()
        elif not self.start_request(data):
            self._continue(data)

    def _continue(self, found: "bytes | HandlerOutcome") -> None:
        """Go on in a greenlet, after the first bytes of a request, or after a handler."""
        self._is_idle = False  # at once: close_if_idle() would lose what was read
        self._found = found  # not an argument: the error in it would be in a cycle with its frames
        self.greenlet = self._spawn(self)

    def converse(self) -> bool:
        """
        Have the requests answered in this greenlet.

        :returns: whether the client waits for its next request without a greenlet; else one of the
            sides has closed the connection.
        :raises ClientTimeout: the client took longer than its limit.
        :raises BodyTooLarge: a body exceeds the limit.
        :raises Exception: gunicorn's, for a malformed request, and those of *answer*.
        """
        self.greenlet = gevent.getcurrent()
        found, self._found = self._found, None
        idle_s = self._limits.head_s if found is None else self._keepalive_s
        if isinstance(found, HandlerOutcome):
            if found.error is not None:
                try:
                    raise found.error
                finally:
                    # Break a reference cycle: the error, its traceback, this frame, the error.
                    del found
            if not self._finish(found.stays):
                return False
            found = None  # a request is pipelined behind the one that the handler served
        while (request := self._next_request(found, idle_s)) is not None:
            found = None
            if not self._finish(self._answer(self, request, False)):
                break
            idle_s = self._keepalive_s
            if not (self.needs_greenlet or self._data):
                self.started_s = NEVER
                self._park(idle_s)
                return True
        return False

    def _next_request(self, data: bytes | None, idle_s: float) -> Any:
        """
        Return the next request that this greenlet must answer, None when there is none.

        :param data: its first bytes, None if they were not read yet.
        :param idle_s: seconds to wait for it, float.
        """
        self.request = self._response = None
        self.started_s = NEVER
        self._is_withheld = False
        if data is None:
            data = self._data
            if data:
                # A pipelined request: without this switch one client could keep the worker to
                # itself.
                yield_to_hub()
            else:
                # While this is set, _close_if_idle() may throw into the wait below.
                self._is_idle = True
                self._idle_since_s = monotonic()
                try:
                    data = self._client.recv_request(idle_s)
                except OSError as error:
                    self.error = error
                    raise
                self._is_idle = False
            if not data:
                return None
        if self._handlers is not None:
            try:
                request = self._fast_parser.read(data)
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

    def start_request(self, data: bytes) -> bool:
        """
        Start a handler for the request at the beginning of *data*, at once or in its turn.

        :returns: False if :meth:`_next_request` must read it: it needs gunicorn's parser, or a
            wait.
        """
        # Runs in the hub, so nothing here may wait.
        try:
            request = self._fast_parser.read(data)
        except Fallback:
            return False
        # A negative length (CHUNKED) and a body that is incomplete or too large need a greenlet
        # that may wait; _next_request() reads the same bytes again.
        length = request.length or 0
        end = request.head_bytes + length
        if length < 0 or end > len(data) or length > self._limits.max_body_bytes:
            return False
        limiter, queued = self._limiter, None
        handlers = cast(Handlers, self._handlers)
        turns = handlers.turns
        takes_turn = bool(turns.pages) and turns.must_wait(request)
        # No switch between has_room() and acquire() in the handler: it is admitted at once.
        if takes_turn or not limiter.has_room():
            is_long = takes_turn or turns.known_s(request) > 0
            queued = limiter.enqueue(
                request.environ, self.sock, self._start_queued, takes_turn, is_long
            )
            if queued is None:
                return False
        request.body = BytesIO(data[request.head_bytes : end])
        self._data = data[end:]
        self._response = None
        self._is_withheld = self._is_idle = False
        self.request = request
        if queued is None:
            handlers.start(self._handle, request)
        else:
            self.respond(request)
            self.started_s = queued.came_s  # its wait is a part of the time of the answer
            self.queued = queued
            if takes_turn:
                turns.wait(request, partial(self._take_turn, queued))
        return True

    def _take_turn(self, queued: QueuedRequest) -> None:
        if self._limiter.admit(queued):
            self._start_queued()

    def _start_queued(self) -> None:
        """Start a handler for the request that was in the queue; runs in the hub."""
        # None: it has begun, for another reason than that for which this was called.
        if self.queued is not None:
            cast(Handlers, self._handlers).start(self._handle, self.request)

    def _handle(self, request: FastRequest) -> None:
        """Answer *request* in a handler; have a greenlet go on if it must."""
        self._handler = gevent.getcurrent()
        try:
            stays = self._answer(self, request, True)
            if stays:
                # Even if the next request was read already: an error in it has not been answered
                # yet.
                self.request = self._response = None
                self.started_s = NEVER
                if not self._data:
                    self._park(self._keepalive_s)
                    return
            elif not self._client.has_unread():
                self.close()
                return
            outcome = HandlerOutcome(stays)
        except BaseException as error:  # converse() raises it
            outcome = HandlerOutcome(error=error)
        finally:
            self._handler = None
        self._continue(outcome)
        del outcome  # break a reference cycle: its error, the traceback, this frame

    def respond(self, request: Any) -> tuple[Response, dict[str, Any]]:
        """Return the response to fill and the environ for the application."""
        if self.queued is not None:
            return cast(Response, self._response), request.environ
        self.started_s = monotonic()
        response = Response(request, self, self._cfg)
        environ: dict[str, Any]
        if isinstance(request, FastRequest):
            environ = request.environ
            environ["wsgi.input"] = request.body
        else:
            environ, self._is_withheld = environ_of(
                request, self._fast_parser.peer_addr, self.server, self._cfg
            )
            environ["wsgi.multithread"] = True
            environ[proxy_headers.IS_TRUSTED] = self._fast_parser.is_trusted
            environ["wsgi.errors"] = self._fast_parser.base["wsgi.errors"]
        if proxy_headers.REQUEST_START in environ:
            proxy_headers.note_queue(environ)
        environ["gunicorn.socket"] = self.sock
        environ["wsgi.early_hints"] = response.early_hints
        self._response = response
        response.environ = environ
        return response, environ

    def ask_for_body(self) -> None:
        """Send 100 Continue to a client that waits for it."""
        if self._is_withheld:
            self._is_withheld = False
            self.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    def withholds_body(self) -> bool:
        """Return whether the client waits for 100 Continue."""
        return self._is_withheld

    def begin_count(self) -> None:
        """Note that the limiter counts the request: each wait for the client suspends it."""
        self._client.limiter = self._limiter
        if self._response is not None and "HTTP_UPGRADE" in self._response.environ:
            taken_socket.watch(self.sock)

    def end_count(self) -> bool:
        """Stop counting the request; return whether it was still counted."""
        client = self._client
        is_counted = client.limiter is not None
        taken_socket.unwatch(self.sock)
        if client.uncounted is not None:
            client.uncounted.end_request()
        client.limiter = client.uncounted = None
        return is_counted

    def leave_if_streaming(self, now: float) -> None:
        """
        Stop counting the request if it has streamed for ``STREAM_S``.

        :param now: monotonic seconds, float.
        """
        client, response = self._client, self._response
        if client.limiter is None or response is None:
            return
        if client.uncounted is not None and client.uncounted.count:
            return  # it holds no place at the moment
        if response.headers_sent:
            since_s = response.sent_s
        # An application answers the upgrade to a WebSocket itself, over the socket.
        elif "HTTP_UPGRADE" in response.environ and taken_socket.is_taken(self.sock):
            since_s = self.started_s
        else:
            return
        if now - since_s >= STREAM_S:
            self.end_count()
            self._limiter.leave()

    def recv(self, size: int = RECV_BYTES) -> bytes:
        """
        Return the next bytes, ``b""`` when the client has closed.

        :param size: how many at most, int, default 65,536.
        :raises ClientTimeout: nothing arrived in time.
        :raises OSError: the connection was lost.
        """
        timeout_s = min(self._left_s, self._each_s)
        started = monotonic()
        try:
            data: bytes = self._client.recv(size, timeout_s)
        except Over:
            self.error = self._late(f"nothing came in {timeout_s:.1f} s")
            raise self.error from None
        except OSError as error:
            self.error = error
            raise
        finally:
            # Only the wait counts: the application computes between two reads of its body.
            self._left_s = max(self._left_s - (monotonic() - started), 0.0)
        return data

    def sendall(self, data: Any) -> None:
        """
        Send *data*.

        :raises WriteTimeout: the client did not read 64 KiB of it in time.
        :raises OSError: the connection was lost.
        """
        try:
            self._client.sendall(data)
        except OSError as error:
            self.error = error
            raise

    def send(self, data: Any) -> int:
        self.sendall(data)
        return len(data)

    def sendfile(self, file: Any, offset: int = 0, count: int = 0) -> int:
        """
        Send a part of a file, as ``sendall`` does.

        :param file: a file opened for reading in binary mode.
        :param offset: where the part begins, int, in bytes, default 0.
        :param count: its length, int, in bytes, default 0.
        :returns: how many bytes were sent.
        :raises UnreadableFile: the file cannot be read.
        :raises EOFError: the file has fewer than *count*.
        :raises OSError: the connection was lost.
        """
        try:
            sent: int = self._client.sendfile(file, offset, count)
        except OSError as error:
            self.error = error
            raise
        if sent < count:
            raise EOFError(f"the file ended {count - sent} bytes before the Content-Length")
        return sent

    def linger(self, timeout_s: float = LINGER_S) -> None:
        """
        Let a client that may still be sending read its response before the socket closes.

        :param timeout_s: seconds for that, float, default 30.
        """
        # Closing a socket with unread bytes sends a reset, which discards the response on its way.
        # So only the sending half is closed, and the rest of the request is read and dropped.
        with suppress(OSError, ConcurrentObjectUseError):
            self.sock.shutdown(SHUT_WR)
            self._expect(IdleTimeout, timeout_s, LINGER_READ_S)
            left = LINGER_BYTES
            while left > 0 and (data := self.recv()):
                left -= len(data)

    def end_with(self, response: bytes, linger_s: float) -> None:
        """
        Send the last response to a client that may still be sending its request.

        :param response: the head and the body.
        :param linger_s: seconds for the client to read it, float.
        """
        # From now on no request is in progress: a stop that interrupts the linger below must not
        # log and answer this one again.
        self.request = None
        with suppress(OSError):
            self.sendall(response)
            self.linger(linger_s)

    def reset(self) -> None:
        """Discard unsent bytes when the socket closes: the client does not read them."""
        self._client.reset()

    def close(self) -> None:
        """Close the socket, and forget what refers to this connection: leave no cycle."""
        self._client.release()
        with suppress(OSError):
            self.sock.close()
        self.error = self.request = self._response = self._body = None
        vars(self).pop("_parser", None)
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self)

    def _finish(self, stays: bool) -> bool:
        """
        Read the rest of the body; return whether another request may follow.

        :param stays: whether the response said so, bool. If none may follow, the client is given
            the time to read the response.
        :raises Exception: gunicorn's, for a malformed body.
        """
        self.request = self._response = None
        if stays and self._drain():
            return True
        # Closing with unread bytes sends a reset, which discards the response on its way.
        is_sending = self._body is not None and is_unread(self._body)
        if is_sending or self._client.has_unread():
            self.linger()
        return False

    def _drain(self) -> bool:
        """Read the rest of the body; return whether the next request begins there."""
        if self._body is not None:
            # The response said keep-alive, so the next request must be found behind this body.
            self._left_s = min(self._left_s, DRAIN_S)
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
            self._data = take_buffered(self._parser.unreader)
        return True

    def is_answered(self) -> bool:
        """Return whether a part of the response to the last request was sent."""
        return self._response is not None and self._response.headers_sent

    def environ(self) -> dict[str, Any]:
        """Return the environ of the request in progress, or the part of it that is known."""
        request = self.request
        if self._response is not None:
            return cast("dict[str, Any]", self._response.environ)  # set with it
        if isinstance(request, FastRequest):
            return request.environ
        known = {"REMOTE_ADDR": self._fast_parser.base["REMOTE_ADDR"]}
        if request is not None:
            known |= wsgi.default_environ(request, self.sock, self._cfg)
            known["PATH_INFO"] = request.path
        return known

    def took_s(self) -> float:
        """Return the seconds since the worker began to answer the request in progress."""
        return max(monotonic() - self.started_s, 0.0)

    def what(self) -> str | None:
        """Return the method and path of the request in progress, None without one."""
        request = self.request
        return None if request is None else f"{request.method} {request.path}"

    def in_progress(self) -> tuple[Response, float] | None:
        """Return the response that is being made, and since when, in monotonic seconds."""
        response, started_s = self._response, self.started_s
        return None if response is None or started_s == NEVER else (response, started_s)

    def idle_s(self) -> float | None:
        """Return the seconds since the last request, None while one is in progress."""
        return monotonic() - self._idle_since_s if self._is_idle else None

    def is_trusted(self) -> bool:
        """Return whether the client is a trusted proxy."""
        return bool(self._fast_parser.is_trusted)

    def close_if_idle(self) -> None:
        """Close the connection, unless a request has arrived or is in progress."""
        # Deferred to the hub, where the check and the throw are one step.
        gevent.get_hub().loop.run_callback(self._close_if_idle)

    def cut(self) -> None:
        """End the request in progress, or the wait for one."""
        if self.queued is not None:
            self._limiter.interrupt(self.queued)
        # The greenlet of the connection may be waiting for the handler, which would go on.
        elif (running := self._handler or self.greenlet) is not None:
            gevent.kill(running)
        else:
            self.close()

    def _close_if_idle(self) -> None:
        # Runs in the hub: no greenlet switch between the check and the throw. A close would lose
        # input, which is the next request.
        if not self._is_idle or self._client.has_input():
            return
        if self.greenlet is None:
            self.close()
        else:
            self.greenlet.throw(gevent.GreenletExit)

    def _set_body(self, request: FastRequest, length: int, rest: bytes) -> None:
        max_bytes = self._limits.max_body_bytes
        if length > max_bytes:
            raise BodyTooLarge(max_bytes)
        if 0 <= length <= len(rest):
            request.body = BytesIO(rest[:length])
            self._data = rest[length:]
            return
        unreader = self._parser.unreader
        unreader.unread(rest)
        if length == CHUNKED:
            reader: Any = BoundedChunks(request, unreader, max_bytes, self._note)
        else:
            reader = LengthReader(unreader, length)
        request.body = self._body = Body(reader)
        self._expect(BodyTimeout, self._limits.body_s, self._limits.body_read_s)

    def _read_slowly(self, data: bytes) -> Any:
        unreader = self._parser.unreader
        unreader.unread(data)
        self._expect(HeadTimeout, self._limits.head_s)
        request = self.request = next(self._parser)
        if self._fast_parser.rules.requires_host:
            host = next((value for name, value in request.headers if name == "HOST"), None)
            if not is_valid_host(host, request.version >= (1, 1)):
                raise InvalidHost("Host", request)
        # The PROXY line precedes only the first request of a connection.
        if request.proxy_protocol_info:
            self._proxy = request.proxy_protocol_info
        else:
            request.proxy_protocol_info = self._proxy
        reader, max_bytes = request.body.reader, self._limits.max_body_bytes
        if isinstance(reader, ChunkedReader):
            # Nothing was read from the first reader yet: gunicorn parses chunks on demand.
            reader = BoundedChunks(request, unreader, max_bytes, self._note)
        elif isinstance(reader, LengthReader) and reader.length > max_bytes:
            raise BodyTooLarge(max_bytes)
        self._body = request.body = Body(reader)
        self._expect(BodyTimeout, self._limits.body_s, self._limits.body_read_s)
        return request

    @cached_property
    def _parser(self) -> Any:
        """gunicorn's parser, which most connections never need."""
        parser = UWSGIParser if self._fast_parser.rules.is_uwsgi else PythonParser
        return parser(self._cfg, self, self._fast_parser.peer_addr)

    def _expect(self, error: type[ClientTimeout], total_s: float, each_s: float = NEVER) -> None:
        """
        Set the budget of the next stage.

        :param error: raised when it is used up.
        :param total_s: seconds that all reads together may wait, float.
        :param each_s: seconds that one read may wait, float; default: no limit of its own.
        """
        self._late, self._left_s, self._each_s = error, total_s, each_s

    def _note(self, error: OSError) -> None:
        self.error = error
