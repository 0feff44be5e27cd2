"""A WSGI application that shows the headers of its trace, and what of OpenTelemetry is imported."""

import json
import sys
from typing import Any

from greenline.hub import trace_context


def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    found = [name for name in sys.modules if name.startswith("opentelemetry")]
    start_response("200 OK", [("Content-Type", "application/json")])
    passed_on = trace_context.headers()
    return [json.dumps([environ.get("HTTP_TRACEPARENT"), passed_on, found]).encode()]
