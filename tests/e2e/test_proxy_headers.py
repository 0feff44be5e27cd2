"""What a trusted proxy says of a client is in the log and counts for its limits; others' is not."""

import json
from collections.abc import Iterator
from time import time
from typing import Any

import pytest

from tests.helpers.support import OPS_TOKEN, Databases, Service, service, wait_until

FORWARDED = {"X-Forwarded-For": "10.9.8.7, 203.0.113.7"}


@pytest.fixture(scope="module")
def trusting(databases: Databases) -> Iterator[Service]:
    """One worker, which trusts the loopback as gunicorn does by default."""
    more = {"GREENLINE_ACCESS_LOG": "json", "RATE_LIMIT": "2/day", "WEB_CONCURRENCY": "1"}
    with service({**databases.environ, **more}) as running:
        yield running


@pytest.fixture(scope="module")
def wary(databases: Databases) -> Iterator[Service]:
    """One worker that trusts no proxy."""
    more = {"GREENLINE_ACCESS_LOG": "json", "WEB_CONCURRENCY": "1"}
    options = ("--forwarded-allow-ips", "192.0.2.1")
    with service({**databases.environ, **more}, *options) as running:
        yield running


def entry(running: Service, path: str, headers: dict[str, str]) -> Any:
    """Return the log's line of the request."""
    running.get(path, headers=headers)

    def find() -> Any:
        lines = [line for line in running.log.splitlines() if f'"path":"{path}"' in line]
        return json.loads(lines[-1]) if lines else None

    return wait_until(find, "the line")


@pytest.mark.parametrize("more", [{}, {"Expect": "100-continue"}], ids=["fast parser", "fallback"])
def test_a_trusted_proxy_names_the_client_and_tells_the_queue(
    trusting: Service, more: dict[str, str]
) -> None:
    """The last address is the one that the proxy itself has seen."""
    headers = {**FORWARDED, "X-Request-Start": f"t={time() - 3:.3f}"}
    logged = entry(trusting, f"/healthz/{len(more)}", {**headers, **more})
    assert logged["client"] == "203.0.113.7"
    assert 3_000 <= logged["proxy_ms"] < 60_000


def test_a_stranger_names_only_itself(wary: Service) -> None:
    """Neither an address nor a time is taken from it."""
    headers = {**FORWARDED, "X-Request-Start": f"t={time() - 3:.3f}"}
    logged = entry(wary, "/healthz/3", headers)
    assert logged["client"] == "127.0.0.1"
    assert logged["proxy_ms"] is None


def test_each_client_of_a_proxy_has_a_rate_limit_of_its_own(trusting: Service) -> None:
    """One that asks too often does not use up what the others may."""
    statuses = [
        trusting.get("/books/1", headers={"X-Forwarded-For": address}).status
        for address in ("203.0.113.1", "203.0.113.1", "203.0.113.1", "203.0.113.2")
    ]
    assert statuses == [200, 200, 429, 200]


@pytest.mark.parametrize("more", [{}, {"Expect": "100-continue"}], ids=["alone", "Expect"])
@pytest.mark.parametrize("name", ["SCRIPT_NAME", "PATH_INFO", "script_name"])
def test_a_header_does_not_move_the_path(api: Service, name: str, more: dict[str, str]) -> None:
    """A proxy may pass it on as its client sent it: a rule for a path would not hold."""
    sent = {name: "/x", "Authorization": f"Bearer {OPS_TOKEN}", **more}
    assert api.get("/healthz", headers=sent).status == 200
    assert api.get("/ops/budget", headers=sent).status == 200
    assert api.get("/x/ops/budget", headers=sent).status == 404
