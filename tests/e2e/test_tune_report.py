"""The report of greenline tune, in a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from greenline.tune import report
from tests.helpers.browser import browser, complaints
from tests.helpers.forms import in_the_long_form
from tests.helpers.tuned import result

PHONE = 390
EVIL = "<img src=x onerror=document.title='mine'> $x^$"
# By section: the words in its picture, and the rows of its table.
PICTURES = {
    "rate": (["knee", "p50", "p99", "p99.9", "offered", "objective of p99"], 6),
    "shares": (
        [
            "queued",
            "waits for the pool",
            "Postgres",
            "application",
            "0.5 x: 200/s, 12 ms",
            "1.5 x: 600/s, 12 ms",
        ],
        3,
    ),
    "pool": (["recommended: 4", "fitted (USL), no use for a prediction"], 5),
    "workers": (["fitted (USL)", "predicted", "recommended: 2"], 6),
    "limit": (["requests in progress", "recommended: 16"], 3),
    "idle": (["memory of a worker in MiB"], 4),
    "verification": (["predicted", "measured", "documentation's"], 2),
}


@pytest.fixture(scope="module")
def chrome() -> Iterator[webdriver.Chrome]:
    with browser(PHONE, 844) as running:
        yield running
        assert complaints(running) == []


def shown(chrome: webdriver.Chrome, path: Path) -> webdriver.Chrome:
    chrome.get(path.as_uri())
    return chrome


def texts(chrome: webdriver.Chrome, selector: str) -> list[str]:
    return [each.text for each in chrome.find_elements(By.CSS_SELECTOR, selector)]


def words(chrome: webdriver.Chrome, selector: str) -> list[str]:
    """Return the texts within a picture, which scrolling does not hide."""
    script = "return [...document.querySelectorAll(arguments[0])].map(one => one.textContent)"
    return [one.strip() for one in run(chrome, script, f"{selector} svg text")]


def run(chrome: webdriver.Chrome, script: str, *arguments: str) -> Any:
    return chrome.execute_script(script, *arguments)  # type: ignore[no-untyped-call]


def test_each_picture_has_its_figures_below(chrome: webdriver.Chrome, tmp_path: Path) -> None:
    """All seven are drawn, with the knee, the fit and the recommendation, and a row a step."""
    report.write(result(), tmp_path / "report.html")
    page = shown(chrome, tmp_path / "report.html")
    for name, (wanted, rows) in PICTURES.items():
        (picture,) = page.find_elements(By.CSS_SELECTOR, f"#{name} figure svg")
        assert picture.size["width"] > 300, name
        assert picture.size["height"] > 100, name
        assert set(wanted) <= set(words(page, f"#{name}")), name
        cells = texts(page, f"#{name} table tr")
        assert len(cells) == 1 + rows, name
        # Below it, not beside it.
        (table,) = page.find_elements(By.CSS_SELECTOR, f"#{name} table")
        assert table.location["y"] > picture.location["y"] + picture.size["height"] - 1
    assert "The knee is at 400 requests a second, with a p99 of 150 ms." in texts(page, "#rate p")
    assert any("sigma 0.05, kappa 0.002" in one for one in texts(page, "#workers p"))
    assert any(one.startswith("Not extrapolated:") for one in texts(page, "#pool p"))
    assert texts(page, ".recommended code")[0] == "WEB_CONCURRENCY=2"
    assert texts(page, ".warning") == list(result().warnings)


def test_it_is_one_file_and_runs_nothing(chrome: webdriver.Chrome, tmp_path: Path) -> None:
    """No other resource is loaded, a name is text, and a phone need not scroll sideways."""
    report.write(result(target=EVIL), tmp_path / "report.html")
    page = shown(chrome, tmp_path / "report.html")
    assert run(page, "return performance.getEntriesByType('resource').map(one => one.name)") == []
    assert texts(page, ".result h2") == [EVIL]
    assert page.find_elements(By.CSS_SELECTOR, "img, script, link, iframe") == []
    assert run(page, "return document.documentElement.scrollWidth") <= PHONE


@in_the_long_form
def test_two_results_are_side_by_side(chrome: webdriver.Chrome, tmp_path: Path) -> None:
    """One picture has both, on one scale; what has changed comes first, with what is noise."""
    report.compare(result(), result(faster=1.03), tmp_path / "both.html")
    page = shown(chrome, tmp_path / "both.html")
    rows = texts(page, "#differences tr")
    assert rows[1] == "rate of the knee 400.0/s 412.0/s +3.0%, within the noise (8 %)"
    assert rows[2] == "p99 at the knee 150 ms 150 ms -"
    for name in PICTURES:
        assert {"A", "B"} <= set(words(page, f"#{name}")), name
        assert len(page.find_elements(By.CSS_SELECTOR, f"#{name} figure svg")) == 1
        assert len(page.find_elements(By.CSS_SELECTOR, f"#{name} table")) == 2
    page.set_window_size(1_300, 900)
    first, second = page.find_elements(By.CSS_SELECTOR, "#rate table")
    assert first.location["y"] == second.location["y"]
    assert first.location["x"] < second.location["x"]
    page.set_window_size(PHONE, 844)


def test_what_was_not_measured_is_said(chrome: webdriver.Chrome, tmp_path: Path) -> None:
    """A run that was ended early has a report too, beside a whole one as well."""
    little = msgspec.structs.replace(
        result(), sweeps=result().sweeps[:1], fits=[], recommendations=[], verification=None
    )
    report.write(little, tmp_path / "report.html")
    page = shown(chrome, tmp_path / "report.html")
    assert texts(page, "#rate p")[-1] != "Not measured."
    for name in ("pool", "workers", "limit", "idle", "verification"):
        assert texts(page, f"#{name} p") == ["Not measured."]
        assert page.find_elements(By.CSS_SELECTOR, f"#{name} svg") == []
    report.compare(little, result(), tmp_path / "both.html")
    page = shown(chrome, tmp_path / "both.html")
    assert words(page, "#workers").count("not measured") == 1
    assert texts(page, "#workers p").count("Not measured.") == 1
    assert "recommended pool - 4 -" in texts(page, "#differences tr")


@in_the_long_form
def test_results_of_different_loads_are_not_compared_in_silence(
    chrome: webdriver.Chrome, tmp_path: Path
) -> None:
    """The first row of the differences says what differs."""
    other = msgspec.structs.replace(result(), offered="GET /orders")
    report.compare(result(), other, tmp_path / "both.html")
    page = shown(chrome, tmp_path / "both.html")
    assert texts(page, "#differences tr")[1] == (
        "load GET /books, GET /authors GET /orders not the same: the figures do not compare"
    )
