"""The colours of the log, on a terminal and elsewhere."""

import io
import logging

import pytest

from greenline.telemetry.console import colour_levels


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def written(stream: io.StringIO, level: int) -> str:
    """Return what a logger writes to *stream*, while another handler gets the plain level."""
    logger = logging.Logger("test")
    beside = io.StringIO()
    for each in (stream, beside):
        handler = logging.StreamHandler(each)
        handler.setFormatter(logging.Formatter("[%(levelname)s] %(message)s"))
        logger.addHandler(handler)
    colour_levels(logger)
    logger.log(level, "said")
    assert beside.getvalue() == f"[{logging.getLevelName(level)}] said\n"
    return stream.getvalue()


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal with colours, whatever that of the tests is."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_terminal_shows_warnings_and_errors_in_colours() -> None:
    """The level alone: the text stays as it is, and so do other lines."""
    assert written(Terminal(), logging.WARNING) == "[\x1b[33mWARNING\x1b[0m] said\n"
    assert written(Terminal(), logging.ERROR) == "[\x1b[31mERROR\x1b[0m] said\n"
    assert written(Terminal(), logging.INFO) == "[INFO] said\n"


@pytest.mark.parametrize("variable", [("NO_COLOR", "1"), ("TERM", "dumb")], ids=lambda one: one[0])
def test_the_environment_switches_colours_off(
    variable: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NO_COLOR does, and a terminal without colours."""
    monkeypatch.setenv(*variable)
    assert written(Terminal(), logging.ERROR) == "[ERROR] said\n"


def test_a_file_gets_no_colours() -> None:
    """Only a terminal does."""
    assert written(io.StringIO(), logging.ERROR) == "[ERROR] said\n"
