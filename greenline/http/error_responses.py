"""
Report an error of a request to its client, to the log and to the counters, once each.

A client that has received a part of a response gets no second one.
"""

import logging
from collections.abc import Callable
from typing import Any

from greenline.errors import GreenlineError, StoreError, Unavailable
from greenline.http.body import BodyTooLarge
from greenline.http.client import (
    BodyTimeout,
    HeadTimeout,
    IdleTimeout,
    WriteTimeout,
)
from greenline.http.connection import LINGER_S, ClientConnection
from greenline.http.response import Response
from greenline.hub import deadline
from greenline.hub.request_timeout import REASON, RequestTimeout
from greenline.hub.unavailable import STATUS
from greenline.telemetry import access_log
from greenline.telemetry.request_log import RequestLog

SHORT_S = 0.5  # to linger after a 408: the client is known to be slow
STATUS_BY_ERROR: dict[type, str] = {
    HeadTimeout: "408 Request Timeout",
    BodyTimeout: "408 Request Timeout",
    BodyTooLarge: "413 Content Too Large",
    RequestTimeout: REASON,
    Unavailable: STATUS,
}


class StatusNoter:
    """
    Wrap a socket and note the status of the response that gunicorn sends over it.

    :param sock: the client's socket.
    """

    status = 500

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, data: bytes) -> None:
        # gunicorn's error responses are written in one piece that begins with the status line.
        if data.startswith(b"HTTP/"):
            self.status = int(data.split(b" ", 2)[1])
        self._sock.sendall(data)


class ErrorResponses:
    """
    Answer requests that failed.

    :param cfg: gunicorn's settings.
    :param log: the error log.
    :param request_log: counts and logs the responses.
    :param handle_error: gunicorn's function that answers an error that is not in the table.
    """

    def __init__(
        self,
        cfg: Any,
        log: logging.Logger,
        request_log: RequestLog,
        handle_error: Callable[..., None],
    ) -> None:
        self._cfg = cfg
        self._log = log
        self._request_log = request_log
        self._handle_error = handle_error

    def give_up(self, connection: ClientConnection, addr: Any, error: BaseException) -> None:
        """
        Answer an error that ended a connection, unless the client is gone.

        :param connection: the one that ended.
        :param addr: the client's address.
        :param error: the error.
        """
        # The application may have wrapped the client's error in one of its own, or hidden it.
        cause = connection.error or error
        # For the lines of the log: the application ran in another greenlet, or this one has served
        # another request.
        environ = connection.environ()
        deadline.count_in(environ)
        if type(cause) in STATUS_BY_ERROR and not connection.is_answered():
            self._log.debug("Refusing a request. %s", cause)
            self._refuse(connection, STATUS_BY_ERROR[type(cause)], str(cause))
        elif cause is connection.error or isinstance(cause, IdleTimeout | RequestTimeout):
            self._log.debug("Closing connection. %r", cause)
            if isinstance(cause, WriteTimeout):
                # Else the kernel would keep the unsent bytes for minutes after the close.
                connection.reset()
        elif connection.is_answered():
            self._log_cut(connection.request, cause)
        else:
            # gunicorn chooses the status and does not return it.
            noter = StatusNoter(connection.sock)
            self._handle_error(connection.request, noter, addr, error)
            took_s = connection.took_s()
            self._request_log.record_error(environ, noter.status, took_s)
            connection.linger()

    def _log_cut(self, request: Any, cause: BaseException) -> None:
        """Log why the rest of a response is missing; expected errors without a stack."""
        if isinstance(cause, GreenlineError) and type(cause) is not StoreError:
            self._log.error("%s %s: the answer was cut: %s", request.method, request.path, cause)
        else:
            self._log.exception("Error handling request")

    def cut(self, connection: ClientConnection) -> None:
        """Log and answer a request that the graceful timeout has ended."""
        if (what := connection.what()) is None:
            return
        deadline.count_in(connection.environ())
        self._log.warning("cut after the graceful timeout: %s", what)
        if not connection.is_answered():
            self._refuse(connection, "503 Service Unavailable", "the server is being stopped")

    def _refuse(self, connection: ClientConnection, status: str, message: str) -> None:
        """Send a response of our own to a client that may still be sending its request."""
        body, code = message.encode(), int(status[:3])
        retry = "Retry-After: 1\r\n" if code == 503 else ""
        head = (
            f"HTTP/1.1 {status}\r\nConnection: close\r\n{retry}"
            f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        environ, request = connection.environ(), connection.request
        if request is None:
            self._request_log.record_error(environ, code)
        else:
            response = Response(request, connection, self._cfg)
            response.status, response.status_code = status, code
            response.sent, response.route = len(body), access_log.route(environ)
            self._request_log.record(environ, request, response, connection.took_s())
        connection.end_with(head.encode() + body, SHORT_S if code == 408 else LINGER_S)
