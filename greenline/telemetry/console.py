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


def colour_levels(logger: logging.Logger) -> None:
    """Colour the levels of the lines that *logger* writes to terminals, from warnings on."""
    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler) and has_colours(handler.stream):
            handler.setFormatter(ColouredLevels(handler.formatter or logging.Formatter()))


class ColouredLevels(logging.Formatter):
    """
    Format records with a coloured level.

    :param plain: formats them otherwise.
    """

    def __init__(self, plain: logging.Formatter) -> None:
        super().__init__()
        self._plain = plain

    def format(self, record: logging.LogRecord) -> str:
        codes = COLOURS.get(record.levelno)
        if codes is not None:
            record = copy.copy(record)  # other handlers write it, too: to a file, without colours
            record.levelname = coloured(record.levelname, codes)
        return self._plain.format(record)
