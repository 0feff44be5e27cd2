"""Ledgers on a file of the test's own, with a clock that it sets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from greenline import slots
from tests.helpers.clock import Clock
from tests.unit.slots.slot_tables import Open, slot_tables


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return slots.path("127.0.0.1:5432", tmp_path)


@pytest.fixture
def opened(path: Path, clock: Clock) -> Iterator[Open]:
    """Opens slot tables on one file: ``opened(capacity, reserved)``."""
    with slot_tables(path, clock) as opened:
        yield opened
