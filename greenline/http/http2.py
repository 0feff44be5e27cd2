"""
Adapt a stream of an HTTP/2 connection to the interface of the worker's HTTP/1 responses.

gunicorn reads and writes the frames of the connection, and serves its streams one after the other.
"""

from functools import partial
from time import monotonic
from typing import Any

from greenline.admission.limiter import ConcurrencyLimiter
from greenline.http.connection import STREAM_S
from greenline.http.gunicorn_compat import HTTP2Response, wsgi
from greenline.http.response import write_parts
from greenline.telemetry.access_log import route

# The modules in which gunicorn waits for the client.
CLIENT_MODULES = ("gunicorn.http2.connection",)


class StreamResponse(HTTP2Response):  # type: ignore[misc]
    """gunicorn's response to a stream, with the attributes that the worker reads."""

    status_code: int | None = None
    route = "-"
    is_counted = False
    environ: dict[str, Any]
    limiter: ConcurrencyLimiter | None = None  # that counts the request
    sent_s = 0.0  # when its head was sent, in monotonic seconds

    def start_response(self, status: str, headers: Any, exc_info: Any = None) -> Any:
        """Take the application's status and headers."""
        self.route = route(self.environ)  # now: Flask forgets the request at its end
        return super().start_response(status, headers, exc_info)

    def send_headers(self) -> None:
        """Send the head, once."""
        if not self.headers_sent:
            self.sent_s = monotonic()
        super().send_headers()

    def leave_if_streaming(self, now: float) -> None:
        """
        Stop counting the request if it has streamed for ``STREAM_S``.

        :param now: monotonic seconds, float.
        """
        limiter = self.limiter
        if limiter is not None and self.headers_sent and now - self.sent_s >= STREAM_S:
            self.limiter = None
            limiter.leave()

    def write_all(self, parts: Any) -> None:
        """Send the parts of the body, and its end."""
        write_parts(self.write, parts)
        self.close()

    def write_file(self, parts: Any) -> None:
        """Send the parts of a file."""
        write_parts(self.write, parts)


def respond(
    request: Any, sock: Any, addr: Any, server: Any, connection: Any, cfg: Any
) -> tuple[StreamResponse, dict[str, Any]]:
    """
    Return the response to fill and the environ for the application.

    :param request: gunicorn's request of one stream.
    :param sock: the client's socket.
    :param addr: the client's address.
    :param server: the address of the listener.
    :param connection: gunicorn's HTTP/2 connection, which sends the frames.
    :param cfg: gunicorn's settings.
    """
    stream_id = request.stream.stream_id
    response, environ = wsgi.create(
        request, sock, addr, server, cfg, StreamResponse, (connection, stream_id)
    )
    response.environ = environ
    environ["wsgi.multithread"] = True
    environ["HTTP_VERSION"] = "2"
    environ["wsgi.early_hints"] = partial(connection.send_informational, stream_id, 103)
    environ["gunicorn.http2.send_trailers"] = partial(_set_trailers, response)
    return response, environ


def _set_trailers(response: StreamResponse, trailers: Any) -> None:
    response.trailers = list(trailers)
