"""greenline.hub.slow_waits: what the line of a slow request shows of its waits."""

import pytest

from greenline.hub import slow_waits
from greenline.hub.slow_waits import MAX_KINDS, MAX_SHOWN, Waits


@pytest.fixture(autouse=True)
def _from_15_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_waits, "min_s", 0.015)
    monkeypatch.setattr(slow_waits, "without_values", {"postgres": lambda text: text.upper()})


def noted(*waits: tuple[str, float, str]) -> list[str]:
    found = Waits()
    for what, took_s, sent in waits:
        found.note(what, took_s, sent)
    return [str(each).replace(f" in {each.function}", "") for each in found.shown()]


def test_the_longest_in_all_is_the_first() -> None:
    """However many short ones come before it."""
    short = [("postgres", 0.02, f"select {number}") for number in range(25)]
    assert noted(*short, ("postgres", 1.5, "a"))[0] == "postgres 1500 ms (A)"
    assert len(noted(*short)) == MAX_SHOWN


def test_many_that_are_short_are_added_up() -> None:
    """As those of a loop over the rows of another statement."""
    assert noted(*[("postgres", 0.003, "a")] * 150) == ["postgres 450 ms 150 times (A)"]
    assert noted(*[("postgres", 0.003, "a")] * 4) == []


def test_what_differs_by_its_values_is_one() -> None:
    """So are those beyond the number that is kept apart, without their texts."""
    twice = ("postgres", 0.02, "a"), ("postgres", 0.02, "A")
    assert noted(*twice) == ["postgres 40 ms 2 times (A)"]
    many = [("mongodb", 0.001, f"find {number}") for number in range(MAX_KINDS)]
    assert noted(*many, *[("mongodb", 0.01, f"{number}") for number in range(30)]) == [
        "mongodb 300 ms 30 times"
    ]


def test_a_name_of_a_client_makes_no_line() -> None:
    """A collection may have any name."""
    (line,) = noted(("mongodb", 1.0, "find a\n[CRITICAL] \x1b[31m"))
    assert line == r"mongodb 1000 ms (find a\n[CRITICAL] \x1b[31m)"


def test_statements_are_in_no_text_of_the_environ() -> None:
    """A page of an error may show it."""
    environ: dict[str, object] = {}
    slow_waits.of(environ).note("postgres", 1.0, "select 'secret'")
    assert "secret" not in repr(environ)
