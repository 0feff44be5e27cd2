"""The budget at the start, and at /ops/budget."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.support import OPS_TOKEN, Databases, Service, service, wait_until

RIGHT = {"Authorization": f"Bearer {OPS_TOKEN}"}


@pytest.fixture(scope="module")
def debugged(databases: Databases) -> Iterator[Service]:
    """Two workers, which log their plans."""
    more = {"WEB_CONCURRENCY": "2", "OPS_TOKEN": OPS_TOKEN, "LOG_LEVEL": "debug"}
    with service({**databases.environ, **more}) as greenline:
        wait_until(lambda: greenline.log.count(": ready") == 2, "both workers to be ready")
        yield greenline


def test_the_start_prints_the_sum_once(databases: Databases) -> None:
    """With the workers of the command line, by a process of its own: the arbiter has no driver."""
    environ = {**databases.environ, "WEB_CONCURRENCY": "1", "LOG_LEVEL": "debug"}
    with service(environ, "-w", "3") as greenline:
        assert greenline.log.count("connection budget") == 1
        assert len(re.findall(r"^Postgres: \d+ connections a host", greenline.log, re.M)) == 1
        assert len(re.findall(r"^MongoDB: \d+ connections a host", greenline.log, re.M)) == 1
        assert "control 1 + pool 1, for 3 workers" in greenline.log
        arbiter = Path(f"/proc/{greenline.process.pid}/maps").read_text()
        assert "python" in arbiter
        assert "psycopg" not in arbiter


def test_the_log_has_the_plan_of_each_worker(debugged: Service) -> None:
    """One line a worker and server, with the sum that was read when it connected."""
    for name in ("postgres", "mongodb"):
        found = re.findall(rf"{name} pool: \d+ connections a worker.*, by 2 w", debugged.log)
        assert len(found) == 2


def test_workers_that_do_not_fit_end_the_start(databases: Databases) -> None:
    """One line with the sum, a status that a supervisor notices, and no worker was forked."""
    with service({**databases.environ, "WEB_CONCURRENCY": "60"}, wait=False) as greenline:
        wait_until(lambda: greenline.process.poll() is not None, "the end of the start")
        assert greenline.process.returncode == 1
        (line,) = [line for line in greenline.log.splitlines() if line.startswith("greenline: ")]
        assert line.startswith("greenline: Postgres: 60 workers a host need 120 connections")
        assert "max_connections 100 - 3 superuser_reserved_connections" in line
        assert "Booting worker" not in greenline.log


def test_servers_that_are_away_do_not_end_the_start() -> None:
    """The workers wait for them; the log says what could not be asked."""
    away = Databases("postgresql://127.0.0.1:1/none", "mongodb://127.0.0.1:1/")
    with service({**away.environ, "WEB_CONCURRENCY": "1"}, wait=False) as greenline:
        wait_until(greenline.is_alive, "the service to be alive")
        assert "connection budget: Postgres: " in greenline.log
        assert greenline.get("/readyz").status == 503


def test_the_token_opens_the_budget(debugged: Service) -> None:
    """It is the plan of the worker that answers, as it was logged."""
    answer = debugged.get("/ops/budget", headers=RIGHT)
    assert answer.status == 200
    assert answer.headers["Cache-Control"] == "no-store"
    plans = answer.json
    assert plans.keys() == {"postgres", "mongodb"}
    for plan in filter(None, plans.values()):
        assert plan["worker"] <= plan["max_pool_size"] <= plan["host"]
        assert plan["reason"] in debugged.log
        assert {"sign", "number", "name", "meaning"} == plan["lines"][0].keys()


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer sesam", "Bearer sesamee", "Basic sesame", "sesame",
     "Bearer s\xe9same"],
    ids=["none", "empty", "no token", "blank", "short", "long", "scheme", "bare", "latin"],
)  # fmt: skip
def test_without_the_token_it_is_401(api: Service, authorization: str | None) -> None:
    """From loopback too, as a problem document that shows nothing."""
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = api.get("/ops/budget", headers=headers)
    assert answer.status == 401
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json["code"] == "unauthorized"


def test_without_a_token_set_there_is_no_such_route(databases: Databases) -> None:
    """An empty token gives no access."""
    environ = {**databases.environ, "WEB_CONCURRENCY": "1", "OPS_TOKEN": ""}
    with service(environ) as greenline:
        for headers in ({}, {"Authorization": "Bearer "}, RIGHT):
            assert greenline.get("/ops/budget", headers=headers).status == 404
