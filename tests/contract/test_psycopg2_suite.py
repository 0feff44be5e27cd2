"""psycopg2's own tests pass in green mode, but for those of what does not exist in it."""

import json
import os
import re
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
from tests.helpers.support import CHECKOUT, environ

SUITE = CHECKOUT / "tests" / "psycopg2_suite"
IS_LONG = os.environ.get("GREENLINE_LONG_TESTS") == "1"

# psycopg2 has neither COPY nor large objects in green mode.
MISSING = re.compile(r"CopyTests|LargeObject|test_diagnostics_copy|SqlFormatTests\.test_copy")
DIFFERENT = {
    # It loads the system's libpq by its name, which need not be psycopg2's.
    "tests.test_connection.ConnectionTests.test_pgconn_ptr",
    # type(cursor) is a subclass of psycopg2's cursor, of the same behaviour.
    "tests.test_connection.ConnectionTests.test_cursor_factory_none",
}


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 runs psycopg2's own tests")
def test_psycopg2s_own_tests_pass(tmp_path: Path) -> None:
    """Those too that share a connection between threads, which are greenlets."""
    programs = f"{binaries(account())}:{os.environ['PATH']}"  # pg_config
    source = sdist.folder("psycopg2", version("psycopg2-binary"), SUITE / "sdist.txt", programs)
    result = tmp_path / "result.json"
    with Postgres(tmp_path / "postgres", durable=False) as server:
        admin = psycopg2.connect(server.superuser_url)
        admin.autocommit = True
        with admin.cursor() as cursor:
            cursor.execute("create database psycopg2_test")
        admin.close()
        (folder,) = parse_qs(urlsplit(server.url).query)["host"]
        database = {"PSYCOPG2_TESTDB_HOST": folder, "PSYCOPG2_TESTDB_USER": "postgres"}
        done = subprocess.run(
            [sys.executable, str(SUITE / "run.py"), str(CHECKOUT), str(result)],
            cwd=source,
            env=environ(database),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=600,
        )
    assert result.exists(), done.stdout
    outcomes: dict[str, str] = json.loads(result.read_text())
    failed = {test for test, outcome in outcomes.items() if outcome == "failed"}
    assert {test for test in failed if not MISSING.search(test)} <= DIFFERENT, done.stdout
    assert outcomes["tests.test_connection.ConnectionTests.test_commit_concurrency"] == "passed"
    assert sum(outcome == "passed" for outcome in outcomes.values()) > 600
