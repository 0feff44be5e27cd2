"""What /readyz says of servers that hang, refuse or talk nonsense, and that it recovers."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from time import monotonic

import psycopg2
import pytest

from tests.helpers.forms import in_the_long_form
from tests.helpers.front import Front, behind_proxies
from tests.helpers.proxy import Proxy
from tests.helpers.support import (
    IS_LONG,
    OPS_TOKEN,
    Answer,
    Databases,
    Service,
    run,
    service,
    wait_until,
)

LIMIT_S = 5.0
ONE_LIMIT_S = 2.25  # one server's, and the grace before it is interrupted
SLACK_S = 1.0

TOKEN = {"Authorization": f"Bearer {OPS_TOKEN}"}
FAULTS: dict[str, Callable[[Proxy], None]] = {
    "hangs": Proxy.deafen,
    "refuses": Proxy.refuse,
    "talks garbage": Proxy.babble,
}


@pytest.fixture(scope="module")
def module_front(databases: Databases) -> Iterator[Front]:
    """The proxies of the module's service."""
    with behind_proxies(databases) as front:
        yield front


@pytest.fixture(scope="module")
def module_service(module_front: Front) -> Iterator[Service]:
    """One service for the tests of this module, none of which restarts it."""
    more = {
        "POSTGRES_POOL_SIZE": "1",
        "MONGODB_MAX_POOL_SIZE": "1",
        "REQUEST_TIMEOUT": "8",
        "GREENLINE_DIAGNOSTICS": "1",
        "OPS_TOKEN": OPS_TOKEN,
    }
    with service({**module_front.environ, **more}) as running:
        yield running


@pytest.fixture
def front(module_front: Front) -> Iterator[Front]:
    """The proxies, which pass on at the beginning and at the end."""
    yield module_front
    module_front.pass_on()


@pytest.fixture
def greenline(front: Front, module_service: Service) -> Service:
    """The module's service, ready."""
    wait_until(module_service.is_ready, "the service to be ready again")
    return module_service


@dataclass(frozen=True)
class Timed:
    answer: Answer
    seconds: float


def ask_readiness(greenline: Service, path: str = "/readyz") -> Timed:
    started = monotonic()
    answer = greenline.get(path)
    return Timed(answer, monotonic() - started)


def first_red(greenline: Service) -> Timed:
    """Return the first answer that is not 200: a green one may be remembered for a second."""
    return wait_until(
        lambda: None if (asked := ask_readiness(greenline)).answer.status == 200 else asked,
        "a readiness that is not green",
        limit_s=5,
    )


@pytest.mark.parametrize("path", ["/readyz", "/healthcheck"])
def test_ready_when_both_servers_answer(greenline: Service, path: str) -> None:
    """Both paths answer 200, name both servers, and forbid caches to keep it."""
    answer = greenline.get(path)
    assert answer.status == 200
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.json == {
        "status": "ready",
        "checks": {"postgres": {"status": "ok"}, "mongodb": {"status": "ok"}},
    }


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("store", ["postgres", "mongodb"])
def test_red_while_one_server_fails_and_green_by_itself(
    greenline: Service, front: Front, store: str, fault: str
) -> None:
    """A failing server is named in time, the other one stays ok, and nothing is restarted."""
    workers = greenline.workers()
    FAULTS[fault](front.all()[store])
    red = first_red(greenline)
    assert red.answer.status == 503
    assert red.seconds < LIMIT_S + SLACK_S
    checks = red.answer.json["checks"]
    assert {name: check["status"] for name, check in checks.items()} == {
        name: "failed" if name == store else "ok" for name in ("postgres", "mongodb")
    }
    assert checks[store] == {"status": "failed"}
    assert greenline.get("/healthcheck").status == 503
    assert greenline.get("/healthz", timeout_s=2).status == 200
    front.pass_on()
    wait_until(greenline.is_ready, "green again")
    assert greenline.workers() == workers


