"""
Log and count each response.

``GREENLINE_ACCESS_LOG=json`` writes lines of JSON to the file that gunicorn's ``accesslog`` names,
by default to stdout; otherwise gunicorn formats the access log. No log blocks the hub: neither
these nor gunicorn's error log, ``logging`` to standard output or error, or ``sys.stderr``. Files
that the application opens, and its prints to standard output, are not covered.
"""

import atexit
import logging
import sys
from datetime import timedelta
from math import inf
from time import monotonic
from typing import Any

from gunicorn.glogging import Logger, loggers

from greenline.telemetry import access_log
from greenline.telemetry.access_log import AccessLog, LineHandler
from greenline.telemetry.counters import Counters
from greenline.telemetry.log_stream import LineStream
from greenline.telemetry.log_writer import GATHER_S, LineWriter, open_log
from greenline.telemetry.reports import Reports
from greenline.telemetry.request_counts import RequestCounts

CLOSE_S = 1.0
DEADLINE, FAILED = 504, 500
SLOW_S = 1.0  # a request that takes longer is reported, where no setting says what is slow
ERROR_GATHER_S = 0.005  # short: lines that wait are lost when the process is killed

log = logging.getLogger(__name__)


class ErrorLogHandler(logging.Handler):
    """
    Write to gunicorn's error log, unless the application has configured logging.

    :param error_log: gunicorn's logger.
    """

    def __init__(self, error_log: logging.Logger) -> None:
        super().__init__()
        self._error_log = error_log

    def emit(self, record: logging.LogRecord) -> None:
        # Without a handler Python writes the bare message to stderr, without time and level.
        if not logging.root.handlers:
            self._error_log.handle(record)


