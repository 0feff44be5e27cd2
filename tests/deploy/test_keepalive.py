"""
The instant in which an idle connection is given up, and by whom: nginx's time before ours.

All clients ask at once, so that nginx needs a connection for each; then all of these idle for about
as long as they are kept. ``GREENLINE_LONG_TESTS=1`` asks 10,000 times, at 900 ms of nginx's and 1 s
of ours, and the other way round; the short form leaves more between the two, for a busy machine.
"""

import random
from time import monotonic

import gevent
import pytest

from tests.deploy.traffic import IS_LONG, KINDS, Traffic, deployed, held_up
from tests.helpers.forms import some
from tests.helpers.support import Databases, wait_until

CLIENTS, REQUESTS, FIRST = (200, 10_000, "900ms") if IS_LONG else (200, 1_000, "500ms")
OURS = ("--keep-alive", "1")  # the worker looks twice a second: it closes after 1 to 1.5 s
CLOSED_S = 2.0
LAST = "3s"

of_each_kind = pytest.mark.parametrize("kind", some(KINDS))


def kept(time: str) -> dict[str, str]:
    """Return the changes with which nginx keeps each connection for that *time*."""
    return {
        "keepalive_timeout 4s;": f"keepalive_timeout {time};",
        "keepalive 64;": "keepalive 256;",
    }


class Bursts:
    """When clients ask: all at once, and again after *least_s* to *most_s* seconds."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s, self._most_s = least_s, most_s
        self.next_s = monotonic()

    def pause_s(self) -> float:
        """Return the time from now to the next."""
        now = monotonic()
        if now >= self.next_s:
            self.next_s = now + random.uniform(self._least_s, self._most_s)
        return self.next_s - now


@pytest.mark.parametrize("kind", some(KINDS))
def test_nothing_is_lost_where_nginx_gives_up_first(kind: str, databases: Databases) -> None:
    """Connections idle across both times: no 502, and nginx asks nothing twice."""
    bursts = Bursts(0.85, 1.4)
    with deployed(kind, databases, *OURS, changes=kept(FIRST)) as place:
        with Traffic(place, databases, clients=CLIENTS, pause_s=bursts.pause_s) as traffic:
            wait_until(lambda: traffic.count >= REQUESTS, "the requests", 600)
            traffic.stop()
            traffic.assert_nothing_lost()


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 goes on until it happens")
@of_each_kind
def test_requests_are_lost_where_the_worker_gives_up_first(kind: str, databases: Databases) -> None:
    """The same the other way round: sooner or later a request meets a worker that is closing."""
    bursts = Bursts(0.85, 1.7)
    with deployed(kind, databases, *OURS, changes=kept(LAST)) as place:
        with Traffic(place, databases, clients=CLIENTS, pause_s=bursts.pause_s) as traffic:
            wait_until(lambda: traffic.count >= REQUESTS and lost(traffic), "a 502", 900)
            traffic.stop()
            assert_none_was_done(traffic)


@of_each_kind
def test_an_nginx_that_was_held_up_asks_a_worker_that_has_closed(
    kind: str, databases: Databases
) -> None:
    """The same for sure: nginx stands still while the clients ask and the worker closes."""
    bursts = Bursts(0.95, 0.95)
    with deployed(kind, databases, *OURS, changes=kept(LAST)) as place:
        with Traffic(place, databases, clients=40, pause_s=bursts.pause_s) as traffic:
            traffic.await_some(40)
            while not lost(traffic):
                gevent.sleep(bursts.next_s - monotonic() - 0.05)
                with held_up(place.front):
                    gevent.sleep(CLOSED_S - 0.9)
                traffic.await_some(40)
            traffic.stop()
            assert_none_was_done(traffic)


def lost(traffic: Traffic) -> int:
    """Return how many requests were answered 502."""
    return traffic.adds.statuses[502]


def assert_none_was_done(traffic: Traffic) -> None:
    """What nginx answers 502 is not in the database: the worker closed without reading it."""
    assert traffic.reads.failures == traffic.adds.failures == {}
    assert set(traffic.adds.statuses) == {201, 502}
    answered_502 = [
        entry for entry in traffic.asked_by_nginx().elements() if entry[:2] == ("POST", 502)
    ]
    assert len(answered_502) == lost(traffic)
    done = [number for number, status in traffic.adds.answered.items() if status == 201]
    assert traffic.added() == dict.fromkeys(done, 1)
