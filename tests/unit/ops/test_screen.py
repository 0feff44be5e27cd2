"""``greenline top`` as a terminal of some size shows it."""

import re

import msgspec
import pytest
from rich.console import Console

from greenline.ops import screen
from greenline.ops.states import (
    BlockedState,
    PoolState,
    RouteState,
    SlotsState,
    WorkerSlots,
)
from greenline.telemetry.reports import BlockReport, HubState, RequestReport
from tests.helpers.states import WELL, WORKER

STACK = [("/srv/wsgi.py", 1, "app"), ("/srv/shop/views.py", 7, "report"), ("/a/b.py", 9, "sleep")]
FULL = msgspec.structs.replace(
    WELL,
    workers=[
        msgspec.structs.replace(
            WORKER, pid=4_000_000 + number, connections=1000, in_progress=1000, limit=1000,
            waiting=1000, memory_bytes=2_000_000_000, pools={"postgres": PoolState(20, 20, 0, 9)},
            slots={"postgres": WorkerSlots(20, True)},
        )
        for number in range(2)
    ],
    slots={"postgres": SlotsState(40, 40, 0, 2, "40 of 40 slots: 20 by worker 4000000")},
    routes=[
        RouteState(f"/orders/{n}", 1000.0, 0.3, 0.1, 0.2, {"postgres": 0.08}) for n in range(12)
    ],
    blocked=[BlockedState(4_000_001, 3.2, "views.report", HubState([], STACK))],
    blocks=[BlockReport(0.0, 4_000_000, 1.5, "books.parse", STACK)] * 10,
    requests=[
        RequestReport(0.0, 4_000_000, "-", "GET", "/orders/1", "/orders", 500, 1.2, {})
    ] * 50,
    plans={"postgres": "postgres: 40 connections a host\n\n     100  max_connections"},
)  # fmt: skip
HEADINGS = (
    "worker connections in progress waiting hub late CPU waits for CPU memory pool in use idle "
    "by worker: in use, waiting route requests/s 5xx p50 p99 where the time goes slow or failed "
    "status took request most of it in hub blocked for"
)


def shown(width: int, height: int) -> str:
    """Return what a terminal of a size shows."""
    console = Console(width=width, height=height)
    with console.capture() as capture:
        console.print(screen.fitted(FULL, console))
    return capture.get()


@pytest.mark.parametrize("height", [35, 200])
def test_no_heading_and_no_number_is_broken_at_80_columns(height: int) -> None:
    """Each word of a heading is in one line, as is each value of a worker."""
    text = shown(80, height)
    words = set(text.split())
    assert set(HEADINGS.split()) <= words
    assert all(len(line) <= 80 for line in text.splitlines())
    for number in range(2):
        assert re.search(
            rf"^ 400000{number}  1000 / 1000  1000 / 1000  1000 .* 1907 MiB *$", text, re.MULTILINE
        )


def test_all_is_shown_where_there_is_room() -> None:
    """The slots' holders, the plans, and the innermost frames of blocks, now and before."""
    text = shown(120, 200)
    assert "postgres: 40 of 40 slots: 20 by worker 4000000" in text
    assert "     100  max_connections" in text
    assert re.search(r"now +3\.20 s +4000001 +views\.report", text)
    assert "4000000: 20, 9   4000001: 20, 9" in text
    assert text.count("books.parse") == 10
    for frame in ("b.py:9 in sleep", "views.py:7 in report", "wsgi.py:1 in app"):
        assert text.count(frame) == 11
    assert text.count("GET /orders/1") == text.count("postgres 100%") == 12


@pytest.mark.parametrize(
    ("height", "has_plans", "rows"), [(60, True, 5), (41, False, 5), (35, False, 3), (24, False, 1)]
)
def test_a_low_terminal_shows_less_of_each(height: int, has_plans: bool, rows: int) -> None:
    """The plans and the frames give way first, then rows; no table is left out."""
    text = shown(120, height)
    assert len(text.splitlines()) <= height
    assert ("max_connections" in text) == has_plans
    assert "postgres: 40 of 40 slots: 20 by worker 4000000" in text
    assert text.count("GET /orders/1") == text.count("books.parse") == rows
    assert text.count("postgres 100%") == rows


def test_it_is_printed_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the height: a pipe has none."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "10")
    screen.print_once(FULL)
    assert "     100  max_connections" in capsys.readouterr().out