class RequestLog:
    """
    The logs of one worker.

    :param cfg: gunicorn's settings.
    :param log: gunicorn's logger object.
    :param counters: counts the responses.
    :param as_json: whether to write the access log as JSON, bool.
    :param has_metrics: whether to note the durations for ``/metrics``, bool. Default False.
    :param reports: get the requests that are slow or fail. Default None: they are not kept.
    :param slow_s: a request that takes longer is logged, float seconds; None, the default: none is.
    """

    def __init__(
        self,
        cfg: Any,
        log: Any,
        counters: Counters,
        *,
        as_json: bool,
        has_metrics: bool = False,
        reports: Reports | None = None,
        slow_s: float | None = None,
    ) -> None:
        self._log = log
        self._counters = counters
        counts = RequestCounts(counters)
        self._note = counts.note if has_metrics else None
        self._reports = reports
        self._logged_s = inf if slow_s is None else slow_s
        self._reported_s = SLOW_S if slow_s is None else slow_s
        # Called for each response before its head is sent: a worker that is killed in between has
        # counted more answers than clients have got, and never fewer.
        self.count = counts.count
        self._writers: list[tuple[LineWriter, str | int]] = []
        # After gunicorn's last line, which may be of an error in what follows.
        atexit.register(self._close)
        self._json: AccessLog | None = None
        # Before 25.3, gunicorn's logger has no such attribute, and its access() decides.
        is_enabled = getattr(log, "access_log_enabled", True)
        if as_json:
            self._json = AccessLog(self._writer(cfg.accesslog or "-"))
            _taken_away(log.access_log)
        elif is_enabled:
            self._relieve(log.access_log)
        self._error_files: list[tuple[Any, LineWriter]] = [
            (handler, self._writer(handler.baseFilename, ERROR_GATHER_S))
            for handler in log.error_log.handlers
            if isinstance(handler, logging.FileHandler) and _is_gunicorns_own(handler)
        ]
        self._relieve_error_files()
        logging.getLogger("greenline").addHandler(ErrorLogHandler(log.error_log))
        for stream in (sys.__stdout__, sys.__stderr__):
            self._relieve_standard(stream)
        # A logger of another class may also report elsewhere, such as to statsd.
        is_other = type(log).access is not Logger.access
        self._by_gunicorn = is_other or (is_enabled and not as_json)

    def record(self, environ: dict[str, Any], request: Any, response: Any, took_s: float) -> None:
        """
        Log a response that was sent, even if only a part of it was.

        :param environ: of the request.
        :param request: the request.
        :param response: the response, with ``route``, ``status_code`` and ``sent``; it is counted
            here unless its ``is_counted`` says that it was.
        :param took_s: seconds that the request took, float.
        """
        if self._by_gunicorn:
            self._log.access(response, request, environ, timedelta(seconds=took_s))
        status = response.status_code or 500
        if not response.is_counted:
            self.count(environ, response.route, status)
        self._record(environ, response.route, status, response.sent, took_s)

    def record_error(self, environ: dict[str, Any], status: int, took_s: float = 0.0) -> None:
        """
        Log and count an error response that gunicorn or the worker has sent.

        :param environ: of the request, or the part of it that is known.
        :param status: the status code, int.
        :param took_s: seconds that the request took, float, default 0.
        """
        route = access_log.route(environ)
        self.count(environ, route, status)
        self._record(environ, route, status, 0, took_s)

    def _record(
        self, environ: dict[str, Any], route: str, status: int, size_bytes: int, took_s: float
    ) -> None:
        # Before the access line, which has the id that the line of a slow request gives it.
        if status >= FAILED or took_s >= self._reported_s:
            self._report(environ, route, status, took_s)
        if self._json is not None:
            self._json.log(environ, route, status, size_bytes, took_s)
        if self._note is not None:
            self._note(environ, route, took_s)
        if status == DEADLINE:
            self._counters.count(("deadlines",))

    def _report(self, environ: dict[str, Any], route: str, status: int, took_s: float) -> None:
        if route != "-":
            environ[access_log.ROUTE] = route  # for the line: Flask has forgotten the request
        method = access_log.printable(environ.get("REQUEST_METHOD", "-"))
        path = access_log.printable(access_log.path_of(environ))
        parts_s = dict(environ.get("greenline.spent") or {})
        if took_s >= self._logged_s:
            shown = {**parts_s, "application": max(took_s - sum(parts_s.values()), 0.0)}
            parts = ", ".join(f"{name} {part_s * 1000:.0f}" for name, part_s in shown.items())
            found = environ.get("greenline.slow_waits")
            waits = "; ".join(["", *map(str, found.shown())]) if found is not None else ""
            log.warning(
                "slow request: %s %s, route %s, %d, took %.0f ms: %s%s",
                method, path, route, status, took_s * 1000, parts, waits,
            )  # fmt: skip
        if self._reports is not None:
            self._reports.note_request(
                request_id=access_log.printable(access_log.request_id_of(environ)),
                method=method,
                path=path,
                route=route,
                status=status,
                took_s=took_s,
                parts_s=parts_s,
            )

    def reopen(self) -> None:
        """Continue in new files after a rotation; call it after gunicorn has opened its own."""
        for writer, path in self._writers:
            writer.reopen(path)
        self._relieve_error_files()

    def _close(self) -> None:
        """Write the lines that wait, for ``CLOSE_S`` at most."""
        until = monotonic() + CLOSE_S
        for timeout_s in (0.0, CLOSE_S):  # first let all begin to end, then wait for each
            for writer, _ in self._writers:
                writer.close(min(timeout_s, until - monotonic()))

    def _writer(self, path: str | int, gather_s: float = GATHER_S) -> LineWriter:
        writer = LineWriter(open_log(path), access_log.lost, gather_s=gather_s)
        self._writers.append((writer, path))
        return writer

    def _relieve(self, logger: logging.Logger) -> None:
        """Replace gunicorn's own handlers, whose writes block the hub when a pipe is full."""
        for handler in _taken_away(logger):
            ours = LineHandler(self._writer(getattr(handler, "baseFilename", "-")))
            ours.setFormatter(handler.formatter)
            logger.addHandler(ours)

    def _relieve_error_files(self) -> None:
        for handler, writer in self._error_files:
            # An application that configures logging closes the files of all handlers.
            handler.setStream(LineStream(handler.stream or handler._open(), writer))

    def _relieve_standard(self, stream: Any) -> None:
        """Replace *stream* (standard output or error) in all handlers, and as ``sys.stderr``."""
        handlers = [
            handler
            for logger in (logging.root, *loggers())
            for handler in logger.handlers
            if isinstance(handler, logging.StreamHandler)
            and handler.stream is stream
            # logging's own for sys.stderr, which dill has: it follows what is set below.
            and not _is_read_only(getattr(type(handler), "stream", None))
        ]
        if stream is None or not (handlers or stream is sys.stderr):
            return
        ours: Any = LineStream(stream, self._writer(stream.fileno(), ERROR_GATHER_S))
        for handler in handlers:
            handler.setStream(ours)
        # Not sys.stdout: prints are the application's own output.
        if stream is sys.stderr:
            sys.stderr = ours


def _is_read_only(attribute: Any) -> bool:
    return isinstance(attribute, property) and attribute.fset is None


def _taken_away(logger: logging.Logger) -> list[logging.Handler]:
    """Remove and return the handlers of ``accesslog``; those of a logconfig and syslog stay."""
    own = [handler for handler in logger.handlers if _is_gunicorns_own(handler)]
    for handler in own:
        logger.removeHandler(handler)
    return own


def _is_gunicorns_own(handler: logging.Handler) -> bool:
    is_own = getattr(handler, "_gunicorn", False)
    return isinstance(handler, logging.StreamHandler) and is_own
