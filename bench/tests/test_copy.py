"""What is compared of a COPY, and how it is judged."""

import json
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg2.extensions import get_wait_callback

from bench import copy
from bench.copy import BLOCKING, FILES, IN, OUT, WHO, WITHOUT, Copied, Copies, Report
from bench.report import OURS
from bench.servers import ServerError
from greenline.postgres import copying

ROWS = 3000


def copied(who: str, seconds: float, way: str = IN, late_ms: Sequence[float] = (1.0,)) -> Copied:
    """Return a copy where only the time and the bystander matter."""
    return Copied(way, "file", who, 1000, seconds, 0.1, late_ms)


def found_in(folder: Path, *copies: Copied, idle_ms: float = 0.1) -> Report:
    found = Report(folder)
    found.copies += copies
    found.idle_ms.append(idle_ms)
    return found


@pytest.mark.skipif(copying.compiled_rows is None, reason="there was no C compiler")
def test_all_copy_the_same_rows(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In turns, into the database and out of it, with each kind of file; all is as before then."""
    monkeypatch.setattr(copy, "IDLE_S", 0.05)
    before = get_wait_callback(), copying.read_rows
    found = Report(tmp_path)
    judged = copy.run(found, empty_database, tmp_path, ROWS, rounds=2)
    assert found.problems == []
    measured = [(each.way, each.file, each.who) for each in found.copies]
    assert measured == [
        (way, file, who) for way in (IN, OUT) for file in FILES for _ in range(2) for who in WHO
    ]
    assert {each.rows for each in found.copies} == {ROWS}
    assert len(judged) == 2 * len(FILES) * 2 * 2  # a ratio and a p99, of both of ours
    assert (tmp_path / "source").read_bytes() == (tmp_path / "sink").read_bytes()
    assert found.idle_ms
    assert (get_wait_callback(), copying.read_rows) == before


def test_the_blocking_one_blocks_the_bystander(empty_database: str, tmp_path: Path) -> None:
    """It wakes up once, when all is over; beside ours it goes on again and again."""
    copy.make_table(empty_database)
    copies = Copies(empty_database, tmp_path, 100_000)
    blocking, ours = (copies.measure(IN, "BytesIO", who) for who in (BLOCKING, WITHOUT))
    assert len(blocking.late_ms) == 1
    assert blocking.late_ms[0] > blocking.seconds * 1000 - 2 * copy.TICK_S * 1000
    assert len(ours.late_ms) > 1


def test_a_copy_of_another_number_of_rows_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has made it."""

    @contextmanager
    def cursor() -> Any:
        yield SimpleNamespace(copy_expert=lambda *_: None, rowcount=2)

    conn = SimpleNamespace(cursor=cursor, close=lambda: None)
    monkeypatch.setattr(copy.psycopg2, "connect", lambda _: conn)
    with pytest.raises(ServerError, match=f"{OURS} has copied 2 of 3 rows out"):
        Copies("", tmp_path, 3).measure(OUT, "StringIO", OURS)


def test_without_the_compiled_part_the_run_is_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has nothing to say about it."""
    monkeypatch.setattr(copying, "compiled_rows", None)
    found = Report(tmp_path)
    assert copy.run(found, "", tmp_path, 1, 1) == []
    assert found.problems == ["there is no compiled part: is there a C compiler?"]


def test_a_ratio_is_of_one_round() -> None:
    """And the middle one of all rounds counts."""
    blocking = [copied(BLOCKING, seconds) for seconds in (1.0, 2.0, 8.0)]
    ours = [copied(OURS, seconds) for seconds in (2.0, 2.0, 2.0)]
    assert copy.ratio([*blocking, *ours], IN, "file", OURS) == 1.0


def test_the_p99_is_a_value_that_was_seen() -> None:
    """The largest one where there are few."""
    assert copy.p99([]) == 0
    assert copy.p99([3.0, 1.0, 2.0]) == 3.0
    assert copy.p99([float(each) for each in range(1, 1001)]) == 990.0


@pytest.mark.parametrize(
    ("way", "who", "seconds", "late_ms", "idle_ms", "kept"),
    [
        pytest.param(IN, OURS, 4 / 3, 20.0, 1.0, [True, True], id="as required"),
        pytest.param(OUT, OURS, 1.5, 21.0, 1.0, [False, False], id="missed"),
        pytest.param(OUT, WITHOUT, 5.0, 1.0, 1.0, [True, True], id="not compiled"),
        pytest.param(IN, WITHOUT, 5.0, 1.0, 1.0, [False, True], id="not compiled, in"),
        pytest.param(IN, OURS, 1.0, 40.0, 30.0, [True, None], id="a busy machine"),
    ],
)
def test_ours_are_judged(
    tmp_path: Path, way: str, who: str, seconds: float, late_ms: float, idle_ms: float,
    kept: list[bool | None],
) -> None:  # fmt: skip
    """By the ratio, and by how late the bystander was unless it is late beside nothing too."""
    copies = (copied(BLOCKING, 1.0, way, [999.0]), copied(who, seconds, way, [1.0, late_ms]))
    judged = copy.verdicts(found_in(tmp_path, *copies, idle_ms=idle_ms))
    assert [each.kept for each in judged] == kept


def test_the_table_and_the_figures_have_each_row(tmp_path: Path) -> None:
    """The middle of its rounds, and what it has over the blocking one."""
    found = found_in(tmp_path, copied(BLOCKING, 1.0), copied(OURS, 2.0, late_ms=[7.0]))
    assert found.finish() == 0
    assert found.table().splitlines()[2].split() == [
        "in", "file", OURS, "2.00", "0.10", "500", "0.50", "7.0"
    ]  # fmt: skip
    written = json.loads((tmp_path / "copy.json").read_text())
    assert [(each["who"], each["late_ms"]) for each in written["copies"]] == [
        (BLOCKING, 1.0), (OURS, 7.0)
    ]  # fmt: skip
    assert written["idle_p99_ms"] == 0.1


def test_a_quick_run_is_small() -> None:
    """What is asked for otherwise counts."""
    quick, own, default = (
        copy.parsed(arguments) for arguments in (["--quick"], ["--quick", "--rows", "7"], [])
    )
    assert (quick.rows, quick.rounds) == (copy.QUICK_ROWS, copy.QUICK_ROUNDS)
    assert (own.rows, own.rounds) == (7, copy.QUICK_ROUNDS)
    assert (default.rows, default.rounds) == (copy.ROWS, copy.ROUNDS)
