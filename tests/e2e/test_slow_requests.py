"""``GREENLINE_SLOW_MS``: a line for each slow request, with where its time went."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from embedded.mongo import Mongo
from embedded.postgres import Postgres
from tests.e2e.hosting import hosting
from tests.helpers.forms import some
from tests.helpers.pools import through
from tests.helpers.proxy import Proxy
from tests.helpers.support import wait_until

APP = "tests.e2e.watched_databases:app"

# pg_sleep(0.6) seen from here: it goes by the wall clock, and begins before our wait for it.
SLEPT_MS = 500


def test_a_slow_request_is_logged_with_its_parts(empty_database: str) -> None:
    """And with the function that waited, and its statement without values; a fast one is not."""
    with hosting(APP, URL=empty_database, GREENLINE_SLOW_MS="300") as running:
        assert running.get("/postgres/books?s=0.6&key=secret").status == 200
        line = wait_until(
            lambda: re.search(r"slow request: (GET /postgres/.*)", running.log),
            "the line of the slow request",
        )[1]
        assert "secret" not in running.log
    head, *waits = line.split("; ")
    found = re.fullmatch(
        r"GET /postgres/books, route /postgres/<name>, 200, took (\d+) ms: (.*)", head
    )
    assert found is not None, line
    parts = dict(part.split(" ") for part in found[2].split(", "))
    assert parts.keys() >= {"postgres", "application"}
    assert abs(sum(map(int, parts.values())) - int(found[1])) <= len(parts)
    # On a busy machine the connect and the commit are noted as well.
    (slept,) = (
        found
        for wait in waits
        if (
            found := re.fullmatch(
                r"postgres (\d+) ms in watched_databases\.slow_report:\d+ "
                r"\(SELECT pg_sleep\(%s\)\)",
                wait,
            )
        )
    )
    # There the hub is late to go on.
    assert SLEPT_MS <= int(slept[1]) <= int(parts["postgres"]) + int(parts.get("hub", 0)) + 2


@pytest.mark.parametrize("pooled", ["", "1"], ids=["alone", "pooled"])
@pytest.mark.parametrize("arguments", some([[], ["--preload"]]), ids=some(["loaded", "preloaded"]))
def test_what_takes_the_time_is_named(
    arguments: list[str], pooled: str, empty_database: str
) -> None:
    """Many short statements are added up, and a commit is one as well."""
    given = {"URL": empty_database, "GREENLINE_SLOW_MS": "300", "GREENLINE_POOL": pooled}
    with hosting(APP, *arguments, **given) as running:
        for query, name in (
            ("each=0.02", r"100 times in watched_databases\.slow_report:\d+ \(SELECT pg_sleep"),
            ("commit", r"in watched_databases\.slow_report:\d+ \(commit\)"),
        ):
            assert running.get(f"/postgres/{query[:4]}?{query}").status == 200
            line = wait_until(
                lambda: re.search(rf"slow request: GET /postgres/{query[:4]}.*", running.log),  # noqa: B023
                "the line",
            )[0]
            (took_ms,) = re.findall(rf"; postgres (\d+) ms {name}", line)
            assert int(took_ms) >= SLEPT_MS


def test_none_is_logged_by_default(empty_database: str) -> None:
    """However slow it is."""
    with hosting(APP, URL=empty_database) as running:
        assert running.get("/postgres/books?s=1.5").status == 200
        running.stop()
        assert "slow request" not in running.log


def test_the_time_in_mongodb_is_named(folder: Path) -> None:
    """Of a client that the application has made itself, with its own pool."""
    with (
        Mongo(folder / "slow", durable=False) as server,
        hosting(APP, URI=f"{server.url}slow", GREENLINE_SLOW_MS="1") as running,
    ):
        assert running.get("/mongo").status == 200
        line = wait_until(
            lambda: re.search(
                r"slow request: GET /mongo[^;]* mongodb (\d+).*; mongodb .*\(insert things\)",
                running.log,
            ),
            "the line",
        )
        assert int(line[1]) >= 1


@pytest.mark.parametrize("value", ["0", "-1", "soon", "1.5"])
def test_a_wrong_value_ends_the_start(value: str) -> None:
    """With a line that names the variable."""
    with pytest.raises(AssertionError, match="GREENLINE_SLOW_MS") as raised:
        with hosting(APP, GREENLINE_SLOW_MS=value):
            pass
    assert value in str(raised.value)


def test_its_lines_have_one_id_and_one_route(empty_database: str) -> None:
    """In JSON, of an application that gives no request an id; a deadline's 504 has a route too."""
    given = {"URL": empty_database, "GREENLINE_LOG": "json", "GREENLINE_SLOW_MS": "300"}
    with hosting(APP, **given, REQUEST_TIMEOUT="2") as running:
        for seconds, status in ((0.5, 200), (20, 504)):
            path = f"/postgres/{status}"
            assert running.get(f"{path}?s={seconds}").status == status
            slow, access = wait_until(
                lambda: found if len(found := _lines(running.log, path)) == 2 else None,  # noqa: B023
                "both lines",
            )
            assert slow["request_id"] == access["request_id"]
            assert len(slow["request_id"]) == 32
            assert slow["route"] == access["route"] == "/postgres/<name>"
            assert access["status"] == status


def _lines(log: str, path: str) -> list[dict[str, Any]]:
    """Return the line of the slow request, and that of the access log."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    slow = [line for line in lines if f"slow request: GET {path}," in line["message"]]
    return slow + [line for line in lines if line.get("path") == path]


def test_a_connect_has_a_part_of_its_own(postgres: Postgres) -> None:
    """It is not in the time of the statement, nor under its name."""
    with (
        Proxy(postgres.socket) as proxy,
        hosting(APP, URL=through(proxy), GREENLINE_SLOW_MS="300") as running,
        ThreadPoolExecutor() as clients,
    ):
        proxy.hold(b"user")
        asked = clients.submit(running.get, "/postgres/books?s=0.01")
        wait_until(lambda: proxy.held, "the connect")
        time.sleep(0.5)  # so long it takes
        proxy.pass_on()
        assert asked.result().status == 200
        line = wait_until(
            lambda: re.search(r"slow request: (GET /postgres/.*)", running.log), "the line"
        )[1]
    assert re.search(r"[,:] connecting \d+[,;]", line), line
    waited = r"; connecting \d{3,} ms in watched_databases\.slow_report:\d+(;|$)"
    assert re.search(waited, line), line
