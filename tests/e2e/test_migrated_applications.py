"""
docs/migrate.md: the ten steps, typed for the five real applications that ``bench.migrate`` hosts.

Only what names the page's own application is replaced. It takes minutes and installs packages:
``GREENLINE_LONG_TESTS=1``.
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.legacy import make_database
from bench.migrate_lineup import Site
from embedded.postgres import temporary
from tests.e2e.migrate_page import PAGE, TIMES, Terminal, blocks_of, warnings_of
from tests.e2e.migrated import MIGRATED, Migrated, held, make_environment
from tests.helpers.support import IS_LONG, wait_until
from tests.helpers.wheel import activated, copy_sources

SUCCESS = {"200", "201"}
ENV = re.compile(r"=\S+")
REFUSED = "7\n"  # by which curl says that nothing listens


@pytest.fixture
def migrated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Migrated]:
    """The application, and the folders that its environment is in, which are large."""
    copy_sources(tmp_path / "greenline")  # beside the application: ../greenline
    make_environment(request.param, tmp_path / "venv")
    yield request.param
    shutil.rmtree(tmp_path)


@pytest.fixture
def site(migrated: Migrated, tmp_path: Path) -> Iterator[Site]:
    """The application's folder, and its database on a Postgres that nothing else uses."""
    name = migrated.application.name
    with temporary(100) as server:
        make_database(server, name)
        url = server.url.replace("/greenline?", f"/{name}?")
        site = Site(migrated.application, url, tmp_path / name)
        site.folder.mkdir()
        yield site


@pytest.fixture
def steps(migrated: Migrated, site: Site, tmp_path: Path) -> Iterator["Steps"]:
    """The application with its tables and data, and a shell in its folder."""
    names = migrated.application.set_up(site)
    variables = {**site.environ, "DATABASE_URL": site.url}
    del variables["PYTHONPATH"]  # greenline is imported from where pip installs it
    terminal = Terminal(site.folder, activated(tmp_path / "venv", variables))
    try:
        yield Steps(migrated, terminal, names)
    finally:
        terminal.close()


class Steps:
    """The blocks of the page, typed for one application."""

    def __init__(self, migrated: Migrated, terminal: Terminal, names: dict[str, str]) -> None:
        self._migrated, self._terminal, self._names = migrated, terminal, names

    def type(self, text: str) -> str:
        """Type a block of the page; return what is printed."""
        return self._terminal.type(self._migrated.typed(text, self._names))

    def answers(self, text: str) -> Counter[str]:
        """Type a block; return the statuses that ``uniq -c`` counts in what is printed."""
        lines = [line.split() for line in self.type(text).splitlines()]
        return Counter({pair[1]: int(pair[0]) for pair in lines if len(pair) == 2})

    def statuses(self, text: str) -> list[str]:
        """Type a block; return the lines that are a status: an application may log beside them."""
        return re.findall(r"^\d{3}$", self.type(text), re.MULTILINE)

    def connections(self) -> int:
        """Return what the page's function prints."""
        return int(self.type("connections"))

    def log(self, name: str) -> Path:
        """Return the log of one of the servers."""
        return self._terminal.folder / f"{name}.log"


def rows_of(number: int) -> dict[str, str]:
    """Return the table of a step: what was, and what it becomes."""
    step = re.split(r"^### \d+\. ", PAGE, flags=re.MULTILINE)[number]
    rows = [line.strip("| ").split(" | ") for line in step.splitlines() if line.startswith("| ")]
    return {row[0]: row[1] for row in rows}


