"""What is read out of a server's explain."""

from typing import Any

import pytest

from bench import plans

SCAN = {"stage": "IXSCAN", "indexName": "slug.US_1_price.currency_1"}
FETCH = {"stage": "FETCH", "inputStage": SCAN}
STATS = {"totalKeysExamined": 7, "totalDocsExamined": 8}
EXPLAINED = {"queryPlanner": {"winningPlan": FETCH}, "executionStats": STATS}


class Explaining:
    """A collection of a server that explains everything in the same way."""

    name = "products"

    def __init__(self, explained: dict[str, Any]) -> None:
        self.database = self
        self._explained = explained
        self.asked: Any = None

    def command(self, name: str, asked: Any, verbosity: str) -> dict[str, Any]:
        """Answer an explain."""
        assert (name, verbosity) == ("explain", "executionStats")
        self.asked = asked
        return self._explained


@pytest.mark.parametrize(
    "explained",
    [
        pytest.param(EXPLAINED, id="find"),
        pytest.param({"stages": [{"$cursor": EXPLAINED}, {"$group": {}}]}, id="aggregate"),
        pytest.param(
            {
                **EXPLAINED,
                "queryPlanner": {"winningPlan": {"queryPlan": FETCH, "slotBasedPlan": {}}},
            },
            id="mongods-other-engine",
        ),
    ],
)
def test_a_plan_has_its_stages_its_index_and_what_was_looked_at(explained: dict[str, Any]) -> None:
    """Wherever the server's answer has them; the count is that of the question itself."""
    server: Any = Explaining(explained)
    found = plans.plan(server, "default", "count", {"find": "products"}, lambda: 3)
    assert server.asked == {"find": "products"}
    assert (found.stages, found.index) == ("FETCH < IXSCAN", SCAN["indexName"])
    assert (found.found, found.keys, found.documents) == (3, 7, 8)


def test_a_scan_has_no_index() -> None:
    """The table says so in a word."""
    explained = {**EXPLAINED, "queryPlanner": {"winningPlan": {"stage": "COLLSCAN"}}}
    server: Any = Explaining(explained)
    found = plans.plan(server, "missing", "page", {}, lambda: 3)
    _, line = plans.table([found]).splitlines()
    assert line.split()[-2:] == ["none", "COLLSCAN"]
