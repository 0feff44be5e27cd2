"""How copies are measured, judged and drawn, and what makes a run of the bench invalid."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from bench import documents, mongodb, picture, plans
from bench.documents import ASYNCIO, MEMORY, SEQUENCE, SOURCE, TARGET, WHO, Copied, Copies, Report
from bench.report import OURS
from bench.servers import ServerError

DONE = '{"event": "end", "copied": %d, "seconds": 0.5}'
LENT = mongodb.Lent("mongodb://127.0.0.1:1/greenline_bench", MEMORY, None)


def copied(who: str, seconds: float, on: str = MEMORY) -> Copied:
    """Return a copy where only the time matters."""
    return Copied(on, who, 1_000, seconds, 0.1, 40.0, seconds)


class Scripted(Copies):
    """Copies by what a Python script prints, into a target that has *there* documents."""

    def __init__(self, folder: Path, script: str, there: int = 3, left_s: float = 60.0) -> None:
        super().__init__(LENT, folder, monotonic() + left_s)
        self.script, self.there = script, there
        self.dropped: list[str] = []
        self.filled = 0

    def fill(self, count: int) -> None:
        self.filled = count

    def drop_collection(self, name: str) -> None:
        self.dropped.append(name)

    def __getitem__(self, name: str) -> "Scripted":
        assert name == TARGET
        return self

    def count_documents(self, asked: Any) -> int:
        return self.there

    def _command(self, who: str) -> list[str]:
        return [sys.executable, "-c", self.script]

    @contextmanager
    def _database(self) -> Iterator[Any]:
        yield self


def test_a_copy_is_measured_until_it_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its own seconds count, what it compares afterwards does not, and its target is empty."""
    monkeypatch.setattr(documents, "RSS_SAMPLE_S", 0.001)
    sampled, peak_mb = tmp_path / "sampled", documents.proc.peak_mb

    def sample(pid: int) -> float:
        if (found_mb := peak_mb(pid)) > 1:
            sampled.touch()
        return found_mb

    monkeypatch.setattr(documents.proc, "peak_mb", sample)
    progress, compared = '{"documents": 1}', '{"event": "end", "seconds": 9}'
    script = f"""if True:
        import os, time
        for line in {[progress, DONE % 3, compared]!r}:
            print(line, flush=True)
        # On a busy machine it would end before the first sample.
        while not os.path.exists({str(sampled)!r}):
            time.sleep(0.001)
    """
    copies = Scripted(tmp_path, script)
    found = copies.measure(OURS, 3)
    assert (found.on, found.who, found.documents, found.seconds) == (MEMORY, OURS, 3, 0.5)
    assert found.rate == 6
    assert found.rss_mb > 1
    assert 0 <= found.cpu_s <= found.whole_s
    assert copies.dropped == [TARGET, "greenline_copies"]


@pytest.mark.parametrize(
    ("script", "there", "reason"),
    [
        pytest.param(f"print({DONE % 3!r})", 2, "2 of 3 documents are there", id="not-all"),
        pytest.param(f"print({DONE % 2!r})", 3, "reported 2", id="tells-of-fewer"),
        pytest.param(f"print({DONE % 3!r}); exit('no more')", 3, "no more", id="fails"),
        pytest.param("import sys; print('so', file=sys.stderr)", 3, "so", id="says-nothing"),
    ],
)
def test_a_copy_that_is_not_complete_makes_the_run_invalid(
    tmp_path: Path, script: str, there: int, reason: str
) -> None:
    """All documents have to be there; the others are measured all the same."""
    found = Report(tmp_path)
    copies = Scripted(tmp_path, script, there)
    documents.compete(found, copies, 3, 1)
    assert (copies.filled, found.copies) == (3, [])
    assert [each.partition(":")[0] for each in found.problems] == [
        f"{who} on {MEMORY}" for who in WHO
    ]
    assert all(reason in each for each in found.problems)


def test_the_bench_ends_in_time(tmp_path: Path) -> None:
    """A copy that takes too long is killed, and no other one begins."""
    copies = Scripted(tmp_path, "import time; time.sleep(60)", left_s=0.5)
    begin_s = monotonic()
    with pytest.raises(ServerError, match="took longer than 600 s"):
        documents.compete(Report(tmp_path), copies, 3, 1)
    assert monotonic() - begin_s < 20


