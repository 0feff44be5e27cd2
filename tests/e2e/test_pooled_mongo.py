"""``GREENLINE_POOL=1``: unmodified applications that make MongoClients, on the worker."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import psutil
import pytest

from embedded.mongo import Mongo
from greenline.budget.plan import MONGODB_EXTRA_A_WORKER
from greenline.mongo import counted
from tests.e2e.hosting import at_once, hosting
from tests.helpers.connections import Connections
from tests.helpers.forms import in_the_long_form
from tests.helpers.proxy import Proxy
from tests.helpers.support import Service, wait_until

APP = "tests.e2e.connecting_to_mongo:app"
SIZE, CLIENTS = 4, 40
AT_MOST = SIZE + MONGODB_EXTRA_A_WORKER


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Mongo]:
    """A MongoDB without other connections."""
    with Mongo(folder / "pooled", durable=False) as server:
        yield server


@pytest.fixture
def connections(server: Mongo) -> Iterator[Connections]:
    """What the server counts."""
    counting = Connections(server)
    yield counting
    counting.close()


def environ(server: Mongo, **more: str) -> dict[str, str]:
    return {
        "GREENLINE_POOL": "1",
        "MONGODB_MAX_POOL_SIZE": str(SIZE),
        "URI": f"{server.url}t{os.urandom(6).hex()}",
        **more,
    }


def held_by(pid: int, server: Mongo) -> int:
    """Return the connections of the process to the server."""
    every = psutil.Process(pid).net_connections("tcp")
    return sum(bool(one.raddr) and one.raddr.port == server.port for one in every)


def answers(running: Service, path: str) -> str:
    answer = running.get(path)
    assert answer.status == 200, running.log
    return answer.body.decode()


def test_a_client_in_each_request_is_bounded(server: Mongo, connections: Connections) -> None:
    """Forty at once share four connections, also while one forks, and none is left after a stop."""
    with hosting(APP, **environ(server)) as running, ThreadPoolExecutor(CLIENTS) as clients:
        for path in ("/each", "/closed"):
            done, _ = at_once(running, path, CLIENTS)
            assert {answer.status for answer in done} == {200}, running.log
        answers(running, "/add/one")
        assert 2 < connections.most() <= AT_MOST
        (worker,) = running.workers()
        before = held_by(worker, server)
        done, _ = at_once(running, "/fork", 5)
        assert [answer.body for answer in done] == [b"1 0"] * 5, running.log
        assert held_by(worker, server) == before
        asked = [clients.submit(running.get, "/each") for _ in range(CLIENTS)]
        assert asked[0].result().body == b"1"
        running.process.terminate()
        # Those that have not connected yet may be refused.
        assert {one.result().status for one in asked if one.exception() is None} == {200}
        running.process.wait(30)
        assert "Traceback" not in running.log
    wait_until(lambda: connections.now() == 0, "the connections to end")


@pytest.mark.parametrize("asks", [False, True], ids=["made before", "used before"])
def test_a_client_made_before_the_fork(asks: bool, server: Mongo) -> None:
    """The workers have clients of their own; without a use the arbiter has neither threads nor
    sockets."""
    more = {"ASKS_AT_IMPORT": "1"} if asks else {}
    given = environ(server, MONGODB_MAX_CONNECTIONS="100", **more)
    with hosting(APP, "--preload", "-w", "2", **given) as running:
        arbiter = psutil.Process(running.process.pid)
        assert (held_by(arbiter.pid, server) > 0) == asks
        assert (arbiter.num_threads() > 1) == asks
        added = [answers(running, f"/add/{number}") for number in range(10)]
        assert added == [str(number + 1) for number in range(10)]

        def each_has_asked() -> bool:
            done, _ = at_once(running, "/each", 10)
            assert {answer.body for answer in done} == {b"10"}
            return all(held_by(pid, server) for pid in running.workers())

        wait_until(each_has_asked, "each worker to get a request")
        assert max(held_by(pid, server) for pid in running.workers()) <= AT_MOST, running.log
        assert "Traceback" not in running.log
        assert "opened before fork" not in running.log


def test_none_in_time_is_a_503(server: Mongo) -> None:
    """The application does not handle it: the answer says that a retry may help."""
    with Proxy(("127.0.0.1", server.port)) as proxy, ThreadPoolExecutor() as clients:
        options = "directConnection=true&waitQueueTimeoutMS=300"
        uri = f"mongodb://127.0.0.1:{proxy.port}/t{os.urandom(6).hex()}?{options}"
        given = environ(server, URI=uri, MONGODB_MAX_POOL_SIZE="1")
        with hosting(APP, **given) as running:
            assert answers(running, "/find/nothing") == "0"
            proxy.hold(b"held")
            holding = clients.submit(running.get, "/find/held")
            wait_until(lambda: proxy.held, "it to hold the connection")
            refused = running.get("/find/nothing")
            assert (refused.status, refused.headers["Retry-After"]) == (503, "1"), running.log
            proxy.pass_on()
            assert holding.result().status == 200
            assert answers(running, "/find/nothing") == "0"


@in_the_long_form
def test_a_further_application_gets_what_others_do_not_use(
    server: Mongo, connections: Connections
) -> None:
    """The first one has nearly all connections, the second its reserved ones, and none is left."""
    # 30 for this host, of which 12 are reserved.
    given = {
        "WEB_CONCURRENCY": "1",
        "MONGODB_MAX_POOL_SIZE": "100",
        "MONGODB_MAX_CONNECTIONS": "63",
    }
    with ExitStack() as stack:
        running = [stack.enter_context(hosting(APP, **environ(server, **given))) for _ in range(2)]
        for one in running:
            assert answers(one, "/add/one") == "1"
        third = stack.enter_context(hosting(APP, **environ(server, **given)))
        begun_s = monotonic()
        assert answers(third, "/add/one") == "1"
        assert monotonic() - begun_s < counted.TIMEOUT_S / 2
        # What others wait for is given while requests use the connections, too.
        with ThreadPoolExecutor(2 * CLIENTS) as clients:
            asked = [
                clients.submit(answers, one, "/each")
                for _ in range(CLIENTS)
                for one in (*running, third)
            ]
            assert {one.result() for one in asked} == {"1"}
        (worker,) = third.workers()

        def has_more_than_it_began_with() -> bool:
            done, _ = at_once(third, "/each", CLIENTS)
            assert {answer.body for answer in done} == {b"1"}
            return held_by(worker, server) > counted.MIN_PERMITS

        wait_until(has_more_than_it_began_with, "the others to give what they do not use")
        assert connections.most() <= 30
