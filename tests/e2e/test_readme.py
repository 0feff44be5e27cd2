"""What the README says to type works as it stands there; other tests run `make serve` and more."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from embedded.postgres import Postgres
from tests.e2e.hosting import NO_CONFIG, accepts
from tests.helpers.budget import budget
from tests.helpers.pages import blocks, read, write_example
from tests.helpers.support import CHECKOUT, Databases, free_port, run, service, wait_until

README = read("README.md")
COMMANDS = [line for block in blocks(README, "sh") for line in block.splitlines()]
HOST, BUDGET = "gunicorn -k greenline.worker.GreenWorker legacy:app", "greenline budget "
SERVE = "gunicorn -c gunicorn.conf.py app.wsgi:app"


def command(beginning: str) -> list[str]:
    """Return the words of the README's only command that begins so."""
    (line,) = (line for line in COMMANDS if line.startswith(beginning))
    return shlex.split(line)


def test_each_command_of_the_readme_is_run_by_a_test() -> None:
    """A command more needs a test more."""
    ours = [HOST, BUDGET, SERVE, "flask db ", "flask keys "]
    # test_serve.py, make test itself, and test_drivers.py, which installs the checkout.
    others = ["make serve", "make test", "pip install <this checkout>"]
    assert len(COMMANDS) >= len(ours) + len(others)
    assert [line for line in COMMANDS if not line.startswith((*ours, *others))] == []


def test_the_parts_serve_a_script(tmp_path: Path, postgres: Postgres) -> None:
    """The README's script, as it stands there."""
    done = subprocess.run(
        [sys.executable, str(write_example("README.md", "report.py", tmp_path))],
        env={**os.environ, "DATABASE_URL": postgres.url, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


def test_the_budget_is_printed_without_a_server() -> None:
    """As typed; the sum is there."""
    done = budget(*command(BUDGET)[2:])
    assert done.exit_code == 0, done.output
    assert "max_connections" in done.stdout


def test_the_page_of_the_service_has_the_same_lines() -> None:
    """One start, said twice."""
    lines = [block for block in blocks(README, "sh") if SERVE in block]
    assert lines == [block for block in blocks(read("docs/service.md"), "sh") if SERVE in block]


def test_the_service_starts_by_the_three_lines(empty_database: str, empty_mongo: str) -> None:
    """On empty databases, twice in a row: the second API key replaces the first one."""
    environ = {**Databases(empty_database, empty_mongo).environ, "AUTH": "on"}
    keys = []
    for _ in range(2):
        run(command("flask db "), environ)
        keys.append(run(command("flask keys "), environ).stdout.strip())
    typed = command(SERVE)
    with service(environ, config=typed[2], target=typed[3]) as running:
        statuses = [
            running.get("/books", headers={"Authorization": f"Bearer {key}"}).status for key in keys
        ]
    assert statuses == [401, 200]


@pytest.mark.parametrize("page", ["README.md", "docs/hosting.md"])
def test_gunicorn_hosts_an_application_by_the_line(page: str, tmp_path: Path) -> None:
    """As typed, but for the port; the worker class is found by its name."""
    assert HOST in read(page)
    (tmp_path / "legacy.py").write_text("from tests.e2e.counting import app\n")
    typed = shlex.split(HOST)
    environ = {"PYTHONPATH": f"{tmp_path}:{CHECKOUT}", "PORT": str(free_port())}
    with service(environ, *typed[1:3], config=NO_CONFIG, target=typed[3], wait=False) as running:
        wait_until(lambda: accepts(running), "the worker to serve")
