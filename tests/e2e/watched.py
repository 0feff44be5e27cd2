"""A WSGI application that knows its routes, waits, and blocks the hub."""

import time
from pathlib import Path
from typing import Any

from gevent.monkey import get_original


def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    path = environ["PATH_INFO"]
    status = "200 OK"
    if path.startswith("/books/"):
        environ["greenline.route"] = "/books/<id>"
    elif path == "/wait":
        environ["greenline.route"] = path
        time.sleep(float(environ["QUERY_STRING"]))
    elif path == "/block":
        Path(environ["QUERY_STRING"]).touch()
        get_original("time", "sleep")(3)
    elif path != "/count":
        status = "404 Not Found"
    start_response(status, [("Content-Length", "2")])
    return [b"ok"]
