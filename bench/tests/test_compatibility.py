"""bench.compatibility: its verdicts, what it writes, and real runs of what is installed here."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import compatibility
from bench.compatibility import Environment, Trial, Wait, record, try_out, verdict, why, write
from bench.compatibility_lineup import BY_NAME, LIBRARIES
from bench.compatibility_servers import SERVERS
from embedded import mongo
from greenline.errors import ConfigError
from greenline.hub.compatibility import (
    BLOCKS,
    BREAKS,
    NEEDS_ORDER,
    PATCHED_FIRST,
    PATH,
    VERDICTS,
    YIELDS,
    records,
)
from tests.helpers.forms import some
from tests.helpers.support import CHECKOUT

GOOD, BAD = Wait(1.0, 0.01, 0.02), Wait(1.0, 0.99, 1.0)


@pytest.mark.parametrize(
    ("name", "trial", "expected"),
    [
        ("redis", Trial("1", GOOD, GOOD, None, 100), YIELDS),
        ("psycopg", Trial("1", GOOD, BAD, None, 100), PATCHED_FIRST),
        ("redis", Trial("1", GOOD, BAD, None, 100, "a place is lost"), BREAKS),
        ("pycurl", Trial("1", BAD), BLOCKS),
        ("sentry-sdk", Trial("1", GOOD, GOOD, None, 100), YIELDS),
        ("sentry-sdk", Trial("1", GOOD, None, None, 100, "", "it fails"), NEEDS_ORDER),
        ("ddtrace.auto", Trial("1", BAD, prepared=GOOD), NEEDS_ORDER),
        ("ddtrace.auto", Trial("1", BAD, prepared=BAD), BLOCKS),
    ],
)
def test_the_verdict_follows_from_the_figures(name: str, trial: Trial, expected: str) -> None:
    """An agent that yields where it is started before the patching needs an order."""
    assert verdict(BY_NAME[name], trial) == expected


def test_the_words_have_the_figures() -> None:
    """Each that was measured."""
    said = why(BY_NAME["redis"], Trial("1", GOOD, BAD, None, 100, "a call fails"))
    assert "imported before patching by 1.0 s" in said
    assert "after 100 interruptions a call fails" in said
    said = why(BY_NAME["sentry-sdk"], Trial("1", GOOD, None, None, 100, "", "no answer"))
    assert "started before patching it fails: no answer" in said
    said = why(BY_NAME["ddtrace.auto"], Trial("1", BAD, prepared=GOOD))
    assert "late by 1.0 s" in said
    assert "started before patching by 10 ms" in said


def test_what_yields_only_when_it_starts_before_the_patching() -> None:
    """The doctor is told so, of an agent that blocks in the application."""
    name = "ddtrace.auto"
    assert record(BY_NAME[name], Trial("1", BAD, prepared=GOOD)).before_patching
    assert not record(BY_NAME[name], Trial("1", GOOD)).before_patching
    assert not record(BY_NAME["redis"], Trial("1", BAD)).before_patching


def test_each_library_is_tried_or_has_a_verdict() -> None:
    """And has a record in the table, if it is not tried."""
    known = {(each.name, each.when) for each in records()}
    for each in LIBRARIES:
        assert bool(each.server) == bool(each.ask) != bool(each.verdict)
        assert each.server in {"", *SERVERS}
        assert each.verdict in {None, *VERDICTS}
        assert each.server or (each.name, each.when) in known


def test_the_page_is_what_the_table_says(tmp_path: Path) -> None:
    """Writing both again changes nothing; a new record takes the place of the one before it."""
    table, page = tmp_path / "table.json", tmp_path / "page.md"
    shutil.copy(PATH, table)
    shutil.copy(CHECKOUT / "docs" / "compatibility.md", page)
    before = page.read_text()
    write([], table, page)
    assert (table.read_bytes(), page.read_text()) == (PATH.read_bytes(), before)
    new = record(BY_NAME["redis"], Trial("99.9", GOOD))
    write([new], table, page)
    assert [each for each in records(table) if each.name == "redis"] == [new]
    assert len(records(table)) == len(records())
    assert f"| 99.9 | {new.date} | yields |" in page.read_text()


@pytest.mark.parametrize("name", some(["psycopg2", "pymongo", "redis"]))
def test_a_library_that_is_installed_here_is_tried(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a real server; a few interruptions, with all places and answers afterwards."""
    if name == "pymongo" and not mongo.is_available():
        pytest.skip("no MongoDB for this platform")
    monkeypatch.setattr(compatibility, "INTERRUPTIONS", 5)
    monkeypatch.setattr(compatibility, "INTERRUPTED_S", 2.0)
    library = replace(BY_NAME[name], at_once=8, places=3)
    try:
        trial = try_out(library, Environment(Path(sys.prefix)), installs=False)
    except compatibility.Failure as error:
        if isinstance(error.__cause__, ConfigError):
            pytest.skip(str(error))
        raise
    assert verdict(library, trial) in (YIELDS, PATCHED_FIRST)
    assert not trial.wait.blocks
    assert trial.interruptions >= 5
    assert trial.damage == ""


def test_a_call_that_computes_is_seen_to_block() -> None:
    """numpy is installed here; the worker that waits for it serves nothing else meanwhile."""
    pytest.importorskip("numpy")
    trial = try_out(BY_NAME["numpy"], Environment(Path(sys.prefix)), installs=False)
    assert trial.wait.blocks
    assert trial.wait.other_s > 0.3
    assert verdict(BY_NAME["numpy"], trial) == BLOCKS
