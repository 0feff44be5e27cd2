"""greenline.limits as arithmetic: invariants, and a simulated server under an open load."""

import heapq
import random
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenline.limits import MIN_SAMPLES, PROBE_S, Fixed, Gradient

SLOTS, SERVICE_S = 20, 0.05
CAPACITY = SLOTS / SERVICE_S
Service = Callable[[random.Random], float]


def steady(service_s: float) -> Service:
    """Vary as the work of independent requests does."""
    return lambda dice: dice.expovariate(1 / service_s)


def two_routes(dice: random.Random) -> float:
    """Be quick or slow, by half; 50 ms in the mean."""
    return dice.choice((0.001, 0.099))


STEADY = steady(SERVICE_S)


class Server:
    """*slots* requests at once, a queue before them, and the limit before both."""

    def __init__(self, *, slots: int = SLOTS, **options: int) -> None:
        self.now = 0.0
        self.limit = Gradient(clock=lambda: self.now, **options)
        self.slots = slots
        self.in_progress = self.busy = self.refused = self._order = 0
        self.answers: list[tuple[float, float]] = []  # when, and after how long
        self._queue: deque[float] = deque()
        self._events: list[tuple[float, int, float | None]] = []
        self._dice = random.Random(1)

    def run(self, for_s: float, rate: float, service: Service = STEADY) -> None:
        """Offer *rate* requests a second, which come whether or not there is room."""
        until = self.now + for_s
        coming = self.now + self._dice.expovariate(rate)
        self.refused, self.answers = 0, []
        while min(coming, self._events[0][0] if self._events else coming) < until:
            if self._events and self._events[0][0] < coming:
                self._end(service)
            else:
                self.now = coming
                coming += self._dice.expovariate(rate)
                self._arrive(service)
        self.now = until

    def _arrive(self, service: Service) -> None:
        if self.in_progress >= self.limit.value:
            self.refused += 1
            return
        self.in_progress += 1
        if self.busy < self.slots:
            self._serve(self.now, service)
        else:
            self._queue.append(self.now)

    def _serve(self, arrived_s: float, service: Service) -> None:
        self.busy += 1
        self._order += 1
        event = (self.now + service(self._dice), self._order, arrived_s)
        heapq.heappush(self._events, event)

    def _end(self, service: Service) -> None:
        self.now, _, arrived_s = heapq.heappop(self._events)
        assert arrived_s is not None
        self.answers.append((self.now, self.now - arrived_s))
        self.busy -= 1
        self.limit.record(arrived_s, self.in_progress, True)
        self.in_progress -= 1
        if self._queue:
            self._serve(self._queue.popleft(), service)

    def rate(self, last_s: float) -> float:
        """Return the answers a second of the last *last_s* seconds."""
        return sum(when > self.now - last_s for when, _ in self.answers) / last_s

    def p99_s(self) -> float:
        latencies = sorted(latency for _, latency in self.answers)
        return latencies[len(latencies) * 99 // 100]


def test_a_number_stays_what_it_is() -> None:
    """A fixed limit learns nothing from slow requests and failures."""
    limit = Fixed(7)
    for _ in range(100):
        limit.record(0.0, 7, False)
    assert limit.value == 7


@pytest.mark.parametrize(
    ("slots", "service"),
    [
        (20, steady(0.05)),
        (20, two_routes),
        (20, lambda dice: 0.05),
        (100, steady(0.05)),
        (5, steady(0.01)),
    ],
    ids=["20 slots", "two routes", "always the same", "100 slots", "5 slots"],
)
def test_three_times_the_load_is_served_at_capacity(slots: int, service: Service) -> None:
    """The limit finds the server: all slots work, and the queue is no longer than they are."""
    server = Server(slots=slots)
    server.run(15.0, 1.0, service)
    capacity = slots / (sum(service(random.Random(n)) for n in range(2000)) / 2000)
    server.run(120.0, 3 * capacity, service)
    assert server.rate(100.0) >= 0.9 * capacity
    assert slots <= server.limit.value <= 3 * slots


def test_latency_stays_near_that_at_saturation() -> None:
    """The slowest of a hundred admitted at three times the load: 3 times that at saturation."""
    calm = Server()
    calm.run(60.0, 0.9 * CAPACITY)
    saturated = calm.p99_s()
    server = Server()
    server.run(60.0, 3 * CAPACITY)
    assert server.p99_s() <= 3 * saturated


def test_an_overload_that_lasts_does_not_become_normal() -> None:
    """After ten minutes the limit is what it was after one."""
    server = Server()
    server.run(600.0, 3 * CAPACITY)
    assert SLOTS <= server.limit.value <= 3 * SLOTS
    assert server.rate(60.0) >= 0.9 * CAPACITY


def test_too_high_a_limit_comes_down() -> None:
    """A server that starts under overload with fifty times too high a limit finds its size."""
    server = Server(initial=1000)
    server.run(120.0, 3 * CAPACITY)
    assert server.limit.value <= 4 * SLOTS
    assert server.rate(60.0) >= 0.9 * CAPACITY


@pytest.mark.parametrize("factor", [0.5, 2.0], ids=["faster", "slower"])
def test_a_server_that_changes_is_followed(factor: float) -> None:
    """Twice as fast, it answers twice as much; twice as slow, its queue does not grow."""
    server = Server()
    server.run(60.0, 3 * CAPACITY)
    server.run(60.0, 3 * CAPACITY, steady(factor * SERVICE_S))
    assert server.rate(40.0) >= 0.9 * CAPACITY / factor
    assert SLOTS <= server.limit.value <= 3 * SLOTS


def test_slower_routes_are_not_taken_for_an_overload_for_long() -> None:
    """When quick requests give way to slow ones that fit, refusals end after seconds."""
    server = Server()
    server.run(60.0, 300.0, steady(0.001))
    server.run(10.0, 140.0, steady(0.1))
    server.run(60.0, 140.0, steady(0.1))
    assert server.refused == 0


def test_below_its_capacity_nothing_is_refused() -> None:
    """Once it has grown past the start, a load that fits is served whole."""
    server = Server()
    server.run(30.0, 0.7 * CAPACITY)
    server.run(120.0, 0.7 * CAPACITY)
    assert server.refused == 0


def test_the_limit_does_not_grow_when_nothing_tries_it() -> None:
    """A load that uses less than half of the limit proves nothing about the rest."""
    server = Server()
    server.run(300.0, 10.0)
    assert server.limit.value == 20


def test_a_stream_of_a_minute_does_not_shrink_the_limit() -> None:
    """One long response among quick ones began before the window, and is left out."""
    server = Server()
    server.run(20.0, 3 * CAPACITY, lambda dice: SERVICE_S)
    before = server.limit.value
    server.limit.record(server.now - 60.0, 1, True)
    server.run(1.0, 3 * CAPACITY, lambda dice: SERVICE_S)
    assert server.limit.value >= 0.9 * before


def test_a_large_server_is_found_in_seconds() -> None:
    """A start under a load that needs seven times the first limit refuses no more after 5 s."""
    server = Server(slots=200)
    server.run(5.0, 7 * CAPACITY)
    server.run(10.0, 7 * CAPACITY)
    assert server.refused == 0


def test_a_backend_that_becomes_slow_gets_the_room_it_needs_in_seconds() -> None:
    """Four times as slow and not because of us: four times as many must be in progress."""
    server = Server(slots=2000)
    server.run(30.0, 1000.0)
    server.run(12.0, 1000.0, steady(4 * SERVICE_S))
    server.run(20.0, 1000.0, steady(4 * SERVICE_S))
    assert server.refused == 0


def test_errors_at_once_do_not_pass_for_a_fast_server() -> None:
    """While every other request fails at once, the base stays that of the ones that work."""
    now = 0.0
    limit = Gradient(clock=lambda: now)
    for ok in (True, False) * 2000:
        now += 0.01
        limit.record(now - (0.05 if ok else 0.001), 5, ok)
    assert limit.base_s == pytest.approx(0.05, rel=0.01)


def test_requests_that_run_into_their_timeout_shrink_the_limit() -> None:
    """When nothing succeeds any more, the failures tell how slow it is."""
    now = 0.0
    limit = Gradient(initial=100, clock=lambda: now)
    for _ in range(1000):
        now += 0.01
        limit.record(now - 0.05, 10, True)
    for _ in range(1000):
        now += 0.01
        limit.record(now - 1.0, limit.value, False)
    assert limit.value < 50


@pytest.mark.parametrize("service_s", [0.05, 2.0], ids=["quick", "slow"])
def test_a_probe_takes_a_small_part_of_the_time(service_s: float) -> None:
    """Under a lasting overload the limit is lowered on purpose in less than 5 % of the time."""
    now, lowered = 0.0, 0
    limit = Gradient(initial=40, clock=lambda: now)
    steps = int(40 * PROBE_S / 0.02)
    for _ in range(steps):
        now += 0.02
        lowered += limit.value < 20
        limit.record(now - service_s * max(limit.value / SLOTS, 1), limit.value, True)
    assert lowered > 0
    assert lowered < 0.05 * steps


@given(
    initial=st.integers(1, 2000),
    bounds=st.tuples(st.integers(1, 100), st.integers(0, 1000)),
    steps=st.lists(
        st.tuples(
            st.floats(0, 20), st.floats(0, 30), st.integers(1, 3000), st.booleans(),
        ),
        max_size=60,
    ),
)  # fmt: skip
def test_whatever_happens_the_limit_stays_within_its_bounds(
    initial: int, bounds: tuple[int, int], steps: list[tuple[float, float, int, bool]]
) -> None:
    """No order of latencies, failures and pauses leads out of minimum and maximum."""
    minimum, maximum = bounds[0], sum(bounds)
    now = 0.0
    limit = Gradient(initial=initial, minimum=minimum, maximum=maximum, clock=lambda: now)
    for pause_s, latency_s, in_progress, ok in steps:
        now += pause_s
        for _ in range(MIN_SAMPLES):
            limit.record(max(now - latency_s, 0.0), in_progress, ok)
            assert minimum <= limit.value <= maximum
    assert repr(limit).startswith(f"<Gradient {limit.value} ")
