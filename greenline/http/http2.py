"""
A request over HTTP/2, in the form in which the worker answers every request.

gunicorn reads and writes the frames of the connection, and serves its streams one after the other.
"""

from functools import partial
from typing import Any

from greenline.http.gunicorn_compat import HTTP2Response, wsgi
from greenline.telemetry.access_log import route

# Where gunicorn waits for the client.
CLIENT_MODULES = ("gunicorn.http2.connection",)


class StreamResponse(HTTP2Response):  # type: ignore[misc]
    """gunicorn's response to a stream, with what the worker's own has."""

    status_code: int | None = None
    route = "-"
    environ: dict[str, Any]

    def start_response(self, status: str, headers: Any, exc_info: Any = None) -> Any:
        """Take the application's status and headers."""
        self.route = route(self.environ)
        return super().start_response(status, headers, exc_info)

    def write_all(self, parts: Any) -> None:
        """Send what the application returned, and the end of it."""
        for part in parts:
            self.write(part)
        self.close()


def respond(
    request: Any, sock: Any, addr: Any, server: Any, connection: Any, cfg: Any
) -> tuple[StreamResponse, dict[str, Any]]:
    """
    Return the response to be filled and the environ for the application.

    :param request: gunicorn's, of one stream.
    :param sock: the client's socket.
    :param addr: the client's address.
    :param server: the address of the listener.
    :param connection: gunicorn's connection, which sends the frames.
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
