"""psycopg2's own tests pass in green mode, with the application's connections pooled or not."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg2
import pytest

from embedded.account import account
from embedded.cluster import binaries
from embedded.postgres import Postgres
from tests.helpers import sdist
from tests.helpers.support import CHECKOUT, IS_LONG, environ

SUITE = CHECKOUT / "tests" / "psycopg2_suite"

# A minute beyond the limit of the run, which a busy machine needs.
pytestmark = pytest.mark.timeout(660)

DIFFERENT = {
    # It loads the system's libpq by its name, which need not be psycopg2's.
    "tests.test_connection.ConnectionTests.test_pgconn_ptr",
    # type(cursor) is a subclass of psycopg2's cursor, of the same behaviour.
    "tests.test_connection.ConnectionTests.test_cursor_factory_none",
}
# What the short form runs.
SHORT = ("test_copy", "test_lobject", "test_notify", "test_transaction", "test_with")


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 runs all of psycopg2's own tests")
@pytest.mark.parametrize("pool", ["0", "1"], ids=["not pooled", "pooled"])
def test_psycopg2s_own_tests_pass(pool: str, tmp_path: Path) -> None:
    """Those too that share a connection between threads."""
    outcomes, text = run(pool, tmp_path)
    failed = {test for test, outcome in outcomes.items() if outcome == "failed"}
    assert failed <= DIFFERENT, text
    assert outcomes["tests.test_connection.ConnectionTests.test_commit_concurrency"] == "passed"
    two_phase = [
        outcome for test, outcome in outcomes.items() if ".ConnectionTwoPhaseTests." in test
    ]
    assert len(two_phase) > 15
    assert set(two_phase) == {"passed"}
    assert sum(outcome == "passed" for outcome in outcomes.values()) > 700


def test_some_of_psycopg2s_own_tests_pass(tmp_path: Path) -> None:
    """Those of what differs most: COPY, large objects, notifications and transactions."""
    outcomes, text = run("1", tmp_path, *SHORT)
    assert "failed" not in outcomes.values(), text
    assert sum(outcome == "passed" for outcome in outcomes.values()) > 80


def run(pool: str, tmp_path: Path, *modules: str) -> tuple[dict[str, str], str]:
    """Run these modules of the suite, or all; return the outcome of each test and the output."""
    programs = f"{binaries(account())}:{os.environ['PATH']}"  # pg_config
    source = sdist.folder("psycopg2", version("psycopg2-binary"), SUITE / "sdist.txt", programs)
    result = tmp_path / "result.json"
    with Postgres(tmp_path / "postgres", durable=False) as server:
        admin = psycopg2.connect(server.superuser_url)
        admin.autocommit = True
        with admin.cursor() as cursor:
            cursor.execute("create database psycopg2_test")
            cursor.execute("alter system set max_prepared_transactions = 10")
        admin.close()
        server.stop()
        server.start()
        (folder,) = parse_qs(urlsplit(server.url).query)["host"]
        database = {"PSYCOPG2_TESTDB_HOST": folder, "PSYCOPG2_TESTDB_USER": "postgres"}
        pooled = {"GREENLINE_POOL": pool, "WEB_CONCURRENCY": "1"}
        done = subprocess.run(
            [sys.executable, str(SUITE / "run.py"), str(CHECKOUT), str(result), *modules],
            cwd=source,
            env=environ({**database, **pooled}),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=600,
        )
    assert result.exists(), done.stdout
    outcomes: dict[str, str] = json.loads(result.read_text())
    return outcomes, done.stdout
