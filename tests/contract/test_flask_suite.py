"""Flask's own tests have the same outcomes on our application class as on Flask's."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.flask_suite import sdist
from tests.helpers.support import CHECKOUT, environ

RUNNER = CHECKOUT / "tests" / "flask_suite" / "run.py"

# What has another outcome on our class, and why.
DIFFERENT: dict[str, str] = {}

# What fails on Flask's own class too.
FAILING = {
    "tests/test_reqctx.py::test_bad_environ_raises_bad_request": (
        "Flask 3.1.3 expects 400 for a Host of invalid characters; since 3.1.8 Werkzeug takes "
        "it for no Host at all"
    ),
}


@dataclass(frozen=True)
class Run:
    """What came of the suite."""

    outcomes: dict[str, str]
    applications: int
    output: str


def run(whose: str, folder: Path) -> Run:
    """Run the suite on *whose* class: ours, in a process patched by gevent, or stock Flask's."""
    # Outside of the checkout, whose .flaskenv some of the tests would find.
    suite = folder / whose
    shutil.copytree(sdist.folder() / "tests", suite / "tests")
    shutil.copy(sdist.folder() / "pyproject.toml", suite)
    result = suite / "result.json"
    done = subprocess.run(
        [sys.executable, str(RUNNER), str(CHECKOUT), whose, str(result)],
        cwd=suite,
        env=environ({}),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=170,
    )
    assert result.exists(), done.stdout
    return Run(**json.loads(result.read_text()), output=done.stdout)


@pytest.mark.timeout(360)
def test_flasks_own_tests_have_the_same_outcomes_on_our_class(tmp_path: Path) -> None:
    """Each of Flask's tests does on our class what it does on Flask's, but for those listed."""
    stock, ours = run("stock", tmp_path), run("ours", tmp_path)
    assert len(stock.outcomes) > 450
    assert ours.applications == stock.applications > 200
    assert ours.outcomes.keys() == stock.outcomes.keys(), ours.output
    different = {test for test, outcome in ours.outcomes.items() if outcome != stock.outcomes[test]}
    assert different == set(DIFFERENT), ours.output
    failing = {test for test, outcome in stock.outcomes.items() if outcome != "passed"}
    assert failing == set(FAILING), stock.output
