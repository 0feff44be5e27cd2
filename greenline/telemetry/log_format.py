"""
Format what ``logging`` writes to standard output and error: as JSON, or with colours on a terminal.

It replaces the ``format`` method of ``logging.StreamHandler``, in the arbiter, before it logs its
first line. So it applies to gunicorn's lines as to those of the application, whenever that
configures its handlers, and to Python's handler of last resort. Handlers that write elsewhere keep
their formatters, but for gunicorn's own, of its error log.
"""

import logging
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from greenline.telemetry import access_log, console
from greenline.telemetry.pieces import piece_bytes

STANDARD = 1, 2  # the descriptors
Environ = Callable[[], dict[str, Any] | None]
_is_json = False


def install(*, as_json: bool, environ: Environ) -> None:
    """
    Format the lines of this process and of those that it forks; a second call changes nothing.

    :param as_json: as JSON, bool; else with colours, and not at all where there is no terminal.
    :param environ: returns the environ of the request that the caller serves, or None.
    """
    global _is_json
    if as_json:
        line = _json(environ)
        _is_json = True
    elif any(map(console.has_colours, filter(None, (sys.stdout, sys.stderr)))):
        line = console.line
    else:
        return

    def format_(handler: Any, record: logging.LogRecord) -> str:
        if is_standard(handler) and record.name != access_log.NAME:
            return line(handler, record)
        return logging.Handler.format(handler, record)

    logging.StreamHandler.format = format_  # type: ignore[method-assign, assignment]


def is_json() -> bool:
    """Return whether lines of this process are JSON."""
    return _is_json


def is_standard(handler: Any) -> bool:
    """
    Return whether *handler* writes to standard output or error, or is gunicorn's own.

    :param handler: a ``logging.StreamHandler``.
    """
    if isinstance(handler, logging.FileHandler):
        return getattr(handler, "_gunicorn", False)
    try:
        return handler.stream.fileno() in STANDARD
    except (AttributeError, OSError, ValueError):  # a stream in memory, or a closed one
        return False


def _json(environ: Environ) -> Callable[[Any, logging.LogRecord], str]:
    # Not imported without the setting: its library is an extra.
    from greenline.telemetry.json_lines import JsonLines

    @cache
    def formatter(max_bytes: int) -> JsonLines:
        return JsonLines(environ, max_bytes)

    def line(handler: Any, record: logging.LogRecord) -> str:
        return formatter(piece_bytes(handler.stream.fileno())).format(record)

    return line
