"""Read the trace that a request belongs to, and pass it on, as W3C's Trace Context has it."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from greenline.hub.deadline import request_environ

# https://www.w3.org/TR/trace-context/#traceparent-header: four fields in lower case, none of the
# two ids all zeros. A version beyond 00 may have more fields; ff is none.
VALID = re.compile(
    r"(?:00(?=.{53}\Z)|(?!00|ff)[0-9a-f]{2})"
    r"-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)


def trace_id(environ: Mapping[str, Any]) -> str | None:
    """
    Return the trace's id, 32 digits in hexadecimal; None without a valid ``traceparent``.

    :param environ: of the request.
    """
    found = VALID.fullmatch(environ.get("HTTP_TRACEPARENT", ""))
    return None if found is None else found[1]


# Adds the headers of the current span; None: no spans are recorded.
inject: Callable[[dict[str, str]], None] | None = None


def headers() -> dict[str, str]:
    """
    Return the headers that pass the trace of the request on to another service.

    Without spans they are those that arrived, unchanged; with OpenTelemetry, those of the current
    span.

    :returns: ``traceparent``, and ``tracestate`` where there is one; empty outside of a request, or
        without a valid ``traceparent``.
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
