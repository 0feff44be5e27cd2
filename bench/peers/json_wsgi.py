"""A small JSON object from a bare WSGI function: what the server alone costs."""

import json
from collections.abc import Callable, Iterable
from typing import Any


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer."""
    body = json.dumps({"status": "ok"}).encode()
    head = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response("200 OK", head)
    return [body]
