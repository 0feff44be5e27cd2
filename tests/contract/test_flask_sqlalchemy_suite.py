"""Flask-SQLAlchemy's own tests have the same outcomes on pooled connections as without."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from embedded.postgres import Postgres
from tests.helpers import sdist
from tests.helpers.support import CHECKOUT, environ

SUITE = CHECKOUT / "tests" / "flask_sqlalchemy_suite"
IS_LONG = os.environ.get("GREENLINE_LONG_TESTS") == "1"
SHORT, LONG = ("tests/test_session.py",), ("tests",)
PATHS = LONG if IS_LONG else SHORT
MIN_PASSED = {SHORT: 5, LONG: 240}


def run(whose: str, source: Path, folder: Path) -> dict[str, str]:
    """Run the suite on Postgres in place of sqlite, and return the outcome of each test."""
    suite, result = folder / whose, folder / f"{whose}.json"
    shutil.copytree(source, suite)
    conftest = suite / "tests" / "conftest.py"
    text = conftest.read_text(encoding="utf-8")
    assert text.count('"sqlite://"') == 1
    with Postgres(folder / f"{whose} postgres", durable=False) as server:
        # Some tests drop a table that their session still reads, which sqlite allows.
        url = server.superuser_url.replace("postgresql:", "postgresql+psycopg2:")
        url += "&options=-c%20lock_timeout%3D500"
        conftest.write_text(text.replace('"sqlite://"', repr(url)), encoding="utf-8")
        given = {"GREENLINE_POOL": "1", "DATABASE_URL": server.superuser_url}
        done = subprocess.run(
            [sys.executable, str(SUITE / "run.py"), str(CHECKOUT), whose, str(result), *PATHS],
            cwd=suite,
            env=environ(given),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=400,
        )
    assert result.exists(), done.stdout
    outcomes: dict[str, str] = json.loads(result.read_text())
    return outcomes


@pytest.mark.timeout(900)
def test_flask_sqlalchemys_own_tests_have_the_same_outcomes(tmp_path: Path) -> None:
    """On Postgres, in a process that is patched and one that is not."""
    source = sdist.folder("flask_sqlalchemy", "3.1.1", SUITE / "sdist.txt")
    stock, ours = run("stock", source, tmp_path), run("ours", source, tmp_path)
    assert ours == stock
    assert sum(outcome == "passed" for outcome in stock.values()) >= MIN_PASSED[PATHS]
