"""Where libpq takes its parameters from, and in which order."""

from pathlib import Path

import psycopg2
import pytest

from greenline.postgres import parameters
from greenline.postgres.parameters import connect_timeout_s

VARIABLES = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGCONNECT_TIMEOUT", "PGSERVICE", "PGSERVICEFILE")
SERVICES = """
# [green] in a comment
[other]
host=other
[green]
host=serviced
# port=1
port=7000
connect_timeout=8
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment that says nothing, and a service file."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "pg_service.conf"
    path.write_text(SERVICES)
    return path


def test_without_anything_there_is_the_default_port() -> None:
    """libpq's own default; the host is a socket whose folder only libpq knows."""
    assert parameters.parameters("dbname=x") == {"dbname": "x", "port": "5432"}


def test_the_string_wins_over_the_service_and_that_over_the_environment(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of libpq."""
    for name in ("PGHOST", "PGHOSTADDR", "PGPORT", "PGCONNECT_TIMEOUT"):
        monkeypatch.setenv(name, "6")
    monkeypatch.setenv("PGSERVICEFILE", str(environment))
    found = parameters.parameters("service=green host=given")
    assert found == {
        "service": "green",
        "host": "given",
        "port": "7000",
        "connect_timeout": "8",
        "hostaddr": "6",
    }


@pytest.mark.parametrize("where", ["PGSERVICEFILE", "HOME", "PGSYSCONFDIR"])
def test_the_service_file_is_found(
    where: str, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name, in the home, or in the system's folder."""
    monkeypatch.setenv("HOME", "/nonexistent")
    folder = environment.parent
    if where == "HOME":
        environment.rename(folder / ".pg_service.conf")
    monkeypatch.setenv(where, str(environment if where == "PGSERVICEFILE" else folder))
    monkeypatch.setenv("PGSERVICE", "green")
    assert parameters.parameters("")["host"] == "serviced"


def test_a_service_that_does_not_exist_is_left_to_libpq(environment: Path) -> None:
    """It has the words for it."""
    assert parameters.parameters("service=nowhere") == {"service": "nowhere", "port": "5432"}


@pytest.mark.parametrize(
    ("text", "version", "seconds"),
    [
        ("", 170_000, None),
        ("0", 170_000, None),
        ("-1", 170_000, None),
        ("1", 170_000, 1.0),
        ("1", 160_000, 2.0),
        ("3", 160_000, 3.0),
    ],
    ids=["empty", "zero", "negative", "one", "one, up to version 16", "more"],
)
def test_connect_timeout_means_what_it_means_to_libpq(
    text: str, version: int, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing and zero are for ever; older versions wait two seconds at least."""
    monkeypatch.setattr(parameters, "libpq_version", lambda: version)
    assert connect_timeout_s({"connect_timeout": text}) == seconds


def test_a_timeout_that_is_no_number() -> None:
    """The words are libpq's."""
    with pytest.raises(psycopg2.OperationalError, match='invalid integer value "soon"'):
        connect_timeout_s({"connect_timeout": "soon"})
