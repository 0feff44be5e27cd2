"""An application that tells what it was given, and answers in every way that WSGI allows."""

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from greenline.http.gunicorn_compat import VERSION

TEXT = [("Content-Type", "text/plain")]
BODY = b"0123456789"


class Application:
    """Remembers each request: its environ without what is Greenline's, and what was read of it."""

    def __init__(self) -> None:
        self.seen: list[list[Any]] = []
        self.closed = 0

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        plain = {
            key: value if isinstance(value, PLAIN) else "an object"
            for key, value in environ.items()
            if not key.startswith(IGNORED)
        }
        entry: list[Any] = [plain, None]
        self.seen.append(entry)
        path = environ["PATH_INFO"]
        if path.startswith("/respond/"):
            return RESPONSES[path.removeprefix("/respond/")](self, environ, start_response)
        try:
            entry[1] = _read(path, environ["wsgi.input"])
        except Exception as error:
            entry[1] = type(error).__name__
            if path != "/swallow":
                raise
        body = f"{path} {entry[1]!r}".encode("latin-1", "backslashreplace")
        start_response("200 OK", [*TEXT, ("Content-Length", str(len(body)))])
        return [body]


PLAIN = (str, int, tuple, bool)
# What is ours; gunicorn 23 and 24 have no early hints.
IGNORED = ("greenline.",) if VERSION >= (25, 0) else ("greenline.", "wsgi.early_hints")


def _read(path: str, body: Any) -> Any:
    if path == "/unread":
        return None
    if path == "/part":
        return body.read(2)
    if path == "/lines":
        return [body.readline(), body.readline(1), body.readline(), body.read(), body.read()]
    if path == "/list":
        return [body.readlines(), body.readline()]
    if path == "/parts":
        return [body.read(1), body.read(0), body.readline(), *body, body.read(5)]
    return body.read()


Respond = Callable[[Application, dict[str, Any], Any], Any]
RESPONSES: dict[str, Respond] = {}


def _kind(name: str) -> Callable[[Respond], Respond]:
    def keep(function: Respond) -> Respond:
        RESPONSES[name] = function
        return function

    return keep


def _simple(status: str, headers: list[tuple[str, Any]], parts: list[Any]) -> Respond:
    def respond(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
        start_response(status, headers)
        return parts

    return respond


def _with(name: str, value: Any) -> list[tuple[str, Any]]:
    return [*TEXT, (name, value), ("Content-Length", "10")]


RESPONSES |= {
    "204": _simple("204 No Content", [("Content-Length", "0")], []),
    "304": _simple("304 Not Modified", [("ETag", '"a"'), ("Content-Length", "10")], [BODY]),
    "205": _simple("205 Reset Content", [("Content-Length", "0")], [b""]),
    "100": _simple("100 Continue", [], []),
    "404": _simple("404 Not Found", _with("A", "b"), [BODY]),
    "no-length": _simple("200 OK", TEXT, [BODY]),
    "parts": _simple("200 OK", TEXT, [b"a", b"", b"bc", b"", b"d"]),
    "incomplete": _simple("200 OK", [("Content-Length", "20")], [BODY]),
    "long": _simple("200 OK", [("Content-Length", "3")], [b"01", BODY, BODY]),
    "empty": _simple("200 OK", [("Content-Length", "0")], []),
    "nothing": _simple("200 OK", TEXT, []),
    "hop": _simple(
        "200 OK",
        [*TEXT, ("Connection", "close"), ("Keep-Alive", "1"), ("Transfer-Encoding", "gzip"),
         ("TE", "x"), ("Upgrade", "h3"), ("Trailers", "x"), ("Proxy-Authenticate", "x")],
        [BODY],
    ),
    "server": _simple("200 OK", [*TEXT, ("Server", "mine"), ("Date", "mine")], [BODY]),
    "upgrade": _simple(
        "101 Switching Protocols", [("Upgrade", "websocket"), ("Connection", "Upgrade")], []
    ),
    "space": _simple("200 OK", _with("A", " \tb c\t "), [BODY]),
    "latin": _simple("200 \xe9t\xe9", _with("A", "\xe9\xff"), [BODY]),
    "unicode": _simple("200 OK", _with("A", "\u20ac"), [BODY]),
    "bad-status": _simple("200", _with("A", "b"), [BODY]),
    "bad-name": _simple("200 OK", _with("A b", "c"), [BODY]),
    "bad-value": _simple("200 OK", _with("A", "b\r\nC: d"), [BODY]),
    "not-a-string": _simple("200 OK", _with("A", 1), [BODY]),
    "two-lengths": _simple("200 OK", [("Content-Length", "3"), ("content-length", "10")], [BODY]),
    "bad-length": _simple("200 OK", [("Content-Length", "ten")], [BODY]),
    "text": _simple("200 OK", TEXT, ["text"]),
}  # fmt: skip


@_kind("generator")
def _generator(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
    class Closing:
        def __iter__(self) -> Iterator[bytes]:
            start_response("200 OK", TEXT)
            yield b"a"
            yield b"b"

        def close(self) -> None:
            app.closed += 1

    return Closing()


@_kind("write")
def _write(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
    write = start_response("200 OK", [*TEXT, ("Content-Length", "12")])
    write(b"a")
    write(b"b")
    return [BODY]


@_kind("twice")
def _twice(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", TEXT)
    start_response("200 OK", TEXT)
    return [BODY]


@_kind("replaced")
def _replaced(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [*TEXT, ("Content-Length", "3"), ("A", "b")])
    start_response("500 Oops", [("Content-Length", "10")], (ValueError, ValueError("x"), None))
    return [BODY]


@_kind("exc-late")
def _exc_late(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", TEXT)(b"early")
    start_response("500 Oops", TEXT, (ValueError, ValueError("x"), None))
    return [BODY]


@_kind("error")
def _error(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
    raise RuntimeError("the application's")


@_kind("oserror")
def _oserror(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
    raise FileNotFoundError(2, "no such file")


@_kind("stop")
def _stop(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
    raise StopIteration


@_kind("late-error")
def _late_error(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [*TEXT, ("Content-Length", "20")])

    def parts() -> Iterator[bytes]:
        yield BODY
        raise RuntimeError("the application's")

    return parts()


@_kind("no-start")
def _no_start(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
    return [BODY]


@_kind("close-me")
def _close_me(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [*TEXT, ("Connection", "close"), ("Content-Length", "10")])
    return [BODY]


def _file(environ: dict[str, Any], length: int | None) -> Any:
    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(b"skipped" + BODY * 10)
    file.flush()
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    file.seek(7)
    return environ["wsgi.file_wrapper"](file)


@_kind("file")
def _whole_file(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", TEXT)
    return _file(environ, None)


@_kind("file-length")
def _part_of_file(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [("Content-Length", "23")])
    return _file(environ, 23)


@_kind("file-like")
def _file_like(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", TEXT)
    return environ["wsgi.file_wrapper"](io.BytesIO(BODY), 4)


@_kind("hints")
def _hints(app: Application, environ: dict[str, Any], start_response: Any) -> Any:
    environ["wsgi.early_hints"]([("Link", "</a.css>; rel=preload")])
    start_response("200 OK", [("Content-Length", "10")])
    environ["wsgi.early_hints"]([("Link", "</b.css>; rel=preload")])
    return [BODY]


app = Application()
