"""
A worker killed with -9 behind nginx: what was in progress there, and what became of it.

1. A GET is asked of another worker, and no client sees the kill. Of a single ``server`` nginx would
   ask no other server.
2. A POST is not sent twice: its client gets 502, and whether it was done is unknown. No other
   request fails.
3. In the database a task is there once when its client got 201, once or not at all when it got
   502, and never twice.

``GREENLINE_LONG_TESTS=1`` kills twenty workers under load.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import gevent
import pytest

from tests.deploy.behind import behind
from tests.deploy.notes import Begun, Notes
from tests.deploy.traffic import (
    ADD,
    IS_LONG,
    KINDS,
    READ,
    Deployed,
    Traffic,
    deployed,
    failed,
    stopped,
)  # fmt: skip
from tests.helpers.support import Databases, wait_until

KILLS, SOME = (20, 500) if IS_LONG else (2, 100)
CLIENTS, SLEEP_S = 30, 0.05  # so that some requests are in progress at any time
# A new worker has its share when the connections to the others have had their time.
SHORT_TIME = {"keepalive_time 30s;": "keepalive_time 300ms;"}
EACH = 20

of_each_kind = pytest.mark.parametrize("kind", KINDS)


@dataclass
class Noted:
    """The service, and what it notes."""

    place: Deployed
    notes: Notes

    @contextmanager
    def behind(
        self, kind: str, *, once: bool = False, changes: Mapping[str, str] | None = None
    ) -> Iterator[Deployed]:
        """Put an nginx before it that has its ``server`` twice, or *once*; both workers answer."""
        port, path = self.place.running.port, self.place.socket
        where: dict[str, Any] = {"ports": [port]} if kind == "TCP" else {"sockets": [path]}
        line = f"server {f'127.0.0.1:{port}' if kind == 'TCP' else f'unix:{path}'} max_fails=0;"
        changes = {f"{line}\n        {line}": line} if once else changes
        wait_until(self._all_answer, "both workers")
        self.notes.forget()
        with behind(**where, changes=changes) as front:
            yield replace(self.place, front=front)

    def _all_answer(self) -> bool:
        self.place.running.get("/healthz?0")
        workers = set(self.place.running.workers())
        return len(workers) == 2 and workers <= {each.pid for each in self.notes.begun()}


@pytest.fixture(scope="module")
def noted(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Noted]:
    """Two workers, which listen on both kinds of socket."""
    notes = Notes(tmp_path_factory.mktemp("notes"), SLEEP_S)
    with deployed(
        "TCP", databases, target="tests.deploy.noted:app", environ=notes.environ
    ) as place:  # fmt: skip
        yield Noted(place, notes)


def killed(place: Deployed, worker: int) -> None:
    """Kill *worker*, and return when another one is there."""
    before = set(place.running.workers())
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: worker not in place.running.workers(), "its end")
    wait_until(lambda: set(place.running.workers()) - before, "the next one")


def numbers(begun: list[Begun], method: str) -> Counter[int]:
    """Return how often each request was begun."""
    return Counter(each.number for each in begun if each.method == method)


def assert_outcomes_match_the_database(traffic: Traffic) -> None:
    """Compare the clients with nginx and with the database."""
    lost = failed(traffic.adds, 201)
    assert {traffic.adds.answered[number] for number in lost} <= {502}
    nginx = traffic.asked_by_nginx()
    assert nginx[ADD, 201, "201"] == len(traffic.adds.answered) - len(lost)
    assert nginx[ADD, 502, "502"] == len(lost)
    rows = traffic.added()
    assert set(rows.values()) == {1}
    assert set(rows) - lost == set(traffic.adds.answered) - lost


@dataclass
class Scene:
    """What was *begun* when a worker was killed, what was begun *there*, and the clients."""

    begun: list[Begun]
    there: list[Begun]
    traffic: Traffic


@contextmanager
def one_of_two_killed(place: Deployed, databases: Databases, notes: Notes) -> Iterator[Scene]:
    """
    Kill a worker with requests of both kinds in progress, and answer the others.

    Each of the two has half of them, of both kinds: whichever accepts first would take any number.
    None of them came over a connection that nginx had kept: it would ask again after its failure.
    """
    victim, other = place.running.workers()
    with notes.held():
        with stopped(other):
            traffic = Traffic(place, databases, clients=EACH)
            wait_until(lambda: len(notes.begun()) == EACH, "the victim to begin with its half")
        with stopped(victim):
            traffic.add(EACH)
            wait_until(lambda: len(notes.begun()) == 2 * EACH, "all of them to be begun")
        begun = notes.begun()
        assert Counter(each.pid for each in begun) == {victim: EACH, other: EACH}
        ends = [gevent.spawn(load.stop) for load in (traffic.reads, traffic.adds)]
        killed(place, victim)
    with traffic:
        gevent.joinall(ends, raise_error=True)
        yield Scene(begun, [each for each in begun if each.pid == victim], traffic)


@of_each_kind
def test_what_was_in_progress(kind: str, noted: Noted, databases: Databases) -> None:
    """Of twenty each the victim's GETs are begun twice, and its POSTs fail: no other one does."""
    notes = noted.notes
    with (
        noted.behind(kind) as place,
        one_of_two_killed(place, databases, notes) as scene,
    ):
        traffic, there = scene.traffic, scene.there
        assert failed(traffic.reads, 200) == set()
        assert failed(traffic.adds, 201) == set(numbers(there, ADD))
        assert_outcomes_match_the_database(traffic)
        again = notes.begun()[len(scene.begun) :]
        assert numbers(again, READ) == numbers(there, READ)
        assert numbers(again, ADD) == {}
        assert traffic.asked_by_nginx()[READ, 200, "502, 200"] == len(numbers(there, READ))


