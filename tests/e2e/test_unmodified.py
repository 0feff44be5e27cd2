"""Code that was written for threads uses Postgres on our worker, without a change or a setting."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from embedded.postgres import Postgres
from tests.helpers.support import Service, service, wait_until

WORKER = ("-k", "greenline.worker.GreenWorker", "-w", "1")


def is_served(running: Service) -> bool:
    """Return whether the worker answers."""
    assert running.process.poll() is None, running.log
    try:
        return running.get("/count").status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def unmodified(postgres: Postgres) -> Iterator[Service]:
    """The application of tests/e2e/unmodified.py."""
    with service(
        {"DATABASE_URL": postgres.url}, *WORKER,
        target="tests.e2e.unmodified:app", config="tests/e2e/plain_conf.py", wait=False,
    ) as running:  # fmt: skip
        wait_until(partial(is_served, running), "the worker to serve")
        yield running


@pytest.mark.parametrize(
    ("path", "clients"), [("/share", 50), ("/connect", 120), ("/nest", 50)],
    ids=["one connection for all", "a connection each", "two connections of a pool each"],
)  # fmt: skip
def test_every_request_gets_its_own_answer(unmodified: Service, path: str, clients: int) -> None:
    """More requests at once than connections, however they use them."""
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda number: unmodified.get(f"{path}?{number}"), range(clients)))
    assert [(one.status, one.body) for one in answers] == [
        (200, str(number).encode()) for number in range(clients)
    ], unmodified.log
