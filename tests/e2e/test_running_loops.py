"""Coroutines of hosted applications: each view may run a loop, as in threads."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.hosting import hosting
from tests.e2e.looping import NAP_S
from tests.helpers.support import Service

VIEWS = 50


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    """The application on one worker."""
    with hosting("tests.e2e.looping:app") as running:
        yield running


@pytest.mark.parametrize(
    ("kind", "naps"),
    [("run", 1), ("block", 2), ("to_thread", 1), ("asgiref", 1), ("by_hand", 1), ("runner", 2)],
)
def test_fifty_views_run_coroutines_at_once(running: Service, kind: str, naps: int) -> None:
    """Each gets its own result, and they wait together."""
    with ThreadPoolExecutor(VIEWS) as clients:
        started = time.monotonic()
        answers = list(clients.map(lambda number: running.get(f"/{kind}/{number}"), range(VIEWS)))
        took_s = time.monotonic() - started
    assert [answer.body.decode() for answer in answers] == [str(each) for each in range(VIEWS)]
    assert took_s < VIEWS * NAP_S * naps / 3


def test_a_loop_inside_of_a_loop_is_refused_as_in_threads(running: Service) -> None:
    """While others run theirs."""
    with ThreadPoolExecutor(10) as clients:
        answers = list(clients.map(lambda number: running.get(f"/nest/{number}"), range(10)))
    error = "asyncio.run() cannot be called from a running event loop"
    assert [answer.body.decode() for answer in answers] == [f"{each} {error}" for each in range(10)]