def test_ours_is_the_command_and_the_others_are_scripts(tmp_path: Path) -> None:
    """Ours gives new ids and writes ten batches at once; mongoimport reads a file."""
    copies = Copies(LENT, tmp_path, 0.0)
    ours = " ".join(copies._command(OURS))
    source, target = (f"{LENT.uri}.{name}" for name in (SOURCE, TARGET))
    assert f"flask documents copy {source} {target} --new-ids --batches-at-once 10 --json" in ours
    assert copies._command(SEQUENCE)[2:] == [
        "bench.peers.copying", SEQUENCE, LENT.uri, SOURCE, TARGET
    ]  # fmt: skip
    assert str(tmp_path / documents.FILE) in copies._command(documents.IMPORT)


def test_a_row_is_the_middle_round_of_an_engine() -> None:
    """With how far the rounds lie apart; a single round says nothing of that."""
    rounds = [copied(OURS, seconds) for seconds in (1.0, 4.0, 2.0)]
    middle, alone = documents.middles([*rounds, copied(OURS, 8.0, on="SecantusDB")])
    assert (middle.seconds, middle.spread) == (2.0, 1.5)
    assert (alone.seconds, alone.spread) == (8.0, None)


@pytest.mark.parametrize(
    ("sequence", "asyncio", "kept"),
    [
        pytest.param([1.36, 1.5, 1.0], [1.0, 1.1, 0.9], [True, True], id="both"),
        pytest.param([1.35, 1.0, 9.0], [1.0, 1.0, 1.0], [False, True], id="not-the-sequence"),
        pytest.param([2.0, 2.0, 2.0], [0.99, 0.5, 3.0], [True, False], id="not-asyncio"),
    ],
)
def test_ours_is_judged_by_the_middle_of_the_ratios(
    sequence: list[float], asyncio: list[float], kept: list[bool]
) -> None:
    """In memory alone: 1.36 times the sequence's rate, and asyncio's."""
    rounds = [copied(OURS, 1.0), copied(OURS, 1.0, on="SecantusDB")]
    rounds += [copied(OURS, 1.0)] * 2
    rounds += [copied(SEQUENCE, ratio) for ratio in sequence]
    rounds += [copied(ASYNCIO, ratio) for ratio in asyncio]
    rounds += [copied(ASYNCIO, 0.1, on="SecantusDB")]
    assert [each.kept for each in documents.verdicts(rounds)] == kept


def test_what_was_not_measured_is_not_judged() -> None:
    """A run that ended early says what it can."""
    (verdict,) = documents.verdicts([copied(SEQUENCE, 2.0), copied(OURS, 1.0)])
    assert verdict.text.startswith(f"documents a second on {MEMORY}, over {SEQUENCE}")
    assert documents.verdicts([]) == []


def test_a_picture_has_a_row_for_each_engine(tmp_path: Path) -> None:
    """Rates, memory and processor time, by who."""
    pytest.importorskip("matplotlib")
    rows = [copied(who, 2.0, on) for on in (MEMORY, "SecantusDB") for who in WHO]
    drawn = documents.by_engine(rows)
    assert list(drawn) == [f"{MEMORY}: 1,000 documents", "SecantusDB: 1,000 documents"]
    assert drawn[f"{MEMORY}: 1,000 documents"]["documents a second"][OURS] == 500
    path = picture.copies(drawn, tmp_path / "documents.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_main_writes_what_there_is_and_says_what_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failure makes the exit status 1; what was copied is in the table and in the JSON."""
    report = Report(tmp_path)

    def run(found: Report, count: int, rounds: int) -> None:
        assert (count, rounds) == (20, 1)
        found.copies += [copied(SEQUENCE, 2.0), copied(OURS, 1.0)]
        found.plans.append(plans.Plan("default", "count", 7, 1.5, "IXSCAN", "slug", 7, 7))
        raise ServerError("the server is gone")

    monkeypatch.setattr(documents, "run", run)
    monkeypatch.setattr(documents, "Report", lambda: report)
    monkeypatch.setattr(documents.picture, "copies", lambda *_: None)
    monkeypatch.setattr(documents.signal, "signal", lambda *_: None)
    monkeypatch.setattr(documents.sys, "argv", ["documents", "--count", "20", "--rounds", "1"])
    assert documents.main() == 1
    said = capsys.readouterr().out
    assert "INVALID: the server is gone" in said
    assert "2.00, keeps the floor 1.36" in said
    written = json.loads((tmp_path / "documents.json").read_text())
    assert [each["documents_s"] for each in written["copies"]] == [500, 1000]
    assert written["plans"][0]["found"] == 7
