"""One worker, many requests: they share the time, the pool keeps its limit, the rest fails."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic

import pytest

from embedded.postgres import Postgres
from tests.helpers.forms import in_the_long_form
from tests.helpers.front import behind_proxies
from tests.helpers.load import Load
from tests.helpers.support import Answer, Databases, Service, service, wait_until
from tests.helpers.watch import backends, count

ALONE = {"WEB_CONCURRENCY": "1", "GREENLINE_DIAGNOSTICS": "1"}
LIMITED = "limited"  # its name in pg_stat_activity
LIMITS = {
    **ALONE,
    "POSTGRES_POOL_SIZE": "2",
    "POOL_TIMEOUT": "1",
    "POOL_MAX_WAITING": "3",
    "REQUEST_TIMEOUT": "6",  # more than two seconds beyond the queries that end by themselves
}


@pytest.fixture(scope="module")
def limited(databases: Databases) -> Iterator[Service]:
    """A worker whose pool is small, and whose patience is short."""
    url = f"{databases.postgres}&application_name={LIMITED}"
    with service({**databases.environ, **LIMITS, "DATABASE_URL": url}) as running:
        yield running


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    """Sixty clients who ask at once."""
    with ThreadPoolExecutor(60) as pool:
        yield pool


def asleep(greenline: Service, seconds: float) -> Answer:
    return greenline.get(f"/diagnostics/sleep?seconds={seconds}")


def assert_unavailable(answer: Answer, code: str) -> None:
    assert answer.status == 503
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert int(answer.headers["Retry-After"]) > 0
    assert answer.json["code"] == code


@in_the_long_form
def test_sleeping_queries_share_the_time(databases: Databases, clients: ThreadPoolExecutor) -> None:
    """Twenty queries of a second take about one second in one worker, which stays responsive."""
    with service({**databases.environ, **ALONE, "POSTGRES_POOL_SIZE": "20"}) as greenline:
        started = monotonic()
        asked = [clients.submit(asleep, greenline, 1) for _ in range(20)]
        answers = 0
        while not any(one.done() for one in asked):
            assert greenline.get("/healthz", timeout_s=2).status == 200
            answers += 1
        assert [one.result().status for one in asked] == [200] * 20
        assert monotonic() - started < 5
        assert answers > 5


def test_two_hundred_clients_that_wait_for_their_answers_are_all_served(
    databases: Databases,
) -> None:
    """With the defaults of admission and of the pool none is refused, with one worker."""
    with service({**databases.environ, "WEB_CONCURRENCY": "1"}) as greenline:
        load = Load(("127.0.0.1", greenline.port), clients=200, path="/books/1")
        try:
            wait_until(lambda: len(load.answered) > 2_000, "the requests", 60)
        finally:
            load.stop()
    assert load.statuses == {200: len(load.answered)}
    assert load.failures == {}


def test_a_slow_mongodb_does_not_stop_others(
    databases: Databases, clients: ThreadPoolExecutor
) -> None:
    """While every operation on MongoDB hangs, others are served; then all of them are answered."""
    with behind_proxies(databases) as front, service(front.environ) as greenline:
        front.mongodb.hold(b"states")
        asked = [clients.submit(greenline.get, "/states") for _ in range(10)]
        # Ten, and perhaps an index of the states that is being made.
        wait_until(lambda: front.mongodb.held >= 10, "all requests to hang in MongoDB")
        for _ in range(10):
            assert greenline.get("/healthz", timeout_s=2).status == 200
            assert greenline.get("/books?limit=1", timeout_s=3).status == 200
        assert not any(one.done() for one in asked)
        front.pass_on()
        assert [one.result().status for one in asked] == [200] * 10


def test_the_pool_never_exceeds_its_limit(
    databases: Databases, postgres: Postgres, clients: ThreadPoolExecutor
) -> None:
    """Fifty requests share five connections; the sixth is readiness's own."""
    url = f"{databases.postgres}&application_name=hard-limit"
    environ = {**databases.environ, **ALONE, "DATABASE_URL": url, "POSTGRES_POOL_SIZE": "5"}
    with service(environ) as greenline:
        asked = [clients.submit(asleep, greenline, 0.2) for _ in range(50)]
        seen = {backends(postgres, "hard-limit")}
        while not all(one.done() for one in asked):
            seen.add(backends(postgres, "hard-limit"))
        assert [one.result().status for one in asked] == [200] * 50
    assert max(seen) == 6


