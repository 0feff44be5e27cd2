"""Extensions' own tests, and httpbin's, have the same outcomes adopted as on Flask's class."""

from pathlib import Path

import pytest

from tests.flask_extensions import packages
from tests.flask_suite.running import Run, copy, run
from tests.helpers import sdist
from tests.helpers.support import CHECKOUT, IS_LONG

PINS = CHECKOUT / "tests" / "flask_extensions"
OF_SQLALCHEMY = CHECKOUT / "tests" / "flask_sqlalchemy_suite" / "sdist.txt"

# The sdist's name and version, the folder of its package, and how many tests pass at least on
# Flask's class. The others fail on both: those of Flask-RESTful since Flask 2.1, which answers 415
# where the type of JSON is missing; those of Flask-SQLAlchemy since SQLAlchemy 2.1. Two of
# Flask-WTF's are skipped.
SUITES = [
    ("httpbin", "0.10.4", "httpbin", 70),
    ("Flask-Login", "0.6.3", "src", 114),
    ("Flask-RESTful", "0.3.10", "flask_restful", 275),
    ("flask_smorest", "0.47.0", "src", 554),
    ("flask_sqlalchemy", "3.1.1", "src", 298),
    ("flask_wtf", "1.3.0", "src", 83),
]


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 runs them")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "version", "package", "min_passed"), SUITES)
def test_its_own_tests_have_the_same_outcomes(
    name: str, version: str, package: str, min_passed: int, tmp_path: Path
) -> None:
    """Each test does adopted what it does on Flask's class."""
    pins = OF_SQLALCHEMY if name == "flask_sqlalchemy" else PINS / f"{name}.txt"
    source = sdist.folder(name, version, pins)
    parts = ["tests", package, "pyproject.toml", "setup.cfg", "httpbin.egg-info"]
    arguments = ["-p", "nose_and_flask_2"] if name == "Flask-RESTful" else []

    def outcomes(whose: str) -> Run:
        folder = tmp_path / whose
        copy(source, folder, parts)
        path = [folder / package if package == "src" else folder, packages.folder(), PINS]
        return run(whose, folder, *arguments, "tests", path=path, limit_s=400)

    stock, adopted = outcomes("stock"), outcomes("adopted")
    assert len(stock.outcomes) - len(stock.but_passed()) >= min_passed, stock.output
    assert adopted.outcomes == stock.outcomes, adopted.output
    assert adopted.adopted
    assert [each for each in adopted.adopted if each.startswith("not ")] == []
