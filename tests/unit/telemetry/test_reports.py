"""Reports in shared memory: what is kept, what is cut, and what a reader sees meanwhile."""

import os
from collections.abc import Iterator

import pytest

from greenline.telemetry import shared_memory
from greenline.telemetry.reports import (
    EVENTS,
    MAX_EVENTS_A_S,
    BlockReport,
    Frame,
    GreenletState,
    HubState,
    ReportReader,
    Reports,
    RequestReport,
    RequestState,
    Stacks,
)

FRAME: Frame = ("/srv/shop/views.py", 42, "checkout")
STATE = RequestState("GET", "/orders", "/orders", 1.5, "Postgres")


@pytest.fixture
def memory() -> Iterator[int]:
    fd = shared_memory.share()
    yield fd
    os.close(fd)


def note(reports: Reports, path: str, status: int = 500) -> None:
    reports.note_request(
        request_id="r1", method="GET", path=path, route="-", status=status, took_s=0.1,
        parts_s={"postgres": 0.05},
    )  # fmt: skip


def test_events_of_all_workers_are_read_the_newest_first(memory: int) -> None:
    """Requests and blocks, those of a worker that has ended included."""
    one, other = Reports(memory, 0, 11), Reports(memory, 1, 12)
    for each in (one, other):
        each.beat()
    note(one, "/first")
    other.note_block(2.5, "views.checkout", [FRAME])
    successor = Reports(memory, 0, 13)
    note(successor, "/last")
    last, block, first = ReportReader(memory).events()
    assert isinstance(last, RequestReport)
    assert (last.path, last.worker, last.status) == ("/last", 13, 500)
    assert last.parts_s == {"postgres": 0.05}
    assert isinstance(block, BlockReport)
    assert (block.worker, block.took_s, block.stack) == (12, 2.5, [FRAME])
    assert isinstance(first, RequestReport)
    assert (first.path, first.worker) == ("/first", 11)


def test_the_last_events_stay_and_a_storm_is_bounded(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more than there is room for the oldest go; of a second's, some are left out."""
    reports = Reports(memory, 0, 11)
    reports.beat()
    for second in range(10):
        monkeypatch.setattr("greenline.telemetry.reports.monotonic", lambda now=second: now + 1.0)
        for number in range(MAX_EVENTS_A_S + 5):
            note(reports, f"/{second}/{number}")
    paths = [each.path for each in ReportReader(memory).events() if isinstance(each, RequestReport)]
    kept = [f"/{second}/{number}" for second in range(10) for number in range(MAX_EVENTS_A_S)]
    assert sorted(paths) == sorted(kept[-EVENTS:])


def test_long_texts_and_stacks_are_cut(memory: int) -> None:
    """A path of any length, and a stack of any depth: the innermost frames stay."""
    reports = Reports(memory, 0, 11)
    reports.beat()
    note(reports, "/" + "é" * 10_000)
    stack = [("/srv/" + "d" * 50, number, "recurse") for number in range(500)]
    reports.note_block(1.0, "shop.recurse", stack)
    block, request = ReportReader(memory).events()
    assert isinstance(request, RequestReport)
    assert request.path == "/" + "é" * 199
    assert isinstance(block, BlockReport)
    assert 10 < len(block.stack) < 500
    assert block.stack[-1] == stack[-1]


def test_stacks_are_answered_once_for_each_question(memory: int) -> None:
    """No question: no answer; thousands of greenlets: some, and how many are left out."""
    reports, reader = Reports(memory, 3, 11), ReportReader(memory)
    assert not reports.beat()
    number = reader.ask(3)
    assert reports.beat()
    assert reader.stacks(3, number) is None
    one = GreenletState(STATE, 0, "Postgres")
    reports.answer(Stacks(11, [one] * 20_000, [[FRAME] * 60]))
    assert not reports.beat()
    found = reader.stacks(3, number)
    assert found is not None
    assert (found.worker, found.stacks) == (11, [[FRAME] * 60])
    assert 2_000 < len(found.greenlets) == 20_000 - found.left_out
    assert found.greenlets[0] == one
    assert reader.stacks(3, number + 1) is None


def test_a_blocked_hub_is_shown_until_it_runs_again(memory: int) -> None:
    """And a worker that takes the row over shows nothing of it."""
    reports, reader = Reports(memory, 0, 11), ReportReader(memory)
    assert reader.late_s(0) == 0.0
    reports.beat()
    reports.note_hub(HubState([STATE] * 20_000, [FRAME]))
    shown = reader.hub(0)
    assert shown is not None
    assert shown.stack == [FRAME]
    assert shown.requests[0] == STATE
    reports.beat()
    assert reader.hub(0) is None
    reports.note_hub(HubState([], [FRAME]))
    assert reader.hub(0) is not None
    Reports(memory, 0, 12)
    assert reader.hub(0) is None
    assert reader.late_s(0) == 0.0


def test_a_worker_that_boots_or_has_ended_is_not_late(memory: int) -> None:
    """Its row may still be locked, for as long as it exits."""
    reports, reader = Reports(memory, 0, 11), ReportReader(memory)
    assert reader.late_s(0) == 0.0
    reports.beat()
    assert reader.late_s(0) > 0.0
    reports.end()
    assert reader.late_s(0) == 0.0


def test_a_reader_in_the_middle_of_a_write_gets_nothing(memory: int) -> None:
    """Neither half of a text nor the old one."""
    reports, reader = Reports(memory, 0, 11), ReportReader(memory)
    reports.note_tables({"postgres": "97 connections"})
    assert reader.tables(0) == {"postgres": "97 connections"}
    start = reports._start + 64
    reports._memory[start + 16 : start + 20] = b"\xff\xff\xff\xff"
    assert reader.tables(0) == {}
    reports.note_tables({"postgres": "9 connections"})
    assert reader.tables(0) == {"postgres": "9 connections"}
    reports._cells[start // 8 + 1] = 0
    assert reader.tables(0) == {}
