"""gunicorn's lines, without what they quote."""

import logging

import pytest
from gunicorn.http import errors

from greenline.telemetry import redaction

FROM = "Invalid request from ip=::1: "


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequestLine("GET /?key=SECRET"),
        errors.InvalidRequestMethod("SECRET"),
        errors.InvalidHeader("Authorization Bearer SECRET"),
        errors.InvalidHeaderName("AUTHORIZATION BEARER SECRET"),
        errors.ObsoleteFolding('it\'s "SECRET"'),
        errors.InvalidChunkSize(b"SECRET"),
        errors.ChunkMissingTerminator(b"SECRET"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_malformed_request_says_is_not_quoted(error: Exception) -> None:
    """Its kind is there, and what it is."""
    text = redaction.redacted(f"{FROM}{error}")
    assert text.startswith(f"{FROM}{str(error).partition(' ')[0]} ")
    assert text.endswith(" [hidden]")
    assert "SECRET" not in text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Error handling request GET /a?key=SECRET", "Error handling request GET /a?[hidden]"),
        ("Error handling request /a?key=SECRET", "Error handling request /a?[hidden]"),
        ("Error handling request GET /a", "Error handling request GET /a"),
        (
            "Ignored premature client disconnection. No more data after: b'Cookie: SECRET'",
            "Ignored premature client disconnection. No more data after: [hidden]",
        ),
        (
            "Current configuration:\n  raw_env: ['OPS_TOKEN=SECRET']\n  reload: False",
            "Current configuration:\n  raw_env: [hidden]\n  reload: False",
        ),
        ("Worker was sent SIGKILL! Perhaps out of memory?",) * 2,
    ],
)
def test_each_line_that_quotes_is_known(line: str, expected: str) -> None:
    """The rest of it stays, and so do other lines."""
    assert redaction.redacted(line) == expected


def test_a_line_of_gunicorns_is_redacted_for_each_handler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever its arguments are."""
    logger = logging.getLogger("gunicorn.error")
    # gunicorn, in a test before this one, may have its lines go to no other logger.
    logger.addHandler(caplog.handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        redaction.install()
        redaction.install()
        assert len(logger.filters) == 1
        logger.error("Error handling request %s", "/?SECRET")
    finally:
        logger.filters.clear()
        logger.propagate = propagate
        logger.removeHandler(caplog.handler)
    assert caplog.messages == ["Error handling request /?[hidden]"]


def test_a_record_that_cannot_be_formatted_is_left_to_logging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The application may log there, and gets no error from it."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger = logging.getLogger("gunicorn.error")
    handler = logging.StreamHandler()
    logger.addHandler(handler)
    monkeypatch.setattr(logger, "propagate", False)
    redaction.install()
    try:
        logger.error("%d", "no number")
    finally:
        logger.removeHandler(handler)
        logger.filters.clear()
