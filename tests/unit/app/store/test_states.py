"""What the store can hold as it is."""

import pytest

from app.store.states import _holdable


@pytest.mark.parametrize(
    ("value", "holdable"),
    [
        ({"a": {"b": [1, "x", None, True, 2.5]}}, True),
        ({"": {}}, True),
        ({"a": 2**63 - 1, "b": -(2**63)}, True),
        ({"a": 2**63}, False),
        ({"a.b": 1}, False),
        ({"a": {"$set": 1}}, False),
        ({"a\0": 1}, False),
        ({"a": [[1]]}, True),
        ({"a": [{"b": [1]}]}, True),
        ({"a": -0.0}, True),
        ({"a": 0.0, "b": -1.5}, True),
        ({str(n): n for n in range(1_001)}, True),
    ],
    ids=[
        "plain",
        "empty name",
        "int64",
        "beyond",
        "dot",
        "dollar",
        "nul",
        "nested",
        "apart",
        "minus zero",
        "zero",
        "many",
    ],
)
def test_what_some_server_cannot_hold_is_recognised(value: object, holdable: bool) -> None:
    """Only what every server holds as it is is stored as a document."""
    assert _holdable(value, 50) is holdable


def test_great_depth_is_recognised_without_recursing_for_ever() -> None:
    """BSON's depth is limited, and so is Python's stack."""
    value: dict[str, object] = {}
    for _ in range(60):
        value = {"a": value}
    assert not _holdable(value, 50)