def test_what_differs_from_the_blocks_is_on_the_page() -> None:
    """The row of uWSGI, and the signal that ends it."""
    (uwsgi,) = (each for each in MIGRATED if each.was is not None)
    assert uwsgi.was is not None
    (row,) = (each for each in rows_of(3) if each.startswith("uwsgi "))
    old, *new = re.findall(r"`([^`]+)`", f"{row} {rows_of(3)[row]}")
    assert old.replace("mysite.wsgi", "pretix.wsgi") in uwsgi.was
    export, target, option = new
    assert (f"export WEB_CONCURRENCY={uwsgi.workers}", "mysite.wsgi", "-k") == (
        export, target, option,
    )  # fmt: skip
    assert uwsgi.application.arguments == ["pretix.wsgi"]
    assert f"`{uwsgi.ended('kill $old')}`" in PAGE


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 installs and types for minutes")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "migrated", MIGRATED, ids=lambda each: each.application.name, indirect=True
)
def test_each_step_holds_for_a_real_application(
    migrated: Migrated, steps: Steps, site: Site
) -> None:
    """From the install to the end of the old server and the way back, in one shell."""
    (_, install), (_, checked) = blocks_of(1)
    assert steps.type(install).endswith(f"\n{checked}")

    (_, start), (_, ask), _ = blocks_of(2)
    start_old = migrated.old(start)
    steps.type(start_old)
    assert steps.answers(ask) == {"200": 50}

    (_, start), (_, logged) = blocks_of(3)
    start = migrated.counted(start)
    steps.type(start)
    log = TIMES.sub("", steps.log("new").read_text())
    assert logged.splitlines()[0].removeprefix("[INFO] ") in log
    assert log.count("Booting worker") == migrated.workers

    (_, typed), _ = blocks_of(4)
    steps.type(typed)
    warnings = warnings_of(steps.log("new"))
    assert len(warnings) == len(migrated.warned), warnings
    for warning, (start_of_it, reason) in zip(warnings, migrated.warned, strict=True):
        assert f"[WARNING] {start_of_it}" in warning
        assert reason in warning

    (_, typed), _ = blocks_of(5)
    old, new = steps.type(typed).splitlines()
    assert old == new

    (_, typed), _ = blocks_of(6)
    write, count = typed.splitlines()
    before = int(steps.type(count))
    answers = steps.answers(write)
    acknowledged = sum(answers[status] for status in SUCCESS)
    assert set(answers) <= SUCCESS | migrated.application.refused, answers
    assert answers.total() == 50
    assert acknowledged > 25
    assert int(steps.type(count)) - before == acknowledged

    (_, budget), _, (_, export) = blocks_of(7)
    assert "a worker's pool" in steps.type(budget)
    assert steps.type(ENV.sub(f"='{site.url}'", export)) == ""

    (_, start), _, (_, ask), _ = blocks_of(8)
    end, start = start.split("\n", 1)
    steps.type(end)
    kept = steps.connections()  # by the old server
    (host,) = re.findall(r"Postgres: (\d+) connections a host", steps.type(start))
    during, *answers_, after = steps.type(ask).splitlines()
    assert [line.split() for line in answers_] == [["50", "200"]]
    assert int(during) <= kept + int(host)
    assert kept < int(after) <= kept + int(host)

    (_, start), (_, ask), (_, printed) = blocks_of(9)
    steps.type(start)
    with held(migrated.table, site.url):
        assert steps.statuses(ask) == printed.split()
    # The first request of each worker may be late because of what it imports, here and below.
    wait_until(lambda: steps.statuses(ask) == ["200", "200"], "answers within the deadline")
    assert steps.connections() <= kept + int(host)

    *_, (_, end) = blocks_of(10)
    steps.type(f"{migrated.ended(end)}wait $old")
    assert migrated.end in steps.log("old").read_text(errors="replace")
    assert steps.type("curl -s 127.0.0.1:8000/; echo $?") == REFUSED
    status = "curl -s -o /dev/null -w '%{http_code}\\n' 127.0.0.1:8001/orders"
    wait_until(lambda: steps.statuses(status) == ["200"], "an answer within the deadline")

    steps.type("kill $new; wait $new")
    assert "uninstalled" in steps.type("yes | pip uninstall greenline")
    assert steps.type("pip check") == checked
    steps.type(start_old)
    assert steps.statuses(status.replace(":8001", ":8000")) == ["200"]
