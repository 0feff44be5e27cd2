"""The programs on the pages of docs/ work as they stand there."""

import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from embedded.mongo import Mongo
from embedded.postgres import Postgres
from tests.e2e.hosting import NO_CONFIG, accepts, hosting
from tests.helpers.pages import commands, write_example
from tests.helpers.support import CHECKOUT, START_LIMIT_S, service, wait_until

HOSTING, POOLS = (CHECKOUT / "docs" / name for name in ("hosting.md", "pools.md"))
GUNICORN = [line for line in commands(HOSTING) if line.startswith("gunicorn ")]
(POOLED,) = [line for line in commands(POOLS) if "gunicorn -k" in line]
# docs/hosting.md names the project mysite beside this program of one file.
MYSITE = "from catalogue import application\n"


@pytest.mark.parametrize(
    ("line", "name", "path", "answer"),
    [
        (GUNICORN[0], "legacy.py", "/slow", {"answer": 42}),
        (POOLED, "legacy.py", "/slow", {"answer": 42}),
        (GUNICORN[1], "catalogue.py", "/items/7", {"item": 7}),
    ],
    ids=["Flask with psycopg2", "Flask, pooled", "Django"],
)
def test_a_legacy_application_runs_side_by_side(
    tmp_path: Path, postgres: Postgres, line: str, name: str, path: str, answer: object
) -> None:
    """The pages' commands and programs: fifty requests of a second take a few seconds."""
    write_example("docs/hosting.md", name, tmp_path)
    (tmp_path / "mysite").mkdir()
    (tmp_path / "mysite" / "wsgi.py").write_text(MYSITE)
    before, _, rest = line.partition("gunicorn ")
    variables = dict(word.split("=") for word in before.split())
    environ = {"PYTHONPATH": str(tmp_path), "DATABASE_URL": postgres.url, **variables}
    *arguments, target = shlex.split(rest)
    typed = service(environ, *arguments, target=target, config=NO_CONFIG, wait=False)
    with typed as running, ThreadPoolExecutor(50) as clients:
        wait_until(lambda: accepts(running), "the worker to serve")
        started = time.monotonic()
        answers = list(clients.map(lambda _: running.get(path), range(50)))
        assert time.monotonic() - started < 8
        assert [one.status for one in answers] == [200] * 50
        assert all(one.json == answer for one in answers)


@pytest.mark.parametrize(
    ("name", "printed"),
    [("report.py", "1\n42\n1.0\n"), ("engine.py", "42\n"), ("titles.py", "42\n")],
)
def test_a_script_of_the_page_about_pools_runs(
    tmp_path: Path, postgres: Postgres, mongo: Mongo, name: str, printed: str
) -> None:
    """docs/pools.md: with both databases, with SQLAlchemy's engine, and with ours for it."""
    urls = {"DATABASE_URL": postgres.url, "MONGODB_URI": f"{mongo.url.rstrip('/')}/pages"}
    done = subprocess.run(
        [sys.executable, str(write_example("docs/pools.md", name, tmp_path))],
        env={**os.environ, **urls, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_a_route_shows_the_counts(tmp_path: Path) -> None:
    """docs/watch.md's route: JSON, with the requests before and the one in progress."""
    write_example("docs/watch.md", "counts.py", tmp_path)
    with hosting("counts:app", PYTHONPATH=str(tmp_path)) as running:
        wait_until(
            lambda: running.get("/counts").json.get("limiter limit", 0) > 0, "a worker's values"
        )
        answer = running.get("/counts")
    assert answer.status == 200
    assert answer.json["requests /counts GET 200"] >= 1
    assert answer.json["limiter in_progress"] >= 0
