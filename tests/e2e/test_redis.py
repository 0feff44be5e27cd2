"""redis-py, whose pool raises where it has no connection left, on the worker without a setting."""

from collections import Counter
from collections.abc import Iterator

import pytest

from embedded.redis import Redis
from greenline.errors import ConfigError
from tests.e2e.hosting import at_once, hosting
from tests.helpers.support import Service

TARGET = "tests.e2e.counting_in_redis:app"


@pytest.fixture
def running() -> Iterator[Service]:
    """A worker whose application counts in a redis-server of its own."""
    try:
        server = Redis()
        server.start()
    except ConfigError as error:
        pytest.skip(str(error))
    with server, hosting(TARGET, REDIS_PORT=str(server.port)) as running:
        yield running


def test_two_hundred_at_once_have_a_connection_each(running: Service) -> None:
    """Twice as many requests as the pool has connections: each counts, none fails."""
    before = running.get("/").json
    answers, _ = at_once(running, "/", 200)
    assert Counter(answer.status for answer in answers) == {200: 200}
    assert max(answer.json for answer in answers) == before + 200
    assert "MaxConnectionsError" not in running.log


def test_more_that_wait_in_redis_than_the_pool_has_connections(running: Service) -> None:
    """The limit grows beyond the pool, because nothing is busy: they wait for it, none fails."""
    for _ in range(3):
        answers, _ = at_once(running, "/wait/0.2", 200)
        assert Counter(answer.status for answer in answers) == {200: 200}
    assert "MaxConnectionsError" not in running.log
