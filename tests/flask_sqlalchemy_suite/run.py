"""
Run Flask-SQLAlchemy's tests: run.py CHECKOUT WHOSE RESULT PATH..., in a copy of the sdist.

WHOSE is ``stock``, or ``ours`` for a process that is patched. The result has the outcome of each.
"""

# ruff: noqa: E402  (patching comes first)

import json
import os
import sys
from pathlib import Path

CHECKOUT, WHOSE, RESULT, *PATHS = sys.argv[1:]
sys.path[0] = CHECKOUT

if WHOSE == "ours":
    from greenline import patch

    patch.patch_all()

sys.path[0] = os.path.join(os.getcwd(), "src")

import psycopg2
import pytest

outcomes: dict[str, str] = {}


class Plugin:
    """Keeps each test's outcome, and gives each an empty database."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure of any phase, or that it was skipped."""
        if report.when == "call" or report.outcome != "passed":
            outcomes[report.nodeid] = report.outcome

    @pytest.fixture(autouse=True)
    def empty_schema(self) -> None:
        """Make the schema anew."""
        conn = psycopg2.connect(os.environ["DATABASE_URL"])
        with conn, conn.cursor() as cursor:
            cursor.execute("drop schema public cascade; create schema public")
        conn.close()


pytest.main(["-q", "-p", "no:cacheprovider", *PATHS], plugins=[Plugin()])
Path(RESULT).write_text(json.dumps(outcomes))
