"""SQLAlchemy's own tests of its PostgreSQL dialect and its pools pass on pooled connections."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import psycopg2
import pytest

from embedded.postgres import Postgres
from tests.helpers import sdist
from tests.helpers.support import CHECKOUT, IS_LONG, environ

SUITE = CHECKOUT / "tests" / "sqlalchemy_suite"
# What the short form runs.
SHORT = ("test/dialect/postgresql/test_dialect.py",)
LONG = ("test/engine/test_pool.py", "test/dialect/postgresql")
# An extension, a locale and a port that the embedded Postgres does not have.
LACKING = "not hstore and not array_str_collation and not multiple_host_real_connect"
MIN_PASSED = {SHORT: 150, LONG: 9_900}


@pytest.mark.timeout(1200)  # some 10,000 tests in the long form, and the machine may be busy
def test_sqlalchemys_own_tests_pass(tmp_path: Path) -> None:
    """With QueuePool and all the others above the pool."""
    source = sdist.folder("sqlalchemy", version("sqlalchemy"), SUITE / "sdist.txt")
    paths = LONG if IS_LONG else SHORT
    with Postgres(tmp_path / "postgres", durable=False) as server:
        execute(server, "alter system set max_prepared_transactions = 10")
    with server:
        execute(server, "create schema test_schema", "create schema test_schema_2")
        url = server.superuser_url.replace("postgresql:", "postgresql+psycopg2:")
        done = subprocess.run(
            [sys.executable, str(SUITE / "run.py"), str(CHECKOUT), url, *paths, "-k", LACKING],
            cwd=source,
            env=environ({"GREENLINE_POOL": "1", "WEB_CONCURRENCY": "1"}),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=1000,
        )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    assert int(passed[1]) >= MIN_PASSED[paths]


def execute(server: Postgres, *statements: str) -> None:
    conn = psycopg2.connect(server.superuser_url)
    conn.autocommit = True
    with conn.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    conn.close()
