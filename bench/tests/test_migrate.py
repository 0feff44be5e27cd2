"""What makes the table of docs/migrate.md fair and true."""

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bench import legacy_environments, migrate
from bench.migrate_lineup import APPLICATIONS, GTHREAD, POOLED, SERVERS, SYNC, Site
from bench.report import OURS
from bench.results import Page

BY_NAME = {each.name: each for each in APPLICATIONS}
KINTO = BY_NAME["kinto"]


class Answering:
    """A run whose answers are known."""

    def __init__(self, who: str, *answers: Counter[str]) -> None:
        self.who = who
        self._answers = [Counter({"200": 1}), Counter({"200": 1}), *answers]  # warm first

    def ask(self, *_: Any) -> tuple[float, Counter[str]]:
        return 10.0, self._answers.pop(0)


def judged(
    monkeypatch: pytest.MonkeyPatch, who: str, writes: Counter[str], stored: int
) -> list[str]:
    """Return the problems of a round of *who* after which there are *stored* rows."""
    counts = iter([0, stored])
    monkeypatch.setattr(migrate, "rows", lambda *_: next(counts))
    monkeypatch.setattr(migrate, "counted", lambda _: nullcontext([3]))
    found = migrate.Migrate(50, 1, 1.0)
    run: Any = Answering(who, Counter({"200": 5}), writes)
    found._round(KINTO, run, migrate.Figures(), "")
    return found.problems


def test_five_applications_and_each_has_its_pins() -> None:
    """Each is installed as the package index has it."""
    assert list(BY_NAME) == ["alerta", "ihatemoney", "kinto", "mlflow", "pretix"]
    for name in BY_NAME:
        text = (legacy_environments.PINS / f"{name}.txt").read_text()
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert any(line.startswith((f"{name}==", f"{name}-")) for line in lines), name
        assert all("==" in line for line in lines)


def test_the_worker_class_is_all_that_differs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The pool has one variable more; the application's are the same."""
    monkeypatch.setattr(legacy_environments, "find", lambda name: tmp_path / name)
    site = Site(KINTO, "postgresql://greenline@/kinto?host=/tmp&port=5432", tmp_path)
    servers = {who: site.server(who) for who in SERVERS}
    assert list(servers) == [SYNC, GTHREAD, OURS, POOLED]
    assert servers[SYNC].env == servers[GTHREAD].env == servers[OURS].env
    assert servers[POOLED].env == {**servers[OURS].env, "GREENLINE_POOL": "1"}
    for server in servers.values():
        assert server.command[-4:-2] == ["--paste", "kinto.ini"]


@pytest.mark.parametrize(
    ("who", "writes", "stored", "problems"),
    [
        pytest.param(OURS, Counter({"201": 7}), 7, 0, id="each-is-a-row"),
        pytest.param(OURS, Counter({"201": 7, "409": 2}), 7, 0, id="the-application-s-own"),
        pytest.param(OURS, Counter({"201": 7}), 6, 1, id="one-is-lost"),
        pytest.param(SYNC, Counter({"201": 7}), 8, 1, id="one-too-many"),
        pytest.param(SYNC, Counter({"201": 7, "error": 2}), 8, 0, id="without-an-answer"),
        pytest.param(OURS, Counter({"201": 7, "500": 1}), 7, 1, id="a-wrong-answer"),
        pytest.param(GTHREAD, Counter({"201": 7, "500": 1}), 7, 0, id="a-peer-s-wrong-answer"),
    ],
)
def test_an_acknowledged_write_is_a_row(
    monkeypatch: pytest.MonkeyPatch, who: str, writes: Counter[str], stored: int, problems: int
) -> None:
    """Of anybody, and an answer of ours is right; else the run is invalid."""
    assert len(judged(monkeypatch, f"{who} 0", writes, stored)) == problems


def test_the_table_goes_into_the_page(tmp_path: Path) -> None:
    """Three rows an application: the medians of the rounds, and the most connections."""
    found = migrate.Migrate(50, 2, 1.0)
    found._folder = tmp_path
    found._figures["kinto"] = {who: migrate.Figures([10.0, 20.0], [5.0], 9) for who in SERVERS}
    assert found.finish() == 0
    page = tmp_path / "page.md"
    page.write_text("<!-- results: migrate -->\n<!-- end -->\n")
    assert Page(page, tmp_path).write() == ["migrate: written"]
    text = page.read_text()
    assert f"| application | 50 clients | sync | gthread-8 | {OURS} | {POOLED} |" in text
    assert "| kinto | reads a second | 15 | 15 | 15 | 15 |" in text
    assert "| | connections at most | 9 | 9 | 9 | 9 |" in text
