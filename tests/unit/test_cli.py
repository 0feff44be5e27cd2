"""greenline's console script, without a server."""

import importlib
import json
import tomllib
from typing import Any

import pytest
from click.testing import CliRunner

from greenline import __version__
from greenline.cli import main
from tests.helpers.budget import budget
from tests.helpers.support import CHECKOUT, run


def plan(*arguments: str, **environ: str) -> Any:
    done = budget("--max-connections", "100", "--json", *arguments, **environ)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["postgres"]


def test_the_package_has_the_script() -> None:
    """pyproject.toml names a command that is there."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["scripts"]["greenline"].partition(":")
    assert getattr(importlib.import_module(module), name) is main
    assert any(one.startswith("click") for one in project["dependencies"])


def test_it_says_its_version() -> None:
    """One line, the version that the package has."""
    done = CliRunner().invoke(main, ["--version"])
    assert (done.exit_code, done.output) == (0, f"greenline {__version__}\n")


def test_each_command_of_the_list_can_be_loaded() -> None:
    """The list shows the first line of each one's help, and so loads all."""
    done = CliRunner().invoke(main, ["--help"])
    listed = done.output.partition("Commands:\n")[2].splitlines()
    assert done.exit_code == 0
    assert [line.split()[0] for line in listed] == [
        "budget", "capacity", "check-deploy", "doctor", "routes", "stacks", "top", "tune",
    ]  # fmt: skip


def test_budget_imports_no_other_command() -> None:
    """Each start of the service runs it."""
    asks = (
        "import sys; from greenline.cli import main; "
        "main(['budget', '--max-connections', '100'], standalone_mode=False); "
        "print(*sys.modules)"
    )
    imported = set(run(["python", "-c", asks], {}).stdout.split())
    assert "greenline.budget.plan" in imported
    rooms = {f"greenline.{name}" for name in ("deploy", "doctor", "ops", "tune")}
    assert not rooms & imported


def test_what_if_needs_no_server() -> None:
    """With --max-connections the sum is printed as a table, and no server is asked."""
    done = budget("--max-connections", "100", DATABASE_URL="postgresql://127.0.0.1:1/none")
    assert done.exit_code == 0
    first, second, blank, *rows = done.stdout.splitlines()
    assert first == (
        "Postgres: 47 connections a host, 20 in a worker's pool, up to 40 while others idle"
    )
    assert second == "21 more workers would fit; max_connections binds"
    assert blank == ""
    assert rows[0].split() == ["100", "max_connections"]
    assert rows[1].split()[:3] == ["-", "3", "superuser_reserved_connections"]
    assert "MongoDB" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "host", "worker"),
    [
        ((), 47, 20),
        (("--workers", "4"), 47, 8),
        (("--hosts", "3"), 23, 8),
        (("--surge-hosts", "0"), 94, 44),
        (("--superuser-reserved", "13"), 42, 18),
        (("--reserved", "10"), 42, 18),
        (("--others", "10"), 42, 18),
        (("--role-limit", "40"), 19, 6),
        (("--database-limit", "40"), 19, 6),
        (("--pgbouncer-pool-size", "40"), 20, 7),
        (("--postgres-pool-size", "5"), 47, 5),
    ],
    ids=lambda value: value[0] if value and isinstance(value, tuple) else None,
)
def test_each_option_counts(arguments: tuple[str, ...], host: int, worker: int) -> None:
    """Every supposition changes the plan."""
    found = plan(*arguments)
    assert (found["host"], found["worker"]) == (host, worker)


@pytest.mark.parametrize(
    ("name", "value", "host", "worker"),
    [
        ("WEB_CONCURRENCY", "4", 47, 8),
        ("GREENLINE_HOSTS", "3", 23, 8),
        ("GREENLINE_HOSTS", "auto", 84, 39),
        ("GREENLINE_SURGE_HOSTS", "0", 94, 44),
        ("PGBOUNCER_POOL_SIZE", "40", 20, 7),
        ("POSTGRES_POOL_SIZE", "5", 47, 5),
        ("GREENLINE_HOSTS", "", 47, 20),
    ],
)
def test_each_variable_counts(name: str, value: str, host: int, worker: int) -> None:
    """What the service reads from the environment, the command reads too."""
    found = plan(**{name: value})
    assert (found["host"], found["worker"]) == (host, worker)


