"""What the README says to type works as it stands there; other tests run `make serve` and more."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from embedded.postgres import Postgres
from tests.e2e.hosting import accepts, at_once
from tests.helpers.budget import budget
from tests.helpers.pages import blocks, read, write_example
from tests.helpers.support import (
    BIN,
    CHECKOUT,
    START_LIMIT_S,
    Databases,
    Service,
    environ,
    free_port,
    run,
    service,
    wait_until,
)

README = read("README.md")
COMMANDS = [line for block in blocks(README, "sh") for line in block.splitlines()]
HOST, BUDGET = "(cd examples && ", "greenline budget "
SERVE = "gunicorn -c gunicorn.conf.py app.wsgi:app"


def command(beginning: str) -> list[str]:
    """Return the words of the README's only command that begins so."""
    (line,) = (line for line in COMMANDS if line.startswith(beginning))
    return shlex.split(line)


def test_each_command_of_the_readme_is_run_by_a_test() -> None:
    """A command more needs a test more."""
    ours = [HOST, BUDGET, SERVE, "flask db ", "flask keys "]
    # test_serve.py, make test itself, and test_examples.py: test_commands.py names the tests.
    others = ["make serve", "make test", "pip install . flask psycopg2-binary"]
    assert len(COMMANDS) >= len(ours) + len(others)
    assert [line for line in COMMANDS if not line.startswith((*ours, *others))] == []


def test_the_parts_serve_a_script(tmp_path: Path, postgres: Postgres) -> None:
    """The README's script, as it stands there."""
    done = subprocess.run(
        [sys.executable, str(write_example("README.md", "report.py", tmp_path))],
        env={**os.environ, "DATABASE_URL": postgres.url, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
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
    settings = {**Databases(empty_database, empty_mongo).environ, "AUTH": "on"}
    keys = []
    for _ in range(2):
        run(command("flask db "), settings)
        keys.append(run(command("flask keys "), settings).stdout.strip())
    typed = command(SERVE)
    with service(settings, config=typed[2], target=typed[3]) as running:
        statuses = [
            running.get("/books", headers={"Authorization": f"Bearer {key}"}).status for key in keys
        ]
    assert statuses == [401, 200]
    # docs/service.md names both.
    assert "first" in run(["flask", "keys", "list"], settings).stdout
    run(["flask", "keys", "revoke", "first"], settings)


def test_gunicorn_hosts_the_example_by_the_line(tmp_path: Path, postgres: Postgres) -> None:
    """As typed, but for the port: fifty requests of a second each take a few seconds."""
    port, log = free_port(), tmp_path / "log"
    more = {"DATABASE_URL": postgres.url, "PYTHONPATH": str(CHECKOUT)}
    more["PATH"] = f"{BIN}:{os.environ['PATH']}"
    (line,) = (line for line in COMMANDS if line.startswith(HOST))
    # In the place of the shell, so that the signal reaches it.
    typed = line.strip("()").replace("&& ", "&& exec ").replace("8001", str(port))
    with log.open("wb") as output, subprocess.Popen(
        ["sh", "-ec", typed],
        cwd=CHECKOUT, env=environ(more), stdout=output, stderr=output,
    ) as process:  # fmt: skip
        running = Service(process, port, log)
        try:
            wait_until(lambda: accepts(running), "the worker to serve")
            answers, took_s = at_once(running, "/slow", 50)
        finally:
            running.stop()
    assert [answer.status for answer in answers] == [200] * 50
    assert took_s < 8
