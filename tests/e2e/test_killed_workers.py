"""
Workers killed with -9 under clients that write: nothing acknowledged is lost, nothing done twice.

1. Each write is acknowledged, cut off, or refused with a retry. One with an ``Idempotency-Key`` is
   sent again until it is acknowledged.
2. A worker is killed when its writes are done and their answers held back: those with a key are
   sent again to another worker, and would be there twice without it.
3. What was acknowledged is there once. What was cut off is there once or not at all, and a batch
   whole or not at all; where MongoDB has no transactions a part of it may be there, which the same
   request would complete a minute later.

``GREENLINE_LONG_TESTS=1`` kills ten workers, on both kinds of engine, five of them in the middle of
writes; tests/deploy does it behind nginx, on Postgres.
"""

import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import gevent
import psycopg2
import pytest
from pymongo import MongoClient

from embedded.mongo import Mongo
from tests.helpers.support import IS_LONG, Databases, Service, run, service, wait_until

ENGINES = ["mongo", "standalone_mongo"] if IS_LONG else ["mongo"]
HELD_KILLS, KILLS = (5, 10) if IS_LONG else (2, 2)
WRITERS, SOME = 12, 60
TIMEOUT_S = 45.0  # of a client: a 504 comes before
IN_PROGRESS = "idempotency_key_in_progress"
UNKNOWN = ("deadline_exceeded", "outcome_unknown", "store_down")  # it may have been done
ITEMS = {"states": 1, "messages/batch": 3, "tasks": 1}  # a write of each kind has so many


def has_key(number: int) -> bool:
    """Return whether a write has an ``Idempotency-Key``, as half of each kind have."""
    return number // len(ITEMS) % 2 == 1


