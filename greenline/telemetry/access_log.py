"""
The access log: format one line of JSON for each response.

The application may set ``greenline.request_id`` and ``greenline.spent`` in the environ: seconds by
name (queued, pool, postgres, mongodb), as ``deadline`` counts them. ``proxy_ms`` is the time from
the proxy to here, null if the proxy sent none; no other field includes it. Lines of ``json_lines``
have the fields from ``time`` to ``worker`` and ``trace_id`` as well, with the same meaning.
"""

import logging
import os
import select
from collections.abc import Mapping
from time import gmtime, strftime, time
from typing import TYPE_CHECKING, Any

import msgspec

from greenline.telemetry.traceparent import trace_id

if TYPE_CHECKING:  # it has gevent, and the process of /metrics has not
    from greenline.telemetry.log_writer import LineWriter

NAME = "gunicorn.access"  # gunicorn's logger for these lines
REQUEST_ID = "greenline.request_id"  # in the environ
ROUTE = "greenline.route"  # in the environ
SHORT = 100  # characters of each text in a line that was too long
PROXY_MS = "greenline.proxy_ms"  # in the environ: the time from the proxy to here
NOTHING: Mapping[str, float] = {}
MILLISECONDS = [f".{ms:03d}Z" for ms in range(1000)]


class Entry(msgspec.Struct, gc=False):
    """
    The fields of one line.

    :param time: of the end of the request, UTC, str.
    :param level: info, str.
    :param logger: gunicorn's, str.
    :param message: the method, the path and the status, str.
    :param request_id: str; ``-`` if it has none.
    :param route: the rule of the framework that matched, str; ``-`` if unknown.
    :param worker: the process id of the worker, int.
    :param client: the client's address, str.
    :param method: the HTTP method, str.
    :param path: without the query string, str.
    :param status: of the response, int.
    :param bytes: of the response's body, int.
    :param proxy_ms: milliseconds from the proxy to the worker, float; None without a proxy's
        header.
    :param queued_ms: milliseconds until the request was admitted, float.
    :param pool_ms: milliseconds spent waiting for a connection of a pool, float.
    :param postgres_ms: milliseconds spent in Postgres, float.
    :param mongodb_ms: milliseconds spent in MongoDB, float.
    :param total_ms: milliseconds that the request took, float.
    :param trace_id: of the trace that the request belongs to, str. Default: no such field.
    """

    time: str
    level: str
    logger: str
    message: str
    request_id: str
    route: str
    worker: int
    client: str
    method: str
    path: str
    status: int
    bytes: int
    proxy_ms: float | None
    queued_ms: float
    pool_ms: float
    postgres_ms: float
    mongodb_ms: float
    total_ms: float
    trace_id: str | msgspec.UnsetType = msgspec.UNSET


class AccessLog:
    """
    Write the access log as lines of JSON.

    :param writer: writes the lines without blocking the hub.
    """

    def __init__(self, writer: "LineWriter") -> None:
        self._write = writer.write
        self._encoder = msgspec.json.Encoder()
        self._second, self._date = 0, ""
        self._worker = os.getpid()

    def log(
        self, environ: Mapping[str, Any], route: str, status: int, size_bytes: int, total_s: float
    ) -> None:
        """
        Log a response that has just been sent.

        :param environ: of the request; empty if that could not be read.
        :param route: the rule that matched, str.
        :param status: the status code, int.
        :param size_bytes: size of the body, int.
        :param total_s: seconds that the request took, float.
        """
        # The date is formatted once in a second. Without the query of the URL: it often contains
        # secrets and personal data.
        now = time()
        second = int(now)
        if second != self._second:
            self._second, self._date = second, strftime("%Y-%m-%dT%H:%M:%S", gmtime(second))
        get = environ.get
        method, path = get("REQUEST_METHOD", "-"), path_of(environ)
        spent_s = get("greenline.spent") or NOTHING
        entry = Entry(
            self._date + MILLISECONDS[int((now - second) * 1000)],
            "info",
            NAME,
            f"{method} {path} {status}",
            request_id_of(environ),
            route,
            self._worker,
            get("REMOTE_ADDR", ""),
            method,
            path,
            status,
            size_bytes,
            get(PROXY_MS),
            int(spent_s.get("queued", 0) * 10_000 + 0.5) / 10,
            int(spent_s.get("pool", 0) * 10_000 + 0.5) / 10,
            int(spent_s.get("postgres", 0) * 10_000 + 0.5) / 10,
            int(spent_s.get("mongodb", 0) * 10_000 + 0.5) / 10,
            int(total_s * 10_000 + 0.5) / 10,
        )
        if "HTTP_TRACEPARENT" in environ:
            entry.trace_id = trace_id(environ) or msgspec.UNSET
        line = self._encoder.encode(entry)
        # A longer line would not be written to a pipe in one piece.
        if len(line) >= select.PIPE_BUF:
            _shorten(entry)
            line = self._encoder.encode(entry)
        self._write(line + b"\n")


def path_of(environ: Mapping[str, Any]) -> str:
    """Return the path without the query, ``-`` if unknown."""
    path: str = environ.get("PATH_INFO", "-")
    return path if path.isascii() else path.encode("latin-1").decode("utf-8", "replace")


def printable(text: str) -> str:
    """Return *text* for a line or a terminal: a client's line ends and escapes are written out."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def request_id_of(environ: Mapping[str, Any]) -> str:
    """Return the id that the application or the client has given a request, ``-`` without one."""
    found: str = environ.get(REQUEST_ID) or environ.get("HTTP_X_REQUEST_ID", "-")
    return found


def lost(count: int) -> bytes:
    """Return a line that reports *count* lost lines."""
    report = {
        "time": strftime("%Y-%m-%dT%H:%M:%S.000Z", gmtime()),
        "level": "warning",
        "logger": __name__,
        "message": f"lines of the log were lost: {count}",
        "request_id": None,
        "route": None,
        "worker": os.getpid(),
        "lost": count,
    }
    return msgspec.json.encode(report) + b"\n"


def route(environ: Mapping[str, Any]) -> str:
    """
    Return the rule that matched, from ``greenline.flask`` or any Flask application, else ``-``.

    Call it when the response starts: Flask forgets the request at its end.
    """
    known: str | None = environ.get(ROUTE)
    if known is None:
        rule = getattr(environ.get("werkzeug.request"), "url_rule", None)
        known = getattr(rule, "rule", None)
    return known or "-"


def keep_route(environ: dict[str, Any]) -> None:
    """
    Remember the rule that matched, before the application forgets it.

    :param environ: of a request that is in progress.
    """
    known = route(environ)
    if known != "-":
        environ[ROUTE] = known


class LineHandler(logging.Handler):
    """
    Pass the records of a logger to a LineWriter, in gunicorn's own format.

    :param writer: writes the lines without blocking the hub.
    """

    def __init__(self, writer: "LineWriter") -> None:
        super().__init__()
        self._writer = writer

    def handle(self, record: logging.LogRecord) -> bool:
        """Pass *record* on, without the handler's lock; return whether its filters let it pass."""
        # emit() never waits, so no greenlet can be in the middle of it.
        found: object = self.filter(record)  # from Python 3.12 on a filter may return another one
        if found:
            self.emit(found if isinstance(found, logging.LogRecord) else record)
        return bool(found)

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.write(f"{self.format(record)}\n".encode(errors="replace"))


def _shorten(entry: Entry) -> None:
    """Shorten the texts of a line so that it fits into one piece of a pipe."""
    for field in ("message", "request_id", "client", "method", "path", "route"):
        setattr(entry, field, getattr(entry, field)[:SHORT])