@of_each_kind
def test_of_a_single_server_no_other_is_asked(
    kind: str, noted: Noted, databases: Databases
) -> None:
    """With one line in nginx.conf the victim's GETs fail as well."""
    notes = noted.notes
    with (
        noted.behind(kind, once=True) as place,
        one_of_two_killed(place, databases, notes) as scene,
    ):
        assert failed(scene.traffic.reads, 200) == set(numbers(scene.there, READ))
        assert failed(scene.traffic.adds, 201) == set(numbers(scene.there, ADD))
        assert notes.begun() == scene.begun


@of_each_kind
def test_under_load(kind: str, noted: Noted, databases: Databases) -> None:
    """Again and again: a POST that fails was begun by a victim, or by no worker."""
    with (
        noted.behind(kind, changes=SHORT_TIME) as place,
        Traffic(place, databases, clients=CLIENTS) as traffic,
    ):
        victims = set()
        for _ in range(KILLS):
            traffic.await_workers(lambda: set(place.running.workers()))
            traffic.await_some(SOME)
            victims.add(place.running.workers()[0])
            killed(place, place.running.workers()[0])
        traffic.await_some(SOME)
        traffic.stop()
        assert_outcomes_match_the_database(traffic)
        lost = failed(traffic.adds, 201)
        adds = [each for each in noted.notes.begun() if each.method == ADD]
        assert {each.pid for each in adds if each.number in lost} <= victims
        assert set(numbers(adds, ADD).values()) == {1}
        nginx = traffic.asked_by_nginx()
        again = nginx[READ, 200, "502, 200"]
        # The victim's idle connections may fail one by one before nginx has seen their end.
        unlucky = failed(traffic.reads, 200)
        assert nginx[READ, 502, "502, 502, 502"] == len(unlucky)
        print(
            f"{kind}: {KILLS} kills, {traffic.count} requests, {len(lost)} POSTs failed, of which "
            f"{len(lost & set(traffic.added()))} were done; {again} GETs were asked again, "
            f"{len(unlucky)} failed"
        )
