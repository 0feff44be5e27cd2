"""The colours of the log, on a terminal and elsewhere."""

import io
import logging

import pytest

from greenline.telemetry import console

FORMAT = logging.Formatter("[%(levelname)s] %(message)s")


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class ByName(logging.Formatter):
    """A formatter that looks the level up."""

    def format(self, record: logging.LogRecord) -> str:
        return {"ERROR": "!"}[record.levelname] + record.getMessage()


def written(stream: io.StringIO, level: int, formatter: logging.Formatter | None = FORMAT) -> str:
    """Return the line of a record for *stream*; the record stays as it was."""
    record = logging.LogRecord("test", level, "", 0, "said", (), None)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    line = console.line(handler, record)
    assert record.levelname == logging.getLevelName(level)
    return line


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal with colours, whatever that of the tests is."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_terminal_shows_warnings_and_errors_in_colours() -> None:
    """The level alone: the text stays as it is, and so do other lines."""
    assert written(Terminal(), logging.WARNING) == "[\x1b[33mWARNING\x1b[0m] said"
    assert written(Terminal(), logging.ERROR) == "[\x1b[31mERROR\x1b[0m] said"
    assert written(Terminal(), logging.INFO) == "[INFO] said"
    assert written(Terminal(), logging.ERROR, None) == "said"


def test_a_formatter_of_another_class_gets_the_plain_level() -> None:
    """It may look it up, or have colours of its own."""
    assert written(Terminal(), logging.ERROR, ByName()) == "!said"


@pytest.mark.parametrize("variable", [("NO_COLOR", "1"), ("TERM", "dumb")], ids=lambda one: one[0])
def test_the_environment_switches_colours_off(
    variable: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NO_COLOR does, and a terminal without colours."""
    monkeypatch.setenv(*variable)
    assert written(Terminal(), logging.ERROR) == "[ERROR] said"


def test_a_file_gets_no_colours() -> None:
    """Only a terminal does."""
    assert written(io.StringIO(), logging.ERROR) == "[ERROR] said"
