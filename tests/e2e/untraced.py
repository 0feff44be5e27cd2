"""A WSGI application that shows the header of its trace, and what of OpenTelemetry is imported."""

import json
import sys
from typing import Any


def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    found = [name for name in sys.modules if name.startswith("opentelemetry")]
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps([environ.get("HTTP_TRACEPARENT"), found]).encode()]
