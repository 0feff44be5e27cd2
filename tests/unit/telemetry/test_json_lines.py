"""Records as lines of JSON: their fields, whatever they hold, and their length."""

import json
import logging
import os
import select
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from greenline.telemetry.json_lines import JsonLines

NAMES = ["time", "level", "logger", "message", "request_id", "route", "worker"]
ENVIRON = {"HTTP_X_REQUEST_ID": "r1", "greenline.route": "/books/<int:id>"}


class Opaque:
    """An object whose text is a secret."""

    def __repr__(self) -> str:
        return "SECRET"


class Unspeakable(Exception):
    """An error that has no text."""

    def __str__(self) -> str:
        raise TypeError


def formatted(
    message: Any = "said",
    *args: Any,
    environ: dict[str, Any] | None = None,
    max_bytes: int = select.PIPE_BUF,
    extra: dict[Any, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the fields of the line of one record."""
    logger = logging.Logger("shop.orders")
    lines: list[str] = []
    handler = logging.Handler()
    handler.setFormatter(JsonLines(lambda: environ, max_bytes))
    handler.emit = lambda record: lines.append(handler.format(record))  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.warning(message, *args, extra=extra, **more)
    (line,) = lines
    assert "\n" not in line
    assert len(line.encode()) < max_bytes
    fields: dict[str, Any] = json.loads(line)
    assert list(fields)[: len(NAMES)] == NAMES
    return fields


def raised(error: BaseException) -> dict[str, Any]:
    """Return the field ``exception`` of a line about *error*, which is raised for it."""
    try:
        raise error
    except type(error):
        fields: dict[str, Any] = formatted(exc_info=True)["exception"]
    return fields


def test_a_line_without_a_request() -> None:
    """It says so; the time is UTC's, to the millisecond."""
    fields = formatted("%d left", 3)
    time = datetime.fromisoformat(fields.pop("time"))
    assert time.utcoffset() == UTC.utcoffset(None)
    assert abs((datetime.now(UTC) - time).total_seconds()) < 60
    assert fields == {
        "level": "warning",
        "logger": "shop.orders",
        "message": "3 left",
        "request_id": None,
        "route": None,
        "worker": os.getpid(),
    }


def test_a_line_of_a_request() -> None:
    """Its id, its route and its trace."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    fields = formatted(environ={**ENVIRON, "HTTP_TRACEPARENT": f"00-{trace}-00f067aa0ba902b7-01"})
    named = {name: fields[name] for name in ("request_id", "route", "trace_id")}
    assert named == {"request_id": "r1", "route": "/books/<int:id>", "trace_id": trace}


def test_a_request_without_an_id_gets_one_for_all_its_lines() -> None:
    """The access log reads it in the environ."""
    environ: dict[str, Any] = {}
    first, second = (formatted(environ=environ)["request_id"] for _ in range(2))
    assert first == second == environ["greenline.request_id"]
    assert len(first) == 32


def test_extra_fields_stand_beside_ours_and_never_in_their_place() -> None:
    """One with a name of ours gets another name; objects are named by their type."""
    fields = formatted(
        extra={
            "item": 3, "route": "mine", "when": date(2026, 1, 2), "path": Path("/a"), "no": None,
            "nested": {"a": [1, Opaque()]}, "opaque": Opaque(), "error": ValueError("wrong"),
        }
    )  # fmt: skip
    assert fields["route"] is None
    assert {name: fields[name] for name in fields if name not in NAMES} == {
        "item": 3,
        "extra_route": "mine",
        "when": "2026-01-02",
        "path": "/a",
        "no": None,
        "nested": {"a": [1, f"{__name__}.Opaque"]},
        "opaque": f"{__name__}.Opaque",
        "error": "ValueError: wrong",
    }


def test_a_dict_in_place_of_a_message_has_the_fields() -> None:
    """As python-json-logger has it."""
    fields = formatted({"message": "said", "item": 3, "level": "mine"})
    assert (fields["message"], fields["item"], fields["extra_level"]) == ("said", 3, "mine")


def test_an_exception_has_fields_and_its_causes() -> None:
    """The stack is Python's own text, and the causes are in its order from the end."""
    try:
        try:
            {}["a"]
        except KeyError as error:
            raise OSError("no file") from error
    except OSError:
        fields = raised(ValueError("broken"))
    assert fields.pop("stack").startswith("Traceback (most recent call last):\n")
    assert fields == {
        "type": "ValueError",
        "message": "broken",
        "causes": [
            {"type": "OSError", "message": "no file"},
            {"type": "KeyError", "message": "'a'"},
        ],
    }


def test_a_cause_that_is_suppressed_is_none() -> None:
    """As in Python's own text."""
    try:
        raise KeyError
    except KeyError:
        error = ValueError("broken")
        error.__suppress_context__ = True
        assert "causes" not in raised(error)


def test_an_exception_without_a_text() -> None:
    """It is named by its type, and the line is written."""
    fields = raised(Unspeakable())
    assert fields["message"] == f"<{__name__}.Unspeakable>"


def test_no_exception_where_none_is_handled() -> None:
    """``exc_info=True`` outside of an ``except`` block adds no field."""
    assert sys.exc_info() == (None, None, None)
    assert "exception" not in formatted(exc_info=True)


def test_a_stack_is_a_field() -> None:
    """``stack_info=True`` asks for it."""
    assert formatted(stack_info=True)["stack"].startswith("Stack (most recent call last):\n")


@pytest.mark.parametrize(
    ("message", "extra"),
    [
        ("\ud800 half a pair", {}),
        ("said", {"half": "\ud800"}),
        ("said", {"keys": {(1, 2): 3}}),
        ("said", {"deep": [[]]}),
    ],
    ids=["message", "extra", "keys", "recursion"],
)
def test_what_json_cannot_have_loses_no_line(message: str, extra: dict[str, Any]) -> None:
    """Something stands in its place."""
    if "deep" in extra:
        extra["deep"].append(extra["deep"])
    fields = formatted(message, extra=extra)
    assert fields["message"] == message.encode("utf-8", "backslashreplace").decode()
    assert all(fields[name] for name in extra)


@pytest.mark.parametrize("max_bytes", [select.PIPE_BUF, 32_768])
@pytest.mark.parametrize(
    ("message", "extra"),
    [
        ("x" * 100_000, {}),
        ("\x01" * 100_000, {}),
        ("x" * 4_096 + "\x01" * 2_000, {}),
        ("\u20ac" * 100_000, {}),
        ("said", {"list": list(range(100_000))}),
        ("said", {f"field_{number}": number for number in range(10_000)}),
        ("said", {"x" * 100_000: 1}),
        ("said", {"exception": list(range(100_000)), "trace_id": [0] * 100_000}),
    ],
    ids=["long", "control", "both", "wide", "a list", "many fields", "a name", "names of ours"],
)
def test_a_long_line_is_cut_to_its_limit(
    message: str, extra: dict[str, Any], max_bytes: int
) -> None:
    """Our fields are there, and the message from its beginning to its end."""
    before = json.dumps(extra)
    fields = formatted(message, extra=extra, max_bytes=max_bytes, environ=dict(ENVIRON))
    assert fields["request_id"] == "r1"
    assert fields["message"][0] == message[0]
    assert fields["message"][-1] == message[-1]
    assert json.dumps(extra) == before


def test_a_long_exception_keeps_its_ends() -> None:
    """The middle of the longest text is cut: the first frames and the last ones are there."""

    def deep(number: int) -> None:
        if number:
            deep(number - 1)
        elif number == 0:
            raise ValueError("broken" * 20)

    fields = {}
    try:
        deep(3)
        # Frames of a recursion are written once; these are not the same.
    except ValueError as error:
        for number in range(200):
            try:
                raise RuntimeError(f"number {number}") from error
            except RuntimeError as again:
                error = again
        fields = raised(error)
    assert fields["type"] == "RuntimeError"
    assert fields["stack"].startswith("Traceback (most recent call last):\n")
    assert "..." in fields["stack"]
    assert fields["stack"].endswith("RuntimeError: number 199")
    assert len(fields["causes"]) == 5
