"""A plain WSGI application that does what it should not."""

import os
import time
from collections.abc import Iterable
from io import BytesIO
from tempfile import TemporaryFile
from typing import Any

import gevent


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Answer as the path says."""
    path, size = environ["PATH_INFO"], 200_000
    if path == "/slow-and-large":
        time.sleep(0.5)
        start_response("200 OK", [("Content-Length", str(size))])
        return [b"x" * size]
    while path == "/held" and not os.path.exists(environ["QUERY_STRING"]):
        time.sleep(0.02)
    if path in ("/too-short", "/short-file", "/short-parts"):
        start_response("200 OK", [("Content-Length", "10")])
        if path == "/too-short":
            return [b"five!"]
        file: Any = TemporaryFile() if path == "/short-file" else BytesIO()  # noqa: SIM115
        file.write(b"five!")
        file.seek(0)
        return environ["wsgi.file_wrapper"](file)  # type: ignore[no-any-return]
    if path == "/unreadable-file":  # nothing is mapped at its beginning: an I/O error
        start_response("200 OK", [("Content-Length", "10")])
        return environ["wsgi.file_wrapper"](open("/proc/self/mem", "rb", 0))  # type: ignore[no-any-return]
    if path in ("/reads-on", "/reads-and-writes"):
        gevent.spawn(environ["wsgi.input"].read, 1)
        if path == "/reads-and-writes":
            start_response("200 OK", [])
            return (b"x" * 65_536 for _ in range(1_000))
    while path == "/stubborn":
        try:
            time.sleep(60)
        except BaseException:  # noqa: S112
            continue
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
