"""Django's own tests of its PostgreSQL backend and of transactions pass on pooled connections."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from embedded.postgres import Postgres
from tests.helpers import sdist
from tests.helpers.support import CHECKOUT, IS_LONG, environ

SUITE = CHECKOUT / "tests" / "django_suite"
LABELS = ("backends.postgresql", "transactions")
ENGINES = {
    "Django's": {"POOLED_ENGINE": "django.db.backends.postgresql", "GREENLINE_POOL": "1"},
    "ours": {"POOLED_ENGINE": "greenline.django.postgresql"},
}
DIFFERENT = {
    "Django's": set[str](),
    # On ours a session begins with the project's time zone, and needs no statement for it.
    "ours": {"test_bypass_timezone_configuration"},
}


@pytest.mark.timeout(660)  # a minute beyond the limit of the run, which a busy machine needs
@pytest.mark.parametrize("engine", ENGINES if IS_LONG else ["Django's"])
def test_djangos_own_tests_pass(engine: str, tmp_path: Path) -> None:
    """On Django's backend, unchanged, and on ours."""
    source = sdist.folder("django", version("django"), SUITE / "sdist.txt")
    with Postgres(tmp_path / "postgres", durable=False) as server:
        given = {**ENGINES[engine], "DATABASE_URL": server.superuser_url, "WEB_CONCURRENCY": "1"}
        done = subprocess.run(
            [sys.executable, str(SUITE / "run.py"), str(CHECKOUT), *LABELS],
            cwd=source / "tests",
            env=environ(given),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=600,
        )
    failed = set(re.findall(r"^(?:ERROR|FAIL): (\w+)", done.stdout, re.MULTILINE))
    assert failed == DIFFERENT[engine], done.stdout
    ran = re.search(r"^Ran (\d+) tests", done.stdout, re.MULTILINE)
    assert ran, done.stdout
    assert int(ran[1]) >= 150