def test_waiting_in_vain_ends_in_time(
    limited: Service, postgres: Postgres, clients: ThreadPoolExecutor
) -> None:
    """After POOL_TIMEOUT the request gets 503; the pool is whole afterwards."""
    sleepers = [clients.submit(asleep, limited, 3.5) for _ in range(2)]
    wait_until(lambda: backends(postgres, LIMITED, asleep=True) == 2, "the pool to be exhausted")
    started = monotonic()
    answer = limited.get("/books")
    assert 0.9 < monotonic() - started < 3
    assert_unavailable(answer, "pool_timeout")
    assert [one.result().status for one in sleepers] == [200, 200]
    assert limited.get("/books").status == 200


def test_too_many_waiting_are_sent_away_at_once(
    limited: Service, postgres: Postgres, clients: ThreadPoolExecutor
) -> None:
    """Beyond POOL_MAX_WAITING no request waits for POOL_TIMEOUT first."""
    sleepers = [clients.submit(asleep, limited, 3.5) for _ in range(2)]
    wait_until(lambda: backends(postgres, LIMITED, asleep=True) == 2, "the pool to be exhausted")
    asked = [clients.submit(limited.get, "/books") for _ in range(10)]
    codes = [one.result().json["code"] for one in asked]
    assert codes.count("too_many_waiting") == 7
    assert codes.count("pool_timeout") == 3
    first: Future[Answer] = next(one for one in asked if "many" in one.result().json["code"])
    assert_unavailable(first.result(), "too_many_waiting")
    assert [one.result().status for one in sleepers] == [200, 200]


def test_two_hundred_who_hang_up_while_they_wait_leave_no_trace(
    databases: Databases, postgres: Postgres, clients: ThreadPoolExecutor
) -> None:
    """None of them is written, and who asks after them is served in turn."""
    environ = {**databases.environ, **ALONE, "POSTGRES_POOL_SIZE": "1"}
    body = b'{"title": "Not Stored Twice", "authors": ["A"]}'
    head = b"POST /books HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with service(environ) as greenline:
        # Long: a request that comes to the pool when its client is gone already would be served.
        sleeper = clients.submit(asleep, greenline, 6)
        wait_until(lambda: backends(postgres, "greenline", asleep=True) > 0, "the pool to be taken")
        callers = [socket.create_connection(("127.0.0.1", greenline.port)) for _ in range(200)]
        for caller in callers:
            caller.sendall(request)
        for _ in range(3):  # by now all of them were read: who came later is answered
            assert greenline.get("/healthz").status == 200
        for caller in callers:
            caller.close()
        assert not sleeper.done()
        assert sleeper.result().status == 200
        assert greenline.ask("POST", "/books", json.loads(body)).status == 201
    assert count(postgres, "select count(*) from books where title = 'Not Stored Twice'") == 1


def test_the_sleeping_route_is_for_diagnostics_only(databases: Databases) -> None:
    """Without GREENLINE_DIAGNOSTICS no client can hold a connection by asking for it."""
    with service(databases.environ) as greenline:
        assert asleep(greenline, 0).status == 404


def test_a_request_ends_with_its_deadline(limited: Service, clients: ThreadPoolExecutor) -> None:
    """A query beyond REQUEST_TIMEOUT is a 504, and its connection does not come back poisoned."""
    started = monotonic()
    asked = [clients.submit(asleep, limited, 20) for _ in range(2)]
    for one in asked:
        answer = one.result()
        assert answer.status == 504
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json["code"] == "deadline_exceeded"
    assert "its wait fails" not in limited.log  # the worker's deadline is for other applications
    assert monotonic() - started < 10
    again = [clients.submit(asleep, limited, 0.1) for _ in range(3)]
    assert [one.result().status for one in again] == [200] * 3
    assert limited.get("/books").status == 200


def test_an_abandoned_query_does_not_outlive_its_slot(
    limited: Service, postgres: Postgres, clients: ThreadPoolExecutor
) -> None:
    """After a 504 the server is not left with a query that no longer counts in the pool."""
    asked = [clients.submit(asleep, limited, 20) for _ in range(2)]
    assert [one.result().status for one in asked] == [504] * 2
    wait_until(lambda: backends(postgres, LIMITED, asleep=True) == 0, "no sleeper", limit_s=3)


def test_pools_are_sized_by_the_workers_of_the_command_line(databases: Databases) -> None:
    """gunicorn's own -w wins over WEB_CONCURRENCY, in the pools' sizes too."""
    environ = {**databases.environ, "WEB_CONCURRENCY": "1", "LOG_LEVEL": "debug"}
    with service(environ, "-w", "3") as greenline:
        wait_until(lambda: greenline.log.count(": ready") == 3, "all workers to be ready")
        assert len(greenline.workers()) == 3
        lines = [line for line in greenline.log.splitlines() if " pool: " in line]
        for server in ("postgres", "mongodb"):
            sums = [line for line in lines if f"{server} pool: " in line and "by 3 w" in line]
            assert len(sums) == 3
