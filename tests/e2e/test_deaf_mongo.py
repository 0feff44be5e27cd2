"""A MongoDB that hears nothing for half a minute, while the service goes on."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from time import monotonic

import pytest

from greenline.budget.plan import MONGODB_EXTRA_A_WORKER
from tests.helpers.front import Front, behind_proxies
from tests.helpers.support import IS_LONG, Answer, Databases, Service, service, wait_until

# Half a minute in every run of the suite is long: GREENLINE_LONG_TESTS=1 asks for it.
DEAF_S = 30.0 if IS_LONG else 5.0
REQUEST_TIMEOUT_S = 2.0
SLACK_S = 1.0
POOL_SIZE = 4


@dataclass
class Asker:
    """Ask for one path until stopped, and keep the outcomes."""

    greenline: Service
    path: str
    stop: Event
    answers: list[Answer] = field(default_factory=list)
    longest_s: float = 0.0

    def __call__(self) -> None:
        while not self.stop.wait(0.01):
            started = monotonic()
            answer = self.greenline.get(self.path, timeout_s=REQUEST_TIMEOUT_S + 10)
            self.longest_s = max(self.longest_s, monotonic() - started)
            self.answers.append(answer)


@pytest.fixture
def front(databases: Databases) -> Iterator[Front]:
    """The proxies before both servers."""
    with behind_proxies(databases) as front:
        yield front
        front.pass_on()


def test_a_mongodb_that_is_deaf_is_reported_in_time_and_found_again(front: Front) -> None:
    """Each request for it ends at its deadline as 503 or 504, the others are served meanwhile."""
    more = {
        "REQUEST_TIMEOUT": str(REQUEST_TIMEOUT_S),
        "MONGODB_MAX_POOL_SIZE": str(POOL_SIZE),
    }
    with service({**front.environ, **more}) as greenline, ThreadPoolExecutor(32) as threads:
        assert greenline.get("/states?limit=1").status == 200
        workers = greenline.workers()
        stop = Event()
        # More than the pool has connections: some wait for a connection, and some for an answer.
        mongo = [Asker(greenline, "/states?limit=1", stop) for _ in range(3 * POOL_SIZE)]
        others = [Asker(greenline, path, stop) for path in ("/books/1", "/healthz")]
        front.mongodb.deafen()
        asking: list[Future[None]] = [threads.submit(asker) for asker in (*mongo, *others)]
        stop.wait(DEAF_S)
        stop.set()
        for asked in asking:
            asked.result(timeout=REQUEST_TIMEOUT_S + 10)

        answers = [answer for asker in mongo for answer in asker.answers]
        assert len(answers) >= DEAF_S / (REQUEST_TIMEOUT_S + SLACK_S) * len(mongo)
        assert {answer.status for answer in answers} <= {503, 504}
        assert all("Retry-After" in answer.headers for answer in answers if answer.status == 503)
        assert max(asker.longest_s for asker in mongo) < REQUEST_TIMEOUT_S + SLACK_S
        for asker in others:
            assert {answer.status for answer in asker.answers} == {200}
            assert asker.longest_s < SLACK_S
            assert len(asker.answers) > 10 * DEAF_S

        front.mongodb.pass_on()
        wait_until(lambda: greenline.get("/states?limit=1").status == 200, "the first answer")
        again = [threads.submit(greenline.get, "/states?limit=1") for _ in range(2 * POOL_SIZE)]
        assert {asked.result(timeout=40).status for asked in again} == {200}
        most = POOL_SIZE + MONGODB_EXTRA_A_WORKER
        wait_until(lambda: 0 < front.mongodb.open <= most, "no more connections than are allowed")
        assert greenline.workers() == workers


def test_a_batch_that_is_late_is_a_504_and_not_in_the_way_of_the_same_again(front: Front) -> None:
    """MongoDB has written it and its answer is held back: the transaction is aborted."""
    task_id = int.from_bytes(os.urandom(3))

    def post(*agents: int) -> Answer:
        batch = [{"task_id": task_id, "agent_id": number, "data": {}} for number in agents]
        return greenline.ask("POST", "/states/batch", {"items": batch})

    with service({**front.environ, "REQUEST_TIMEOUT": str(REQUEST_TIMEOUT_S)}) as greenline:
        assert post(1, 2).status == 201
        front.mongodb.mute()
        late = post(3, 4)
        front.mongodb.pass_on()
        assert (late.status, late.json["code"]) == (504, "deadline_exceeded")
        wait_until(lambda: post(3, 4).status == 201, "the same again to be made", limit_s=20)
        found = greenline.get(f"/states?task_id={task_id}").json["items"]
        assert sorted(one["agent_id"] for one in found) == [1, 2, 3, 4]
