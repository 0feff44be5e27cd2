"""Every fault of a request is reported, each at its place."""

from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from app.api import faults
from app.records import BookInput


class Price(Struct, forbid_unknown_fields=True):
    """An inner record."""

    value: Annotated[int, Meta(ge=0)]
    currency: str = "EUR"


class Thing(Struct, forbid_unknown_fields=True):
    """A record with everything in it."""

    name: Annotated[str, Meta(min_length=1, pattern=r"^[^\x00]*$")]
    price: Price
    other: Price | None = None
    tags: Annotated[list[Annotated[str, Meta(max_length=3)]], Meta(max_length=2)] = []
    data: dict[str, Any] = {}


def details(value: Any, type_: Any = Thing) -> dict[str, str]:
    return {fault.pointer or "": fault.detail for fault in faults.found(value, type_)}


def test_a_good_value_has_no_fault() -> None:
    """A value that msgspec takes has no fault."""
    assert details({"name": "x", "price": {"value": 1}}) == {}


@pytest.mark.parametrize(
    ("value", "pointers"),
    [
        pytest.param([], [""], id="no object"),
        pytest.param({}, ["", ""], id="two are missing"),
        pytest.param({"name": "", "price": {"value": -1}}, ["/name", "/price/value"], id="two"),
        pytest.param(
            {"name": "x", "price": {"value": 1, "a/b~c": 2}, "more": 1},
            ["/price/a~1b~0c", "/more"],
            id="unknown, with signs to escape",
        ),
        pytest.param(
            {"name": "x", "price": {"value": 1}, "other": {"value": "1"}, "tags": ["long", 1, ""]},
            ["/other/value", "/tags", "/tags/0", "/tags/1"],
            id="in an optional one, and in a list that is too long",
        ),
        pytest.param({"name": "x", "price": None, "data": []}, ["/price", "/data"], id="null"),
    ],
)
def test_every_fault_is_reported_at_its_place(value: Any, pointers: list[str]) -> None:
    """All of them in one answer, as JSON pointers."""
    assert [fault.pointer for fault in faults.found(value, Thing)] == pointers


def test_a_nul_is_reported_in_words() -> None:
    """No regular expression is shown to the client that sent one."""
    assert details({"name": "a\0", "price": {"value": 1}}) == {"/name": "there may be no NUL in it"}


def test_a_prefix_stands_before_each_pointer() -> None:
    """A part of a batch says where in the batch it is."""
    [fault] = faults.found({"title": 1}, BookInput, "/items/3/patch")
    assert fault.pointer == "/items/3/patch/title"


def test_an_answer_has_a_hundred_faults_at_most() -> None:
    """A batch that is wrong throughout does not make an answer larger than itself."""
    assert len(faults.found({"title": "x", "authors": [1] * 1000}, BookInput)) == 100


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["name", "price", "other", "tags", "data", "value", "x"]), inner
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_there_is_a_fault_where_msgspec_finds_one_and_only_there(value: Any) -> None:
    """Never is a good value refused, or a bad one refused without a reason."""
    try:
        msgspec.convert(value, Thing)
        is_good = True
    except msgspec.ValidationError:
        is_good = False
    assert (faults.found(value, Thing) == []) == is_good


class Query(Struct, forbid_unknown_fields=True):
    """A query string."""

    limit: Annotated[int, Meta(ge=1)] = 1
    total: bool = False


def test_every_name_of_a_query_is_looked_at() -> None:
    """Unknown names and bad values, all by name."""
    wrong = faults.found_in_query({"limit": "0", "total": "yes", "page": "1"}, Query)
    assert [fault.name for fault in wrong] == ["page", "limit", "total"]
    assert faults.found_in_query({"limit": "2", "total": "true"}, Query) == []