def test_why_is_for_the_log_and_for_operators(greenline: Service, front: Front) -> None:
    """The reason has the server's address in it: no stranger reads it, and the log has it once."""
    lines = greenline.log.count("not ready: postgres: ")
    front.postgres.refuse()
    first_red(greenline)
    wait_until(lambda: greenline.log.count("not ready: postgres: ") > lines, "the reason")
    until = monotonic() + 1.5  # an answer is remembered for a second
    while monotonic() < until:
        answer = greenline.get("/readyz")
        assert answer.json["checks"]["postgres"] == {"status": "failed"}
        assert str(front.postgres.port).encode() not in answer.body
    for headers in ({"Authorization": "Bearer wrong"}, {"Authorization": "nonsense"}):
        answer = greenline.get("/healthcheck", headers=headers)
        assert answer.json["checks"]["postgres"] == {"status": "failed"}
    reported = greenline.get("/readyz", headers=TOKEN).json["checks"]["postgres"]["error"]
    logged = greenline.log.splitlines()
    reasons = [line.split("not ready: postgres: ")[1] for line in logged if "not ready: po" in line]
    assert reported in reasons[lines:]
    assert all(one != other for one, other in pairwise(reasons[lines:]))


def test_alive_while_readiness_waits(greenline: Service, front: Front) -> None:
    """/healthz answers while an ask for readiness hangs on a deaf server."""
    front.postgres.deafen()
    with ThreadPoolExecutor() as pool:
        asking = pool.submit(first_red, greenline)
        answers = 0
        while not asking.done():
            assert greenline.get("/healthz", timeout_s=2).status == 200
            answers += 1
    assert asking.result().seconds > 1
    assert answers > 10


def test_both_servers_hanging_are_asked_side_by_side(greenline: Service, front: Front) -> None:
    """With both servers deaf the answer takes as long as with one, and names both."""
    front.postgres.deafen()
    front.mongodb.deafen()
    red = first_red(greenline)
    assert red.seconds < ONE_LIMIT_S + SLACK_S
    assert {check["status"] for check in red.answer.json["checks"].values()} == {"failed"}


def test_an_exhausted_postgres_pool_stays_green(greenline: Service, front: Front) -> None:
    """Readiness has a connection of its own: sleepers that hold and queue for the pool are fine."""
    with ThreadPoolExecutor() as pool:
        sleepers = [pool.submit(greenline.get, "/diagnostics/sleep?seconds=1.5") for _ in range(3)]
        asks = 0
        while not sleepers[0].done():
            assert greenline.get("/readyz").status == 200
            asks += 1
        assert asks > 1
        assert [sleeper.result().status for sleeper in sleepers] == [200] * 3


def test_an_exhausted_mongodb_pool_stays_green(greenline: Service, front: Front) -> None:
    """The pool's one connection is stuck, a second request queues, and readiness is green."""
    assert greenline.get("/states").status == 200
    front.mongodb.hold(b"states")
    with ThreadPoolExecutor() as pool:
        held = [pool.submit(greenline.get, "/states") for _ in range(2)]
        wait_until(lambda: front.mongodb.held, "a request to be held")
        until = monotonic() + 2
        while monotonic() < until:
            assert greenline.get("/readyz").status == 200
        assert not any(one.done() for one in held)
        front.pass_on()
        assert [one.result().status for one in held] == [200, 200]


def test_the_answer_is_remembered(greenline: Service, front: Front) -> None:
    """Fifty asks at once become a few questions to each server."""
    before = {name: proxy.asks for name, proxy in front.all().items()}
    started = monotonic()
    with ThreadPoolExecutor(50) as pool:
        asked = [pool.submit(greenline.get, "/readyz") for _ in range(50)]
        assert {one.result().status for one in asked} == {200}
    seconds = monotonic() - started
    for name, proxy in front.all().items():
        assert proxy.asks - before[name] <= 6 * (1 + seconds)


