"""Permits for MongoDB: who begins, and what the host may have."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from greenline.budget.plan import MONGODB_EXTRA_A_WORKER
from greenline.mongo.clients import Clients
from greenline.mongo.permits import Permits
from greenline.slots import SlotTable

LEAST = MONGODB_EXTRA_A_WORKER + 1
HOST = 10 * LEAST


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[SlotTable, SlotTable]]:
    """Two services of one worker each that begin at once: neither knows what the host may have."""
    with ExitStack() as stack:
        slot_tables = [SlotTable(tmp_path / "slots", floor=LEAST) for _ in range(2)]
        for each in slot_tables:
            stack.callback(each.close)
            each.resize(LEAST, LEAST)
        yield slot_tables[0], slot_tables[1]


def not_asked(*_: Any) -> Any:
    raise AssertionError("no client is made")


def test_the_second_begins_when_the_first_was_notified(both: tuple[SlotTable, SlotTable]) -> None:
    """What the first one may have is all that the second one knows of, until it hears of more."""
    first, second = both
    assert Permits(first).take(LEAST)
    clients = Clients(Permits(second), not_asked, not_asked)
    try:
        assert not clients.begin(1)
        first.resize(HOST, LEAST)
        first.publish(HOST)
        assert clients.begin(1)
    finally:
        clients.close()
    assert (second.capacity, second.reserved) == (HOST, LEAST)
