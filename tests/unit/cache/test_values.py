"""greenline.cache.values: which values are kept as they are, and which are copied."""

from datetime import date
from typing import Any

import pytest
from msgspec import Struct

from greenline.cache.values import MAX_PARTS, NotKept, keep


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


def test_a_value_with_too_many_parts_is_copied() -> None:
    """Also where they are the same ones, in many places: a pickle has each once."""
    many, pairs = (1,) * MAX_PARTS, ()
    for _ in range(60):
        pairs = (pairs, pairs)
    assert keep(many).is_pickled
    kept = keep(pairs)
    assert kept.is_pickled
    assert kept.size_bytes < 1_000


def test_a_value_whose_parts_lie_too_deep_to_be_copied_is_not_kept() -> None:
    """Where they are few enough to look at each it is kept as it is."""
    deep: tuple[Any, ...] = ()
    for _ in range(5_000):
        deep = (deep,)
    assert not keep(deep).is_pickled
    for _ in range(MAX_PARTS):
        deep = (deep,)
    with pytest.raises(
        NotKept, match=r"a tuple cannot be kept: (maximum recursion|Stack overflow)"
    ):
        keep(deep)


def test_the_memory_of_all_parts_counts() -> None:
    text = "x" * 10_000
    assert 10_000 < keep(Frozen((text,))).size_bytes < 10_500
