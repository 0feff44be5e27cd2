"""greenline capacity, as it is typed."""

import re
from pathlib import Path

import click.testing
import msgspec
import pytest
from click.testing import CliRunner

from greenline.cli import main
from greenline.tune import results
from tests.helpers import tuned
from tests.helpers.budget import NOTHING


def capacity(*arguments: str, **environ: str) -> click.testing.Result:
    return CliRunner().invoke(main, ["capacity", *arguments], env={**NOTHING, **environ})


def table(output: str) -> dict[str, list[str]]:
    """Return the rows of the table by their load."""
    rows = re.findall(r"^ *(\d+x) +(.*)$", output, re.MULTILINE)
    return {times: cells.split(maxsplit=7) for times, cells in rows if "pool_mode" not in cells}


@pytest.fixture
def measured(tmp_path: Path) -> str:
    results.write(tuned.result(), tmp_path / "tune.json")
    return str(tmp_path / "tune.json")


def test_users_who_think_are_a_rate(measured: str) -> None:
    """5,000 of them, 8 s and an answer of 12 ms apart, are 624 requests a second."""
    done = capacity(measured, "--users", "5000", "--think", "8s")
    assert done.exit_code == 0, done.output
    assert "5000 users / (8 s of thinking + 12 ms for an answer) = 624.1 requests" in done.output
    rows = table(done.output)
    assert list(rows) == [f"{times}x" for times in range(1, 11)]
    assert rows["1x"] == ["624.1", "3", "2", "4", "40", "3.7", "975", "CPU"]
    # The plan of `greenline budget`, for the same hosts.
    assert re.search(r"^ *= +23 +a host$", done.output, re.MULTILINE)


@pytest.mark.parametrize(
    ("think", "users"), [("8s", 5_000), ("8", 5_000), ("8000ms", 5_000), ("0.5m", 18_728)]
)
def test_a_time_has_a_unit(measured: str, think: str, users: int) -> None:
    """Seconds without one."""
    done = capacity(measured, "--users", str(users), "--think", think)
    assert table(done.output)["1x"][0].startswith("624."), done.output


def test_everything_that_is_assumed_is_printed() -> None:
    """Without a result and without a host, seven lines; each option is one fewer."""
    done = capacity("--rate", "200")
    assert done.exit_code == 0
    assert done.output.count("Assumed: ") == 6
    known = capacity(
        "--rate", "200", "--cores", "2", "--memory", "1024", "--max-connections", "100"
    )
    assert known.output.count("Assumed: ") == 3


def test_what_does_not_fit_is_said_with_what_would(measured: str) -> None:
    """The status is 1; the max_connections and the pgbouncer that it takes are printed."""
    done = capacity(measured, "--rate", "1200", "--max-connections", "30")
    assert done.exit_code == 1, done.output
    assert table(done.output)["1x"][-1] == "connections"
    (enough,) = re.findall(r"1x needs max_connections = (\d+)", done.output)
    again = capacity(measured, "--rate", "1200", "--max-connections", enough)
    assert again.exit_code == 0
    assert "1x: pool_mode = transaction, default_pool_size = 15, max_client_conn = " in done.output
    assert "Greenline's pools hold no more than" in done.output


def test_a_pgbouncer_has_no_size_where_the_time_in_postgres_is_not_known(tmp_path: Path) -> None:
    """A result of --url may have no shares: nothing is made up."""
    result = tuned.result()
    blind = [
        msgspec.structs.replace(
            sweep, steps=[msgspec.structs.replace(step, shares=None) for step in sweep.steps]
        )
        for sweep in result.sweeps
    ]
    results.write(msgspec.structs.replace(result, sweeps=blind), tmp_path / "tune.json")
    done = capacity(str(tmp_path / "tune.json"), "--rate", "1200", "--max-connections", "30")
    assert table(done.output)["1x"][5:] == ["-", "1625", "connections"]
    assert "its size is not known" in done.output.replace("\n ", "")
    assert "pool_mode" not in done.output
    assert "in use at once" not in done.output


def test_hosts_of_a_rolling_deploy_count(measured: str) -> None:
    """GREENLINE_SURGE_HOSTS, as in the budget."""
    one = table(capacity(measured, "--rate", "100").output)["1x"]
    three = table(capacity(measured, "--rate", "100", GREENLINE_SURGE_HOSTS="3").output)["1x"]
    assert (one[4], three[4]) == ("20", "40")


def test_a_rate_that_the_database_was_not_measured_with_is_said(measured: str) -> None:
    """It is no promise."""
    done = capacity(measured, "--rate", "700", "--max-connections", "10000")
    assert "From 2x on it is more than the 1313.3 requests a second" in done.output.replace(
        "\n ", ""
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "give --rate, or --users and --think"),
        (("--rate", "1", "--users", "2"), "there is one of --rate and --users with --think"),
        (("--users", "2"), "give --rate, or --users and --think"),
        (("--rate", "2", "--think", "8s"), "there is one of --rate and --users with --think"),
        (("--users", "2", "--think", "8h"), "'8h' is no time such as 8s, 500ms or 1m"),
        (("--rate", "0"), "--rate"),
        (("--rate", "inf"), "'inf' is not a finite number"),
        (("--rate", "1", "--cores", "nan"), "'nan' is not a finite number"),
        (("none.json", "--rate", "1"), "none.json: No such file or directory"),
        (("pyproject.toml", "--rate", "1"), "pyproject.toml: not a result of greenline tune"),
        (("--rate", "1", "--memory", "150"), "a host of 150 MiB has no room for one"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_use_is_one_line(arguments: tuple[str, ...], line: str) -> None:
    """With the status 2."""
    done = capacity(*arguments)
    assert done.exit_code == 2
    assert line in done.stderr.splitlines()[-1]


def test_a_result_of_another_form_is_refused(tmp_path: Path) -> None:
    """The line names the field."""
    (tmp_path / "old.json").write_text('{"version": 1}')
    done = capacity(str(tmp_path / "old.json"), "--rate", "1")
    assert done.exit_code == 2
    assert "not a result of greenline tune --json: Expected `str`" in done.stderr