def test_an_option_wins_over_its_variable() -> None:
    """The question "what if" needs no change of the environment."""
    assert plan("--hosts", "3", GREENLINE_HOSTS="auto")["host"] == 23
    assert plan("--surge-hosts", "0", GREENLINE_SURGE_HOSTS="7")["host"] == 94


def test_hosts_that_are_counted_are_said_to_be_one_here() -> None:
    """Without the service they are not counted."""
    done = budget("--max-connections", "100", GREENLINE_HOSTS="auto")
    assert "GREENLINE_HOSTS is auto: this is for one host" in done.stderr
    assert "auto" not in budget("--max-connections", "100").stderr


@pytest.mark.parametrize(
    ("arguments", "environ", "worker"),
    [
        (("--mongodb-max-connections", "103"), {}, 11),
        (("--mongodb-max-connections", "103", "--mongodb-max-pool-size", "7"), {}, 7),
        (("--mongodb-max-connections", "103"), {"MONGODB_MAX_POOL_SIZE": "7"}, 7),
        (("--mongodb-max-connections", "103"), {"MONGODB_MAX_CONNECTIONS": "63"}, 1),
    ],
    ids=["server", "pool", "pool's variable", "variable"],
)
def test_mongodb_can_be_supposed(
    arguments: tuple[str, ...], environ: dict[str, str], worker: int
) -> None:
    """Its numbers count in the same way, and Postgres is left out when it is not asked for."""
    done = budget("--json", *arguments, **environ)
    (name, found), *more = json.loads(done.stdout).items()
    assert (name, found["worker"], more) == ("mongodb", worker, [])


def test_what_does_not_fit_is_reported_in_one_line_with_the_sum() -> None:
    """Exit status 1, the sum, and no table that looks as if all were well."""
    done = budget("--max-connections", "100", "--workers", "24")
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: Postgres: 24 workers a host need 48 connections")
    assert "max_connections 100 - 3 superuser_reserved_connections" in line
    assert done.stdout == "Postgres: no plan\n"


def test_json_has_the_error_in_the_place_of_the_plan() -> None:
    """A machine sees which server it is, beside the plan of the other one."""
    done = budget(
        "--max-connections", "9", "--mongodb-max-connections", "103", "--json", "--workers", "3"
    )
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert "3 workers a host need 6 connections" in found["postgres"]["error"]
    assert found["mongodb"]["worker"] == 2


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (("--workers", "0"), {}, "'--workers'"),
        (("--max-connections", "many"), {}, "'--max-connections'"),
        (("--others", "3"), {}, "needs --max-connections"),
        (("--max-connections", "100"), {"GREENLINE_HOSTS": "some"}, "GREENLINE_HOSTS: 'some'"),
        (("--max-connections", "100"), {"WEB_CONCURRENCY": "0"}, "WEB_CONCURRENCY: '0'"),
        ((), {}, "DATABASE_URL, MONGODB_URI: neither is set"),
        ((), {"DATABASE_URL": "postgresql://u:s3cret/s3cret@h/d"}, "DATABASE_URL: libpq"),
        ((), {"MONGODB_URI": "mongodb://u:s3cret/s3cret@h/d"}, "MONGODB_URI: pymongo cannot"),
    ],
    ids=["range", "text", "alone", "setting", "workers", "nothing", "bad url", "bad uri"],
)
def test_wrong_use_is_status_2(
    arguments: tuple[str, ...], environ: dict[str, str], said: str
) -> None:
    """click's own errors, and wrong settings by their names, without a password."""
    done = budget(*arguments, **environ)
    assert done.exit_code == 2
    assert said in done.stderr.splitlines()[-1]
    assert "s3cret" not in done.output
