"""
Tell of each answer: a line in the access log, and a count for all workers.

1. ``GREENLINE_ACCESS_LOG=json`` writes lines of ours where gunicorn's ``accesslog`` says, to
   stdout where it says nothing. Else the access log is gunicorn's, in its format and where it says.
2. Whoever reads it, or does not, never holds up the hub.
3. What was counted and what was logged are the same answers.
"""

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from gunicorn.glogging import Logger

from greenline import access
from greenline.access import AccessLog, LineHandler
from greenline.counters import Counters
from greenline.line_writer import LineWriter, open_log


class Journal:
    """What one worker tells; *log* is gunicorn's."""

    def __init__(self, cfg: Any, log: Any, counters: Counters, *, as_json: bool) -> None:
        self._log = log
        self._counters = counters
        self._writers: list[tuple[LineWriter, str]] = []
        self._json: AccessLog | None = None
        if as_json:
            self._json = AccessLog(self._writer(cfg.accesslog or "-"))
            _gunicorns_own(log.access_log)
        elif log.access_log_enabled:
            self._relieve(log.access_log)
        # A logger of another class tells others too: statsd, for instance.
        is_other = type(log).access is not Logger.access
        self._by_gunicorn = is_other or (log.access_log_enabled and not as_json)

    def tell(self, environ: Mapping[str, Any], request: Any, response: Any, took_s: float) -> None:
        """Tell of the answer that was sent, or of as much of it as was."""
        if self._by_gunicorn:
            self._log.access(response, request, environ, timedelta(seconds=took_s))
        self._tell(environ, response.route, response.status_code or 500, response.sent, took_s)

    def tell_refusal(self, environ: Mapping[str, Any], status: int, took_s: float = 0.0) -> None:
        """Tell of an answer without the application; gunicorn logs its own."""
        self._tell(environ, access.route(environ), status, 0, took_s)

    def _tell(
        self, environ: Mapping[str, Any], route: str, status: int, size_bytes: int, took_s: float
    ) -> None:
        if self._json is not None:
            self._json.log(environ, route, status, size_bytes, took_s)
        self._counters.count(("requests", route, status))
        if status == 504:
            self._counters.count(("deadlines",))

    def reopen(self) -> None:
        """Go on in new files, after a rotation."""
        for writer, path in self._writers:
            if path != "-":
                writer.reopen(path)

    def close(self) -> None:
        """Write what waits, for a second at most."""
        for writer, _ in self._writers:
            writer.close(1.0)

    def _writer(self, path: str) -> LineWriter:
        writer = LineWriter(open_log(path), access.lost)
        self._writers.append((writer, path))
        return writer

    def _relieve(self, logger: logging.Logger) -> None:
        """Let gunicorn's own handlers write through us: a full pipe would stop the hub."""
        for handler in _gunicorns_own(logger):
            ours = LineHandler(self._writer(getattr(handler, "baseFilename", "-")))
            ours.setFormatter(handler.formatter)
            logger.addHandler(ours)


def _gunicorns_own(logger: logging.Logger) -> list[logging.Handler]:
    """Return, and take away, those that ``accesslog`` made; a logconfig's and syslog's stay."""
    own: list[logging.Handler] = [
        handler
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and getattr(handler, "_gunicorn", False)
    ]
    for handler in own:
        logger.removeHandler(handler)
    return own