class Held:
    """The answers that ``tests.e2e.holding`` holds back; ``environ`` tells it where to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environ = {"HELD": str(folder)}

    @contextmanager
    def back(self) -> Iterator[None]:
        """Hold back the answers to all writes that are done in the block."""
        hold = self._folder / "hold"
        hold.touch()
        try:
            yield
        finally:
            hold.unlink()

    def answers(self) -> list[tuple[int, int]]:
        """Return the worker and the number of each write that is done and not answered."""
        found = [path.name.split("-") for path in self._folder.glob("*-*")]
        return [(int(worker), int(number)) for worker, number in found]

    def of_a_killed(self, worker: int) -> set[int]:
        """Return the writes with a key that *worker* did and never answered, and forget all."""
        mine = {number for its, number in self.answers() if its == worker}
        for path in self._folder.glob(f"{worker}-*"):
            path.unlink()
        return set(filter(has_key, mine))


class Writers:
    """Clients that write until they are stopped, each item with a number of its own."""

    def __init__(self, api: Service, databases: Databases) -> None:
        self._api, self._databases = api, databases
        self._numbers = itertools.count()
        self._is_over = False
        self._mark = random.randrange(1_000_000, 2_000_000_000)  # a task of their own
        self._agent_id = api.ask("POST", "/agents", {"name": f"writer {self._mark}"}).json["id"]
        self.acknowledged: set[int] = set()
        self.cut_off: set[int] = set()
        self.sent_again = 0
        self._writers = [gevent.spawn(self._write) for _ in range(WRITERS)]

    def count(self) -> int:
        """Return how many writes were acknowledged; raise what a client did not expect."""
        for each in self._writers:
            if each.exception is not None:
                raise each.exception
        return len(self.acknowledged)

    def stop(self) -> None:
        """
        Let each end what it is at.

        The server keeps an open transaction of a killed worker for a minute: until then the same
        batch, sent again, gets 504.
        """
        self._is_over = True
        gevent.joinall(self._writers, timeout=200, raise_error=True)
        assert all(each.dead for each in self._writers)

    def stored(self) -> dict[int, Counter[int]]:
        """Return how often each item of each write is in the databases."""
        found: list[str] = []
        with MongoClient[Any](self._databases.mongo) as client:
            database, query = client.get_default_database("greenline"), {"task_id": self._mark}
            found += [f"{one['agent_id'] - 1}.0" for one in database.states.find(query)]
            found += [one["content"] for one in database.messages.find(query)]
        with closing(psycopg2.connect(self._databases.postgres)) as conn, conn.cursor() as cursor:
            cursor.execute("select title from tasks where agent_id = %s", (self._agent_id,))
            found += [title for (title,) in cursor.fetchall()]
        writes: dict[int, Counter[int]] = {}
        for name in found:
            number, _, index = name.partition(".")
            writes.setdefault(int(number), Counter())[int(index)] += 1
        return writes

    def kind(self, number: int) -> str:
        """Return the kind of a write."""
        return list(ITEMS)[number % len(ITEMS)]

    def _write(self) -> None:
        while not self._is_over:
            number = next(self._numbers)
            keyed = {"Idempotency-Key": f"{self._mark}-{number}"} if has_key(number) else {}
            while not self._is_done(number, keyed):
                self.sent_again += 1

    def _is_done(self, number: int, headers: dict[str, str]) -> bool:
        kind = self.kind(number)
        try:
            answer = self._api.ask(
                "POST", f"/{kind}?{number}", self._body(kind, number), headers, TIMEOUT_S
            )
        except (OSError, HTTPException):
            answer = None
        if answer is not None and answer.status == 201:
            self.acknowledged.add(number)
            return True
        if answer is None or answer.json["code"] in UNKNOWN:
            if not headers:
                self.cut_off.add(number)
            return not headers
        assert answer.status == 503 or answer.json["code"] == IN_PROGRESS, answer.body
        gevent.sleep(0.2)
        return False

    def _body(self, kind: str, number: int) -> Any:
        if kind == "states":
            return {"task_id": self._mark, "agent_id": number + 1, "data": {}}
        if kind == "tasks":
            return {"agent_id": self._agent_id, "title": f"{number}.0"}
        of_all = {"task_id": self._mark, "role": "user"}
        return {"items": [{**of_all, "content": f"{number}.{n}"} for n in range(ITEMS[kind])]}


def killed_before_it_answers(api: Service, held: Held) -> set[int]:
    """Kill a worker that has done all it was asked for; return which writes of it had a key."""
    with held.back():
        wait_until(lambda: len(held.answers()) == WRITERS, "all writes to be done")
        victim = next(worker for worker, number in held.answers() if has_key(number))
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in api.workers(), "its end")
    return held.of_a_killed(victim)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_acknowledged_write_is_lost_or_doubled(
    engine: str, databases: Databases, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A worker after the other, while twelve clients write to both databases."""
    server: Mongo = request.getfixturevalue(engine)
    databases = Databases(databases.postgres, server.url)
    # Before the writes: in an index that is made meanwhile SecantusDB lacks open transactions.
    run(["flask", "indexes", "ensure"], databases.environ)
    held, unanswered = Held(tmp_path), set()
    with service({**databases.environ, **held.environ}, target="tests.e2e.holding:app") as api:
        writers = Writers(api, databases)
        for kill in range(KILLS):
            ended = writers.count() + SOME
            wait_until(lambda: writers.count() >= ended, "writes")  # noqa: B023
            before = set(api.workers())
            if kill >= HELD_KILLS:
                os.kill(random.choice(sorted(before)), signal.SIGKILL)
            else:
                unanswered |= killed_before_it_answers(api, held)
            wait_until(lambda: set(api.workers()) - before, "the next worker")  # noqa: B023
        writers.stop()
    stored = writers.stored()
    whole = {number: Counter(range(ITEMS[writers.kind(number)])) for number in stored}
    assert unanswered
    assert unanswered <= writers.acknowledged
    assert writers.acknowledged <= stored.keys() <= writers.acknowledged | writers.cut_off
    odd = {number: found for number, found in stored.items() if found != whole[number]}
    assert odd.keys() <= writers.cut_off
    if engine == "standalone_mongo":
        odd = {number: found for number, found in odd.items() if not found <= whole[number]}
    assert odd == {}
    print(
        f"{engine}: {KILLS} kills, {len(writers.acknowledged)} acknowledged, "
        f"{len(writers.cut_off)} cut off ({len(writers.cut_off & stored.keys())} of them there), "
        f"{writers.sent_again} sent again, {len(unanswered)} of them done before"
    )
