"""Flask's own tests have the same outcomes on our class, and adopted, as on Flask's class."""

from pathlib import Path

import pytest

from tests.flask_suite import sdist
from tests.flask_suite.running import Run, copy, run

# What has another outcome, and why.
DIFFERENT: dict[str, dict[str, str]] = {"ours": {}, "adopted": {}}

# What fails on Flask's own class too.
FAILING = {
    "tests/test_reqctx.py::test_bad_environ_raises_bad_request": (
        "Flask 3.1.3 expects 400 for a Host of invalid characters; since 3.1.8 Werkzeug takes "
        "it for no Host at all"
    ),
}


def outcomes(whose: str, folder: Path) -> Run:
    """Run the suite as *whose* says, in a folder of its own."""
    copy(sdist.folder(), folder / whose, ["tests", "pyproject.toml"])
    return run(whose, folder / whose, "tests")


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return what came of the suite on Flask's own class."""
    return outcomes("stock", tmp_path_factory.mktemp("suite"))


@pytest.mark.timeout(360)
@pytest.mark.parametrize("whose", DIFFERENT)
def test_flasks_own_tests_have_the_same_outcomes(whose: str, stock: Run, tmp_path: Path) -> None:
    """Each of Flask's tests does what it does on Flask's class, but for those listed."""
    ours = outcomes(whose, tmp_path)
    assert len(stock.outcomes) > 450
    assert ours.applications == stock.applications > 200
    assert ours.outcomes.keys() == stock.outcomes.keys(), ours.output
    different = {test for test, outcome in ours.outcomes.items() if outcome != stock.outcomes[test]}
    assert different == set(DIFFERENT[whose]), ours.output
    assert stock.but_passed() == set(FAILING), stock.output
    if whose == "adopted":
        assert [each for each in ours.adopted if each.startswith("not ")] == []
