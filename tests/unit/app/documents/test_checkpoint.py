"""app.documents.checkpoint on a collection that is a list of answers."""

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from app.documents import checkpoint
from app.documents.checkpoint import Checkpoint, Terms
from greenline.errors import Conflict

ALIVE = {"owner": {"host": "another", "pid": 1, "token": "t"}, "beat": 1}


@pytest.mark.parametrize(
    ("later", "said"),
    [
        pytest.param(None, "has just ended; begin again", id="finished"),
        pytest.param({**ALIVE, "owner": None}, "has just ended; begin again", id="interrupted"),
        pytest.param({**ALIVE, "beat": 2}, r"is running \(process 1 on another\)", id="alive"),
    ],
)
def test_a_copy_that_meets_another_one_names_its_state(
    monkeypatch: pytest.MonkeyPatch, later: Any, said: str
) -> None:
    """A copy that has ended is not reported as running."""
    monkeypatch.setattr(checkpoint, "BEAT_S", 0.0)
    collection = SimpleNamespace(find_one=lambda _: later)
    target: Any = SimpleNamespace(
        name="books", collection=SimpleNamespace(name="books"),
        sibling_collection=lambda _: collection,
    )  # fmt: skip
    found = Checkpoint(target, Terms("source", False, None), Event())
    with pytest.raises(Conflict, match=said):
        found._require_dead(ALIVE)
