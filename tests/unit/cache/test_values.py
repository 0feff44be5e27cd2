"""greenline.cache.values: which values are kept as they are, and which are copied."""

from datetime import date
from typing import Any

import pytest
from msgspec import Struct

from greenline.cache.values import keep


class Frozen(Struct, frozen=True):
    parts: Any


class Open(Struct):
    parts: Any


class Extended(Struct, frozen=True, dict=True):
    parts: Any


class Child(Frozen):
    """An attribute beside the fields needs a __dict__, which a Struct of its own kind lacks."""


@pytest.mark.parametrize(
    "value",
    [Frozen(1), Frozen(("a", Frozen(b"b"))), (1, Frozen(None)), Child(date(2026, 11, 27))],
    ids=repr,
)
def test_what_cannot_change_is_kept_as_it_is(value: Any) -> None:
    assert keep(value).value() is value


@pytest.mark.parametrize(
    "value",
    [Open(1), Extended(1), Frozen([1]), Frozen((1, [2])), (Open(1),), [Frozen(1)]],
    ids=repr,
)
def test_what_can_change_is_copied(value: Any) -> None:
    kept = keep(value)
    assert kept.value() is not value
    assert kept.value() == value


def test_the_memory_of_all_parts_counts() -> None:
    text = "x" * 10_000
    assert 10_000 < keep(Frozen((text,))).size_bytes < 10_500
