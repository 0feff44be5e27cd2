"""
Record spans with OpenTelemetry: of requests, and of what they wait for.

The span of a request has the sender's as its parent and is current in the request's greenlet; the
waits, statements and commands of the request are its children. Only what runs under a span that is
recorded is recorded, so what a worker does by itself is not.

It imports OpenTelemetry's API, so import it only where :mod:`greenline.worker.tracing` is on.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from time import monotonic, time_ns
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Span, SpanKind, StatusCode

import greenline
from greenline.telemetry.request_counts import MAX_KEPT, METHODS

WAIT = "wait for a connection"
FOREIGN = Context()  # of no other request: a handler that is used again may have one

Respond = Callable[[Any, dict[str, Any], Any, float, Any], None]

# Of the provider that is set last: the application is loaded later.
tracer = trace.get_tracer("greenline", greenline.__version__)


class _Headers(Getter[Mapping[str, Any]]):
    """Read the headers of an environ."""

    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        value = carrier.get(f"HTTP_{key.upper().replace('-', '_')}")
        return None if value is None else [value]

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        return [key[5:].lower().replace("_", "-") for key in carrier if key.startswith("HTTP_")]


_headers = _Headers()


def traced(respond: Respond, statuses: Mapping[type, str]) -> Respond:
    """
    Return the function of the worker that calls the application, within a span of the request.

    :param respond: takes the application, the environ, the response, the time of the monotonic
        clock at which the request began, and the request.
    :param statuses: those of the error responses of the worker, by the class of the error.
    """

    def respond_in_span(
        application: Any, environ: dict[str, Any], response: Any, started: float, request: Any
    ) -> None:
        outer = propagate.extract(environ, FOREIGN, _headers)
        span = _begin(environ, outer, started)
        token = context.attach(trace.set_span_in_context(span, outer))
        failed: type | None = None
        try:
            respond(application, environ, response, started, request)
        except StopIteration:  # the application has taken over the socket
            raise
        except BaseException as error:
            failed = type(error)
            raise
        finally:
            context.detach(token)
            status = response.status_code
            if failed is not None and not response.headers_sent:  # an error response follows
                status = int(statuses.get(failed, "500")[:3])
            _end(span, environ, response.route, status or 0, failed)

    return respond_in_span


def _begin(environ: Mapping[str, Any], outer: Context, started: float) -> Span:
    now_ns, method = time_ns(), environ["REQUEST_METHOD"]
    begun_ns = now_ns - int((monotonic() - started) * 1e9)
    is_known = method in METHODS
    address, port = _address(environ.get("HTTP_HOST") or environ["SERVER_NAME"])
    attributes: dict[str, str | int] = {
        "http.request.method": method if is_known else "_OTHER",
        "url.scheme": environ["wsgi.url_scheme"],
        # Without the query: it often contains secrets and personal data.
        "url.path": environ["PATH_INFO"].encode("latin-1").decode(errors="replace"),
        "server.address": address,
        "client.address": environ.get("REMOTE_ADDR", ""),
        "user_agent.original": environ.get("HTTP_USER_AGENT", ""),
    }
    if port:
        attributes["server.port"] = port
    name = method if is_known else "HTTP"
    span = tracer.start_span(name, outer, SpanKind.SERVER, attributes, start_time=begun_ns)
    if span.is_recording() and (spent := environ.get("greenline.spent")):
        # It has waited for nothing but the concurrency limit until now.
        waited_ns = int(spent.get("queued", 0) * 1e9)
        inner = trace.set_span_in_context(span, outer)
        _past("wait for admission", inner, now_ns - waited_ns, now_ns)
    return span


@lru_cache(MAX_KEPT)
def _address(host: str) -> tuple[str, int | None]:
    """Return the name and the port in a Host header."""
    try:
        found = urlsplit(f"//{host}")
        return found.hostname or host, found.port
    except ValueError:
        return host, None


def _end(
    span: Span, environ: Mapping[str, Any], route: str, status: int, failed: type | None
) -> None:
    if span.is_recording():
        if route != "-":
            span.update_name(f"{environ['REQUEST_METHOD']} {route}")
            span.set_attribute("http.route", route)
        if status:
            span.set_attribute("http.response.status_code", status)
        if status >= 500 or (failed is not None and status < 400):  # the rest of it is missing
            fail(span, str(status) if failed is None else failed.__qualname__)
    span.end()


def _past(name: str, inner: Context | None, begun_ns: int, ended_ns: int, **more: str) -> None:
    tracer.start_span(name, inner, attributes=more, start_time=begun_ns).end(ended_ns)


def note_wait(what: str, seconds: float) -> None:
    """
    Record a wait for a connection that has just ended.

    :param what: ``pool``, for one that others use, or ``connecting``, for one that is made.
    :param seconds: how long it took, float.
    """
    if trace.get_current_span().is_recording():
        now_ns = time_ns()
        _past(WAIT, None, now_ns - int(seconds * 1e9), now_ns, **{"greenline.wait": what})


def fail(span: Span, kind: str) -> None:
    """
    Note in *span* that what it stands for has failed.

    :param span: a span that has not ended.
    :param kind: the class of the error, or its code.
    """
    # Not the error's text, which has values: the key that is there already, for instance.
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)
