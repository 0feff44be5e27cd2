"""deploy/grafana: the dashboard is what Grafana's library makes, and leaves no metric out."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.deploy.dashboard import HEIGHT, PATH, STAT_HEIGHT, WIDTH, made
from tests.helpers.support import CHECKOUT

# What a person sees without scrolling on a screen of 1,080 lines, in Grafana's units of 38.
SCREEN = 24
OF_FAMILY = re.compile(r"_(bucket|sum|count|total)$")

Panel = dict[str, Any]


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    """The file that is imported."""
    found: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def panels(dashboard: dict[str, Any]) -> list[Panel]:
    """All that is not a row."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions(panels: list[Panel]) -> Iterator[str]:
    for panel in panels:
        for target in panel["targets"]:
            yield target["expr"]


def test_the_file_is_up_to_date() -> None:
    """`python -m tests.deploy.dashboard` writes it anew."""
    assert PATH.read_text(encoding="utf-8") == made()


def test_grafanas_library_knows_every_field(dashboard: dict[str, Any]) -> None:
    """It leaves out what is not in the schema, so the same must come back."""
    plugins.register_default_plugins()
    read = Dashboard.from_json(dashboard)
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == dashboard


def test_it_is_imported_anywhere(dashboard: dict[str, Any], panels: list[Panel]) -> None:
    """The Prometheus is chosen on the page, and so are the hosts; each panel and query asks it."""
    variables = [each["name"] for each in dashboard["templating"]["list"]]
    assert variables == ["datasource", "job", "instance"]
    source = {"type": "prometheus", "uid": "${datasource}"}
    asked = [panel["datasource"] for panel in panels]
    asked += [target["datasource"] for panel in panels for target in panel["targets"]]
    asked += [each["datasource"] for each in dashboard["annotations"]["list"]]
    assert [each for each in asked if each != source] == []
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_first_screen_answers_the_question(panels: list[Panel]) -> None:
    """Eight verdicts with colours; what is full, what takes the time, what waits; the routes."""
    verdicts, limits = panels[:8], panels[8:11]
    assert {(panel["type"], panel["gridPos"]["y"]) for panel in verdicts} == {("stat", 1)}
    assert len({panel["gridPos"]["y"] for panel in limits}) == 1
    for row in (verdicts, limits):
        assert sum(panel["gridPos"]["w"] for panel in row) == WIDTH
    assert STAT_HEIGHT + HEIGHT + 2 <= SCREEN
    assert all(panel["gridPos"]["y"] + panel["gridPos"]["h"] <= SCREEN for panel in panels[:15])
    # The requests a second are neither good nor bad.
    colours = [panel["fieldConfig"]["defaults"]["thresholds"]["steps"] for panel in verdicts]
    assert [len(steps) > 1 for steps in colours] == [False] + [True] * 7


def test_each_panel_says_what_is_normal(panels: list[Panel]) -> None:
    """And has a title of its own, by which other panels refer to it."""
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles)
    texts = " ".join(panel["description"] for panel in panels)
    assert all(len(panel["description"]) > 20 for panel in panels)
    assert set(re.findall(r"'([A-Z][^']+)'", texts)) <= {*titles, "What limits it?"} | {
        "Perhaps out of memory?"
    }
    numbers = [panel["fieldConfig"]["defaults"] for panel in panels if panel["type"] != "table"]
    assert all(each["unit"] for each in numbers)


def test_each_metric_is_on_it(panels: list[Panel]) -> None:
    """Those that docs/watch.md names; every expression is for the hosts that are chosen."""
    page = (CHECKOUT / "docs/watch.md").read_text(encoding="utf-8")
    section = page.partition("## Metrics")[2].partition("## Counts")[0]
    named = set(re.findall(r"^\| .*", section, re.MULTILINE))
    metrics = {name for row in named for name in re.findall(r"`(greenline_\w+)`", row)}
    metrics |= {
        f"greenline_pool_{name}" for row in named for name in re.findall(r"`\.\.\._(\w+)`", row)
    }
    assert len(metrics) > 30
    used: set[str] = set()
    for expression in expressions(panels):
        for name, matchers in re.findall(r"\b(greenline_\w+|up)\b(\{[^}]*\})?", expression):
            assert matchers.endswith('job=~"$job",instance=~"$instance"}'), expression
            used.add(name)
    assert {OF_FAMILY.sub("", name) for name in metrics} <= {OF_FAMILY.sub("", n) for n in used}
