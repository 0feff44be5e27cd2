"""What a command shows while it works."""

import json

import pytest

from app.documents import progress
from app.documents.progress import Json, Lines, Live, display


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test sets."""
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


def test_lines_say_documents_rate_and_time_left(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every five seconds, on stderr; the result goes to stdout."""
    with display("copied", 10_000, 1_000, as_json=False) as shown:
        assert isinstance(shown, Lines)
        for second, done in enumerate((1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 7_000)):
            clock[0] = float(second)
            shown.update(done)
        shown.end("done")
    said = capsys.readouterr()
    assert said.err == "copied 6,000 of about 10,000 documents, 1,000/s, 0:04 left\n"
    assert said.out == "done\n"


def test_json_has_the_same_for_a_program(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """A line a second, and one at the end, on stdout."""
    with display("copied", 100, as_json=True) as shown:
        assert isinstance(shown, Json)
        clock[0] = 2.0
        shown.update(50)
        shown.end("done", copied=100)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        {"event": "progress", "documents": 50, "total": 100, "rate": 25.0, "left_s": 2.0},
        {"event": "end", "seconds": 2.0, "copied": 100},
    ]


def test_changes_are_called_changes(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """What follows a copy is no document."""
    for as_json in (False, True):
        with display("applied", 0, noun="changes", as_json=as_json) as shown:
            clock[0] += 10.0
            shown.update(50)
    said = capsys.readouterr()
    assert said.err == "applied 50 changes, 5/s\n"
    assert json.loads(said.out)["changes"] == 50
    assert "documents" not in said.out


def test_a_terminal_has_a_line_that_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is taken away before the result."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with display("copied", 100, as_json=False) as shown:
        assert isinstance(shown, Live)
        shown.update(150)  # more than was estimated
        shown.end("done")
    assert capsys.readouterr().out == "done\n"


def test_nothing_is_known_of_an_empty_collection(capsys: pytest.CaptureFixture[str]) -> None:
    """No time left, no division by zero."""
    with display("copied", 0, as_json=False) as shown:
        assert shown.left_s is None
        shown.update(0)
    assert capsys.readouterr().err == ""
