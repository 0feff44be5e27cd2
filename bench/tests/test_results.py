"""The page of the benchmarks has what the benches measured."""

from pathlib import Path

import pytest

from bench import documents
from bench.promises import at_most
from bench.report import Report, Row
from bench.results import PAGES, Page

TEXT = """# Benchmarks

Before.

<!-- results: reads -->
old
<!-- end -->

Between.

<!-- results: other -->
kept
<!-- end -->
"""


def measured(folder: Path, problem: str | None = None) -> None:
    """Write the results of a bench as it does at its end."""
    found = Report("reads", folder / "results")
    for who, req_s in {"greenline": 30.0, "gthread": 20.0, "silent": 0.0}.items():
        found.add(Row("one row", who, 10, {"200": 10}, 1.0, req_s))
    if problem:
        found.invalid(problem)
    found.finish()
    (folder / "results" / "reads.png").write_bytes(b"a picture")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Return a page with two blocks."""
    path = tmp_path / "benchmarks.md"
    path.write_text(TEXT)
    return path


def test_a_block_gets_ratios_machine_day_and_picture(page: Path, tmp_path: Path) -> None:
    """Written twice, the page is the same."""
    measured(tmp_path)
    for _ in range(2):
        done = Page(page, tmp_path / "results").write()
        assert done == ["reads: written", "other: not measured here, left as it was"]
        text = page.read_text()
        assert "| our throughput over | clients | gthread | silent |" in text
        assert "| one row | 10 | 1.50 |  |" in text
        assert " cores, " in text
        assert "![reads](pictures/reads.png)" in text
        assert "old" not in text
        assert "Before." in text
        assert "Between.\n\n<!-- results: other -->\nkept\n<!-- end -->\n" in text
    assert (tmp_path / "pictures" / "reads.png").read_bytes() == b"a picture"


def test_verdicts_take_the_place_of_ratios(page: Path, tmp_path: Path) -> None:
    """A bench that compares two of our own servers has no peer."""
    found = Report("reads", tmp_path / "results")
    found.add(Row("late", "ours", 10, {"200": 10}, 1.0, 30.0, p99_ms=3))
    found.verdicts = [at_most("late over early", 1.2, 1.5)]
    found.finish()
    Page(page, tmp_path / "results").write()
    text = page.read_text()
    assert "\n- late over early: 1.20, keeps the limit 1.5\n" in text
    assert "|" not in text


def test_copies_are_compared_too(tmp_path: Path) -> None:
    """The bench of documents has no rows."""
    page = tmp_path / "page.md"
    page.write_text("<!-- results: documents -->\n<!-- end -->\n")
    found = documents.Report(tmp_path)
    for who, seconds in {"greenline": 1.0, "sequence": 3.0}.items():
        found.copies.append(documents.Copied("memory", who, 100, seconds, 1.0, 50.0, seconds))
    found.finish()
    assert Page(page, tmp_path).write() == ["documents: written"]
    assert "| a copy on memory | 1 | 3.00 |" in page.read_text()


def test_an_invalid_run_is_not_published(page: Path, tmp_path: Path) -> None:
    """Its block keeps the figures of an earlier run."""
    measured(tmp_path, "gthread gave a 500")
    done = Page(page, tmp_path / "results").write()
    assert done[0] == "reads: left as it was, invalid: gthread gave a 500"
    assert page.read_text() == TEXT


def test_each_block_of_the_page_names_a_bench() -> None:
    """A misspelt name would never be written."""
    bench = Path(__file__).parent.parent
    lines = [line for page in PAGES for line in page.read_text().splitlines()]
    names = [line.split()[2] for line in lines if "<!-- results:" in line]
    assert names
    for name in names:
        module = name.removesuffix("-4-workers").replace("-", "_")
        assert (bench / f"{module}.py").exists(), name