def test_books_are_unavailable_while_postgres_refuses(greenline: Service, front: Front) -> None:
    """A request that needs the server gets 503, and works when the server is back."""
    assert greenline.get("/books").status == 200
    front.postgres.refuse()
    answer = greenline.get("/books")
    assert answer.status == 503
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert int(answer.headers["Retry-After"]) > 0
    assert answer.json["code"] == "store_down"
    front.pass_on()
    assert greenline.get("/books").status == 200


def test_connections_cut_while_idle_cost_no_request(greenline: Service, front: Front) -> None:
    """A server that was away between requests does not fail the later ones."""
    for path in ("/books", "/states"):
        assert greenline.get(path).status == 200
        for proxy in front.all().values():
            proxy.cut()
        assert greenline.get(path).status == 200


def test_states_are_unavailable_while_mongodb_refuses(greenline: Service, front: Front) -> None:
    """It fails before the request's own time is over, and works when the server is back."""
    assert greenline.get("/states").status == 200
    front.mongodb.refuse()
    answer = greenline.get("/states")
    assert answer.status == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert answer.json["code"] == "store_down"
    front.pass_on()
    wait_until(lambda: greenline.get("/states").status == 200, "the states to be back")


@in_the_long_form
def test_a_short_request_timeout_does_not_silence_readiness(databases: Databases) -> None:
    """Readiness keeps its own limits: it says which server hangs."""
    with (
        behind_proxies(databases) as front,
        service({**front.environ, "REQUEST_TIMEOUT": "1"}) as hasty,
    ):
        front.postgres.deafen()
        red = first_red(hasty)
    assert red.answer.status == 503
    assert red.answer.json["checks"]["postgres"]["status"] == "failed"


@pytest.mark.parametrize("fault", FAULTS if IS_LONG else ["refuses"])
def test_a_service_that_starts_before_its_servers_becomes_ready(
    databases: Databases, fault: str
) -> None:
    """Without servers it is alive and not ready; it turns ready unaided when they come."""
    with behind_proxies(databases) as front:
        for proxy in front.all().values():
            FAULTS[fault](proxy)
        with service(front.environ, wait=False) as greenline:
            wait_until(greenline.is_alive, "the service to be alive")
            red = first_red(greenline)
            assert red.answer.status == 503
            assert {check["status"] for check in red.answer.json["checks"].values()} == {"failed"}
            workers = greenline.workers()
            front.pass_on()
            wait_until(lambda: ": ready" in greenline.log, "the log to say that it is ready")
            assert greenline.is_ready()
            assert greenline.get("/books").status == greenline.get("/states").status == 200
            assert greenline.workers() == workers


def test_a_schema_that_is_behind_is_not_ready_until_upgraded(
    databases: Databases, empty_database: str
) -> None:
    """It starts, says what is missing and which command brings it, and turns ready after that."""
    environ = {**databases.environ, "DATABASE_URL": empty_database, "WEB_CONCURRENCY": "1"}
    with service({**environ, "OPS_TOKEN": OPS_TOKEN}, wait=False) as greenline:
        wait_until(greenline.is_alive, "the service to be alive")
        answer = greenline.get("/readyz", headers=TOKEN)
        assert answer.status == 503
        problem = answer.json["checks"]["postgres"]["error"]
        assert "schema is behind" in problem
        assert "flask db upgrade" in problem
        run(["flask", "db", "upgrade"], environ)
        wait_until(greenline.is_ready, "the service to be ready")


def test_a_schema_that_is_ahead_is_ready(databases: Databases, empty_database: str) -> None:
    """An upgrade comes before its code: a revision that this code does not know is no fault."""
    environ = {**databases.environ, "DATABASE_URL": empty_database, "WEB_CONCURRENCY": "1"}
    run(["flask", "db", "upgrade"], environ)
    with psycopg2.connect(empty_database) as conn, conn.cursor() as cursor:
        cursor.execute("update alembic_version set version_num = '9999'")
    conn.close()
    with service(environ) as greenline:
        assert greenline.get("/readyz").json["checks"]["postgres"] == {"status": "ok"}
