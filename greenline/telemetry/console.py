"""Colour the levels of log lines on a terminal, as https://no-color.org has it."""

import copy
import logging
import os
from typing import Any

COLOURS = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "1;31"}  # yellow, red


def has_colours(stream: Any) -> bool:
    """Return whether *stream* is a terminal that shows colours, and ``NO_COLOR`` is not set."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not is_plain and bool(stream.isatty())


def coloured(text: str, codes: str) -> str:
    """
    Return *text* between the escape sequences that switch colours on and off.

    :param codes: of SGR, separated by semicolons, str: 1 is bold, 31 red, 33 yellow.
    """
    return f"\x1b[{codes}m{text}\x1b[0m"


def line(handler: Any, record: logging.LogRecord) -> str:
    """
    Return the line of *record*, with a coloured level from warnings on if a terminal shows it.

    :param handler: a ``logging.StreamHandler``.
    """
    codes = COLOURS.get(record.levelno)
    # A formatter of another class may look the level up by its name, or colour it.
    is_plain = type(handler.formatter) in (logging.Formatter, type(None))
    if codes is not None and is_plain and has_colours(handler.stream):
        record = copy.copy(record)  # other handlers write it, too: to a file, without colours
        record.levelname = coloured(record.levelname, codes)
    return logging.Handler.format(handler, record)
