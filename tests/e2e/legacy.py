"""A plain WSGI application that knows nothing of the worker, for the tests of the worker."""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.validate import validator

Start = Callable[..., Any]
PART = b"x" * 65_536
counts = {"closed": 0, "started": 0, "busy": 0}


class Endless:
    """A body of 64 MB, part by part."""

    def __iter__(self) -> Iterator[bytes]:
        return iter([PART] * 1_000)

    def close(self) -> None:
        counts["closed"] += 1


def app(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
    """Answer as the path says."""
    path = environ["PATH_INFO"]
    if path == "/endless":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return Endless()
    if path == "/busy-parts":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return (_busy() for _ in range(3_000))
    if path == "/large":
        start_response("200 OK", [("Content-Length", str(len(PART) * 1_000))])
        return [PART * 1_000]
    if path == "/file":
        file = tempfile.TemporaryFile()  # noqa: SIM115
        file.write(PART * 1_000)
        file.seek(0)
        start_response("200 OK", [("Content-Length", str(len(PART) * 1_000))])
        return environ["wsgi.file_wrapper"](file)  # type: ignore[no-any-return]
    status, body = _small(path, environ)
    start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


def _small(path: str, environ: dict[str, Any]) -> tuple[str, bytes]:
    if path == "/closed":
        return "200 OK", str(counts["closed"]).encode()
    if path == "/started":
        return "200 OK", str(counts["started"]).encode()
    if path == "/read":
        counts["started"] += 1
        return "200 OK", str(len(environ["wsgi.input"].read(-1))).encode()
    if path == "/swallow":
        try:
            environ["wsgi.input"].read()
        except Exception as error:
            return "500 Internal Server Error", type(error).__name__.encode()
    if path == "/busy":
        return "200 OK", _busy()
    if path == "/been-busy":
        return "200 OK", str(counts["busy"]).encode()
    if path == "/environ":
        return "200 OK", "\n".join(f"{key}={value!r}" for key, value in environ.items()).encode()
    if path == "/complain":
        environ["wsgi.errors"].write("a complaint\n")
        environ["wsgi.errors"].flush()
    return "200 OK", b"ok"


def _busy() -> bytes:
    """Keep the processor busy for a millisecond."""
    counts["busy"] += 1
    end = time.perf_counter() + 0.001
    while time.perf_counter() < end:
        pass
    return b"busy"


validated = validator(app)
