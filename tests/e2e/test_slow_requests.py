"""``GREENLINE_SLOW_MS``: a line for each slow request, with where its time went."""

import re
from pathlib import Path

import pytest

from embedded.mongo import Mongo
from tests.e2e.hosting import hosting
from tests.helpers.support import wait_until

APP = "tests.e2e.watched_databases:app"


def test_a_slow_request_is_logged_with_its_parts(empty_database: str) -> None:
    """And with the function that waited, and its statement without values; a fast one is not."""
    with hosting(APP, URL=empty_database, GREENLINE_SLOW_MS="300") as running:
        assert running.get("/postgres/books?s=0.6&key=secret").status == 200
        line = wait_until(
            lambda: re.search(r"slow request: (.*)", running.log), "the line of the slow request"
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
    assert 600 <= int(slept[1]) <= int(parts["postgres"]) + int(parts.get("hub", 0)) + 2


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
