"""greenline.admission.overload as arithmetic: a queue that is long, and one that grows."""

from collections import deque
from math import inf

import pytest

from greenline.admission.overload import TRY_S, WINDOW_S, Overload

STEP_S = 0.02


class Server:
    """Serves *rate* requests a second, first come, first served, of those that may wait."""

    def __init__(self, rate: float) -> None:
        self.now = 0.0
        self.overload = Overload(clock=lambda: self.now)
        self.queue: deque[float] = deque()
        self.waits_s: list[float] = []
        self.refused = 0
        self._rate, self._due, self._coming = rate, 0.0, 0.0

    def offer(self, rate: float, for_s: float) -> None:
        """Offer *rate* requests a second, which come whether or not others were answered."""
        self.waits_s, self.refused = [], 0
        for _ in range(round(for_s / STEP_S)):
            self._coming += rate * STEP_S
            while self._coming >= 1:
                self._coming -= 1
                self.come()
            self.step()

    def come(self) -> None:
        self.overload.came += 1
        if len(self.queue) >= self.overload.max_waiting:
            self.refused += 1
        else:
            self.queue.append(self.now)

    def step(self) -> int:
        """Serve for a moment; return how many were answered."""
        self.now += STEP_S
        self._due = min(self._due + self._rate * STEP_S, max(len(self.queue), 1.0))
        served = 0
        while self._due >= 1 and self.queue:
            self._due -= 1
            self.waits_s.append(self.now - self.queue.popleft())
            self.overload.ended += 1
            served += 1
        if self.queue:
            self.overload.observe(len(self.queue), 1)
        while len(self.queue) > self.overload.max_waiting:
            self.queue.popleft()
            self.refused += 1
        return served


@pytest.mark.parametrize("rate", [20, 200, 2000])
def test_clients_that_wait_for_their_answer_are_never_refused(rate: int) -> None:
    """Two hundred at once, who ask again when they are answered: the queue is long, not growing."""
    server = Server(rate)
    for _ in range(200):
        server.come()
    for _ in range(round(30 / STEP_S)):
        for _ in range(server.step()):
            server.come()
    assert server.refused == 0
    assert server.overload.max_waiting == inf


@pytest.mark.parametrize("rate", [200, 2000])
@pytest.mark.parametrize("factor", [1.5, 3, 10])
def test_in_an_overload_that_lasts_what_is_served_is_served_in_time(
    rate: int, factor: float
) -> None:
    """At least nine of ten that could be answered within two seconds are, from the start on."""
    server = Server(rate)
    server.offer(factor * rate, 20.0)
    assert sum(wait_s <= 2.0 for wait_s in server.waits_s) >= 0.9 * 20.0 * rate
    server.offer(factor * rate, 20.0)
    assert sum(wait_s <= 2.0 for wait_s in server.waits_s) >= 0.9 * 20.0 * rate


def test_when_the_overload_ends_nothing_is_refused_any_more() -> None:
    """A few seconds after the load has fallen below what is served."""
    server = Server(200)
    server.offer(600, 10.0)
    assert server.refused > 1000
    server.offer(150, 5.0)
    server.offer(150, 10.0)
    assert server.refused == 0


def test_clients_that_come_back_at_once_are_not_refused_for_ever() -> None:
    """Fifty that ask again whatever they are answered: the queue does not grow by itself."""
    server = Server(20)
    server.overload.max_waiting = 8
    refused = 0
    for _ in range(50):
        server.come()
    for _ in range(round(2 * TRY_S / STEP_S)):
        again, server.refused = server.refused, 0
        refused += again
        for _ in range(again + server.step()):
            server.come()
    assert refused > 100
    assert server.refused == 0
    assert server.overload.max_waiting == inf


def test_a_slow_service_answers_in_time_again_after_its_queue_was_long() -> None:
    """Below MIN_OVERLOAD nothing is refused: at twenty a second that queue takes seconds."""
    server = Server(20)
    server.offer(60, 20.0)
    server.offer(60, 20.0)
    assert sum(wait_s <= 2.0 for wait_s in server.waits_s) >= 0.9 * 20.0 * 20


