"""Pass the trace of a request on to the services that the application asks."""

from collections.abc import Callable

from greenline.hub.deadline import request_environ
from greenline.telemetry.traceparent import trace_id

# Adds the headers of the current span; None: no spans are recorded.
inject: Callable[[dict[str, str]], None] | None = None


def headers() -> dict[str, str]:
    """
    Return the headers of https://www.w3.org/TR/trace-context/ for a request to another service.

    :returns: without OpenTelemetry ``traceparent`` and ``tracestate`` as they have arrived; empty
        outside of a request, and without a valid ``traceparent``. With it, what its propagators
        (``OTEL_PROPAGATORS``) write of the current span.
    """
    found: dict[str, str] = {}
    if inject is not None:
        inject(found)
        return found
    environ = request_environ()
    if environ is not None and trace_id(environ) is not None:
        found["traceparent"] = environ["HTTP_TRACEPARENT"]
        if state := environ.get("HTTP_TRACESTATE"):
            found["tracestate"] = state
    return found
