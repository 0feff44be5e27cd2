"""greenline.hub.compatibility: the installed table is complete, and says only what it may."""

import re
from datetime import date

import pytest

from greenline.hub import blocking
from greenline.hub.compatibility import BLOCKS, NEEDS_ORDER, VERDICTS, Record, records

MIN_TRIED = 30


@pytest.mark.parametrize("record", records(), ids=lambda one: f"{one.name} {one.when or ''}")
def test_each_record_is_complete(record: Record) -> None:
    """A verdict that was not tried has a source and neither a version nor a date."""
    assert record.verdict in VERDICTS
    assert record.modules
    assert re.match(r"https?://[^ ]+$", record.source)
    assert record.why
    if record.tried:
        assert record.version
        assert record.against
        assert date.fromisoformat(record.date) <= date.today()
    else:
        assert (record.version, record.date, record.against) == ("", "", "")
    if record.verdict in (BLOCKS, NEEDS_ORDER):
        assert record.instead


def test_many_were_tried_and_each_is_there_once() -> None:
    """One library may have a second record, for a call of it that changes how it waits."""
    assert sum(each.tried for each in records()) >= MIN_TRIED
    keys = [(each.name, each.when) for each in records()]
    assert len(keys) == len(set(keys))


def test_what_the_worker_warns_of_is_in_the_table() -> None:
    """Each driver with a switch has a record that says what to do."""
    names = {each.name for each in records() if each.instead}
    assert {name for _, name, _ in blocking.DRIVERS_WITH_A_SWITCH} <= names
    assert "cx_Oracle" in blocking.BLOCKING_DRIVERS