@pytest.mark.parametrize("rate", [2, 20, 200])
def test_clients_that_join_over_seconds_are_never_refused(rate: int) -> None:
    """Two hundred in ten seconds, who ask again when they are answered."""
    server = Server(rate)
    joined = 0
    for step in range(round(30 / STEP_S)):
        if joined < 200 and step * STEP_S >= joined * 10 / 200:
            joined += 1
            server.come()
        for _ in range(server.step()):
            server.come()
    assert joined == 200
    assert server.refused == 0


def test_a_burst_is_no_overload() -> None:
    """Five seconds of work that come at once are all served."""
    server = Server(100)
    for _ in range(500):
        server.come()
    server.offer(50, 15.0)
    assert server.refused == 0


def test_a_burst_after_another_one_that_was_served_is_no_overload() -> None:
    """A thousand clients, twice within two seconds, each time served: the second burst stays."""
    now = 0.0
    overload = Overload(clock=lambda: now)
    # What one worker's windows were: quick queries of a thousand clients, then slow ones of them.
    came = [12, 1071, 0, 0, 145, 938, 0, 0, 0, 0]
    ended = [0, 36, 302, 536, 222, 0, 0, 0, 62, 28]
    present = 17
    for window in zip(came, ended, strict=True):
        now += WINDOW_S
        overload.came, overload.ended = window
        present += overload.came - overload.ended
        overload.observe(present, 0)
        assert overload.max_waiting == inf


class Full:
    """A worker whose thousand sockets are all in use: it accepts a client for each that ends."""

    def __init__(self, unaccepted: float) -> None:
        self.now, self.unaccepted = 0.0, unaccepted
        self.overload = Overload(unaccepted=lambda: self.unaccepted, clock=lambda: self.now)
        self.held = 0

    def serve(self, rate: float, coming: float) -> None:
        """For ten seconds serve *rate* requests a second of the *coming* ones."""
        for _ in range(round(10 / STEP_S)):
            self.now += STEP_S
            self.overload.came += round(rate * STEP_S)
            self.overload.ended += round(rate * STEP_S)
            self.unaccepted = max(0.0, self.unaccepted + (coming - rate) * STEP_S)
            self.overload.observe(984, 16)
            self.held += self.overload.max_waiting < 1000


def test_clients_that_wait_outside_are_a_queue_that_does_not_grow() -> None:
    """Two thousand clients that ask again when they are answered."""
    worker = Full(1000)
    worker.serve(100, coming=100)
    assert worker.held == 0


def test_clients_that_cannot_be_accepted_are_a_queue_that_grows() -> None:
    """Twice as many come as are served, and the kernel counts those that the worker does not."""
    worker = Full(0)
    worker.serve(100, coming=200)
    assert worker.held > 200


def test_clients_that_cannot_be_counted_are_a_queue_that_grows() -> None:
    """The kernel's own queue is full: more come than that."""
    worker = Full(inf)
    worker.serve(100, coming=100)
    assert worker.held > 200


def test_clients_that_are_connected_are_no_more_for_asking_later_than_others() -> None:
    """Five hundred that wait for their answers, on a machine that answers fifty a second."""
    now = 0.0
    overload = Overload(connected=lambda: 500, clock=lambda: now)
    # What one worker's windows were: the last client has asked after a second, and then an answer
    # more or less is on its way.
    waiting = [31, 370, 468, 469, 468, 470, 471, 477, 481, 482, 483, 483, 484, 479, 483, 490]
    ended = [16, 11, 21, 31, 32, 31, 30, 28, 9, 28, 36, 24, 24, 12, 10, 11]
    before = 0
    for here, done in zip(waiting, ended, strict=True):
        now += 0.32
        overload.came, overload.ended = here - before + done, done
        overload.observe(here, 10)
        assert overload.max_waiting == inf
        before = here


def test_clients_that_connect_anew_for_each_request_are_not_counted_exactly() -> None:
    """A few more of five hundred than a second ago were on their way then."""
    now = 0.0
    overload = Overload(clock=lambda: now)
    for waiting in (470, 471, 473, 475, 476, 478, 480, 482, 483, 484, 486, 488):
        now += WINDOW_S
        overload.came, overload.ended = 13, 12
        overload.observe(waiting, 10)
        assert overload.max_waiting == inf
