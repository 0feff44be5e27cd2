"""A bare WSGI function that reads what it is sent, and has a small answer and a large one."""

import json
from collections.abc import Callable, Iterable
from typing import Any

SMALL = json.dumps({"status": "ok"}).encode()
LARGE = b"x" * 160_000  # as the description of our API


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer."""
    is_upload = environ["REQUEST_METHOD"] == "POST"
    if is_upload:
        environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    body = LARGE if environ["PATH_INFO"] == "/openapi.json" else SMALL
    head = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response("201 Created" if is_upload else "200 OK", head)
    return [body]
