"""greenline.admission.adaptive as arithmetic: invariants, and a simulated worker."""

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenline.admission.adaptive import FEW, INITIAL, Adaptive, Fixed
from greenline.admission.load import Load
from greenline.admission.slots import HOLD_S

OBSERVE_S = 0.02
Wait = Callable[[random.Random], float]


def always(seconds: float) -> Wait:
    return lambda dice: seconds


def about(seconds: float) -> Wait:
    """Vary as the work of independent requests does."""
    return lambda dice: dice.expovariate(1 / seconds)


class Worker:
    """
    A worker with one CPU, and clients that each ask again when they are answered.

    A request takes *cpu_s* of the CPU, then one of *slots*, then *wait* in it. Who waits for a slot
    waits for a lock where *is_lock*, else for the network: a database with so many cores.
    """

    def __init__(
        self, wait: Wait, *, cpu_s: float = 0.0005, slots: int = 10**9, is_lock: bool = True,
        **options: Any,
    ) -> None:  # fmt: skip
        self.now = 0.0
        self.limit = Adaptive(clock=lambda: self.now, **options)
        self.wait = wait
        self.ok = lambda: True
        self.answers: list[tuple[float, float]] = []  # when, and after how long
        self.highest = 0
        self._cpu_s, self._slots, self._is_lock = cpu_s, slots, is_lock
        self._in_progress = self._used = self._order = 0
        self._cpu_until = self._cpu_used = 0.0
        self._came: deque[tuple[float, bool]] = deque()
        self._for_slot: deque[tuple[float, bool, float]] = deque()
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._dice = random.Random(1)
        self._at(OBSERVE_S, self._observe)

    def run(self, for_s: float, clients: int = 0, *, once: bool = False) -> None:
        """Add *clients*, who ask again when they are answered unless *once*, and go on."""
        for _ in range(clients):
            self._at(self.now, self._arrive, not once)
        until = self.now + for_s
        self.answers.clear()
        self.highest = 0
        while self._events and self._events[0][0] < until:
            self.now, _, call, args = heapq.heappop(self._events)
            call(*args)
            self.highest = max(self.highest, self.limit.value)
        self.now = until

    def rate(self, last_s: float) -> float:
        """Return the answers a second of the last *last_s* seconds."""
        return sum(when > self.now - last_s for when, _ in self.answers) / last_s

    def _at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        self._order += 1
        heapq.heappush(self._events, (when, self._order, call, args))

    def _arrive(self, again: bool) -> None:
        self._came.append((self.now, again))
        self._admit()

    def _admit(self) -> None:
        while self._came and self._in_progress < self.limit.value:
            came_s, again = self._came.popleft()
            self._in_progress += 1
            self._cpu_until = max(self._cpu_until, self.now) + self._cpu_s
            self._cpu_used += self._cpu_s
            self._at(self._cpu_until, self._ask_slot, came_s, again, self.now)

    def _ask_slot(self, *request: Any) -> None:
        if self._used < self._slots:
            self._use_slot(*request)
        else:
            self._for_slot.append(request)  # type: ignore[arg-type]

    def _use_slot(self, *request: Any) -> None:
        self._used += 1
        self._at(self.now + self.wait(self._dice), self._end, *request)

    def _end(self, came_s: float, again: bool, admitted_s: float) -> None:
        self._used -= 1
        if self._for_slot:
            self._use_slot(*self._for_slot.popleft())
        self._in_progress -= 1
        self.limit.record(self.now - admitted_s, self.ok())
        self.answers.append((self.now, self.now - came_s))
        self._admit()
        if again:
            self._at(self.now + 0.0005, self._arrive, True)

    def _observe(self) -> None:
        idle = 1 - min(1.0, self._cpu_used / OBSERVE_S)
        self._cpu_used = max(0.0, self._cpu_used - OBSERVE_S)
        if self._came or self._in_progress > INITIAL:
            blocked = len(self._for_slot) if self._is_lock else 0
            self.limit.observe(Load(self._in_progress, len(self._came), blocked, idle=idle))
        self._admit()
        self._at(self.now + OBSERVE_S, self._observe)


def test_a_number_stays_what_it_is() -> None:
    """A fixed limit learns nothing."""
    limit = Fixed(7)
    for _ in range(100):
        limit.record(1.0, False)
        limit.observe(Load(7, 7, 7, 7, 7, 7, 1.0))
    assert limit.value == 7


def test_a_hundred_that_sleep_are_all_in_progress_at_once() -> None:
    """On a fresh worker the first hundred, each a second, take little more than a second."""
    worker = Worker(always(1.0))
    worker.run(3.0, 100, once=True)
    assert len(worker.answers) == 100
    assert max(took_s for _, took_s in worker.answers) < 1.5


def test_three_hundred_that_sleep_after_quick_ones_wait_for_less_than_a_second() -> None:
    """The limit of a worker that has served quick requests for ten seconds grows at once."""
    worker = Worker(about(0.002))
    worker.run(10.0, 50)
    worker.wait = always(1.0)
    worker.run(0.1)
    worker.run(5.0, 300, once=True)
    slow = [took_s for _, took_s in worker.answers if took_s >= 1.0]
    assert len(slow) >= 300
    assert sorted(slow)[300 - 1] < 2.0


def test_clients_that_wait_for_the_network_get_what_all_at_once_would_give() -> None:
    """Two hundred, a fifth of a second each: five times what 32 threads give, and soon."""
    worker = Worker(always(0.2))
    worker.run(2.0, 200)
    worker.run(3.0)
    assert worker.rate(3.0) >= 5 * 32 / 0.2


def test_a_busy_cpu_needs_no_more_than_the_limit_to_begin_with() -> None:
    """Two hundred clients of a worker that computes: the limit stays."""
    worker = Worker(about(0.0002), cpu_s=0.005)
    worker.run(30.0, 200)
    assert worker.highest == INITIAL
    assert worker.rate(20.0) == pytest.approx(200, rel=0.05)


def test_a_hub_that_is_never_idle_needs_eight_in_progress() -> None:
    """They serve as much as sixteen; when they wait again there are sixteen at once."""
    worker = Worker(about(0.02), cpu_s=0.005)
    worker.run(10.0, 200)
    assert worker.limit.value == FEW
    assert worker.rate(5.0) == pytest.approx(200, rel=0.05)
    worker.wait = always(0.1)
    worker.run(1.0)
    assert worker.limit.value >= INITIAL


@pytest.mark.parametrize(("interrupted", "found"), [(3, FEW + 3), (FEW, 2 * FEW), (40, INITIAL)])
def test_what_was_interrupted_is_not_among_the_eight(interrupted: int, found: int) -> None:
    """Eight that compute for seconds leave places for small pages, as the threads of gthread do."""
    now = 0.0
    limit = Adaptive(clock=lambda: now)

    def observe(interrupted: int) -> None:
        nonlocal now
        for _ in range(1000):
            now += OBSERVE_S
            limit.observe(Load(limit.value, 5, interrupted=interrupted))

    observe(0)
    assert limit.value == FEW
    observe(interrupted)
    assert limit.value == found
    observe(0)
    assert limit.value == FEW


def test_a_limit_that_a_busy_cpu_does_not_need_goes_back() -> None:
    """After sleeping requests come computing ones: within half a minute the limit is small."""
    worker = Worker(always(0.5))
    worker.run(3.0, 300)
    assert worker.highest > 200
    worker.wait, worker._cpu_s = always(0.0), 0.005
    worker.run(30.0)
    assert worker.limit.value <= 1.5 * INITIAL


@pytest.mark.parametrize("slots", [4, 15, 20])
def test_what_waits_for_a_pool_does_not_raise_the_limit(slots: int) -> None:
    """The pool is used whole, and few requests in progress wait for it."""
    worker = Worker(about(0.05), slots=slots)
    worker.run(30.0, 200)
    assert worker.rate(20.0) >= 0.9 * slots / 0.05
    assert worker.limit.value <= max(2 * slots + 1, INITIAL)


@pytest.mark.parametrize("slots", [20, 24])
@pytest.mark.parametrize("wait_ms", [37, 50, 61])
def test_a_pool_is_used_whole_by_requests_of_equal_length(wait_ms: int, slots: int) -> None:
    """They end in batches, and a part of a batch more or less does not decide about a limit."""
    worker = Worker(always(wait_ms / 1000), slots=slots)
    worker.run(20.0, 200)
    assert worker.rate(20.0) >= 0.9 * slots * 1000 / wait_ms


def test_what_a_database_with_two_cores_cannot_serve_does_not_raise_the_limit() -> None:
    """More in progress bring no more answers: each probe is taken back."""
    worker = Worker(about(0.004), cpu_s=0.001, slots=2, is_lock=False)
    worker.run(60.0, 200)
    assert worker.rate(50.0) >= 0.9 * 2 / 0.004
    assert worker.limit.value <= 2 * INITIAL


def test_a_limit_that_was_raised_in_vain_comes_down() -> None:
    """Two minutes later it is not far from what is needed."""
    worker = Worker(about(0.02), cpu_s=0.001, slots=2, is_lock=False)
    worker.limit.begin_at(300)
    worker.run(120.0, 200)
    assert worker.limit.value <= 4 * INITIAL


def test_what_a_server_refuses_is_none_too_many() -> None:
    """Three of twenty wait for a connection that is refused: seventeen, and no more for a while."""
    now = 0.0
    limit = Adaptive(clock=lambda: now)
    limit.begin_at(100)
    for _ in range(round(1 / OBSERVE_S)):
        now += OBSERVE_S
        limit.observe(Load(20, 5, 3, 3, idle=0.9))
    assert INITIAL <= limit.value <= 17


def test_a_spare_handler_may_hold_the_slot_that_another_one_asks_for() -> None:
    """Ten are refused while thirty handlers are idle: together there are ninety slots."""
    now = 0.0
    limit = Adaptive(clock=lambda: now)
    limit.begin_at(100)
    for _ in range(round(0.5 / OBSERVE_S)):
        now += OBSERVE_S
        limit.observe(Load(70, 5, 10, 10, spare=30, idle=0.5))
    assert limit.value == 90


def test_a_probe_that_was_not_finished_is_taken_back() -> None:
    """The last clients of a burst leave while a lower limit is tried: the next burst has it all."""
    worker = Worker(always(0.2))
    worker.run(2.0, 200)
    learnt = worker.limit.value
    worker.limit._try(INITIAL, worker.limit._measured(worker.now), worker.now)
    worker.now += 2.0
    worker.limit.observe(Load(1, 1, idle=0.9))
    assert worker.limit.value == learnt


def test_a_lower_limit_is_not_that_of_the_end_of_a_batch() -> None:
    """Two hundred end together, and twenty are in progress then: at least 150 are tried."""
    now, look = 0.0, 0
    limit = Adaptive(clock=lambda: now)
    limit.begin_at(256)
    while limit.value > 200:
        look += 1
        now += OBSERVE_S
        for _ in range(200 if look % 10 == 0 else 0):
            limit.record(0.2, True)
        limit.observe(Load(200 if look % 10 == 3 else 20, 0, idle=0.5))
    assert limit.value == 150


def test_errors_that_come_with_a_higher_limit_take_it_back() -> None:
    """Above thirty in progress half of the answers are errors: the limit does not stay there."""
    worker = Worker(about(0.05))
    dice = random.Random(2)
    worker.ok = lambda: worker._in_progress <= 30 or dice.random() < 0.5
    above = 0
    worker.run(10.0, 200)
    for _ in range(500):
        worker.run(0.1)
        above += worker.limit.value > 36
    assert above < 100


def test_after_a_lock_that_all_wanted_the_limit_is_back_soon() -> None:
    """One at a time, then all sleep: four seconds later as many as without the lock."""
    worker = Worker(always(0.005), slots=1)
    worker.run(5.0, 200)
    assert worker.limit.value == INITIAL
    worker.wait, worker._slots = always(0.2), 10**9
    worker.run(4.0)
    worker.run(2.0)
    assert worker.rate(2.0) >= 5 * 32 / 0.2


def test_a_standstill_in_which_all_wait_for_each_other_raises_the_limit() -> None:
    """Sixteen wait for something that the next request brings, as in a chat: it is admitted."""
    now = 0.0
    limit = Adaptive(clock=lambda: now)
    while limit.value <= INITIAL and now < 5:
        now += OBSERVE_S
        limit.observe(Load(INITIAL, 10, INITIAL, idle=1.0))
    assert limit.value == 2 * INITIAL
    assert 1.0 <= now < 2.0


def test_a_limit_that_ended_a_standstill_is_kept_longer_each_time() -> None:
    """Long polls hold all places of the first limit, and the others are short requests."""
    now, polls = 0.0, INITIAL + 8
    limit = Adaptive(clock=lambda: now)
    kept_s, since_s = [], None
    while now < 30:
        now += OBSERVE_S
        is_served = limit.value > polls
        if is_served:
            limit.record(0.001, True)
            since_s = since_s or now
        elif since_s is not None:
            kept_s.append(round(now - since_s))
            since_s = None
        limit.observe(Load(max(polls, limit.value), 10, polls, idle=0.9))
    assert kept_s == [HOLD_S, 2 * HOLD_S]


def test_a_limit_that_ended_a_standstill_does_not_lower_the_first_limit() -> None:
    """A busy CPU had reduced the limit below a pool's size before."""
    now = 0.0
    limit = Adaptive(clock=lambda: now, pool_size=lambda: 40)

    def observe(for_s: float, blocked: int, idle: float) -> None:
        nonlocal now
        until_s = now + for_s
        while now < until_s:
            now += OBSERVE_S
            limit.observe(Load(limit.value, 10, blocked, idle=idle))

    while limit.value > FEW:
        observe(OBSERVE_S, 0, idle=0.0)
    while limit.value == FEW:
        observe(OBSERVE_S, FEW, idle=1.0)
    limit.record(0.001, True)
    observe(1.0, 0, idle=0.5)
    assert limit.value == 40
    observe(0.5, 40, idle=0.5)
    assert limit.value == 40


def test_what_another_worker_has_learnt_is_where_it_begins() -> None:
    """A limit of 200 is there for the first request, and a pool's size is as well."""
    limit = Adaptive()
    limit.begin_at(200)
    assert limit.value == 200
    limit = Adaptive(pool_size=lambda: 40)
    limit.observe(Load(16, 1, idle=0.5))
    assert limit.value == 40


@pytest.mark.parametrize(("is_own", "busy"), [(True, 40), (False, INITIAL)])
def test_a_busy_cpu_reduces_a_first_limit_that_is_not_the_applications_own(
    is_own: bool, busy: int
) -> None:
    """
    Code that connects by itself was written for fewer threads than there are connections.

    It takes a second: more in progress cost processor time.
    """
    now = 0.0
    limit = Adaptive(pool_size=lambda: 40 if is_own else 0, first=lambda: 40, clock=lambda: now)
    limit.observe(Load(16, 1, idle=0.05))
    assert limit.value == 40
    for until_s in (1.0, 30.0):
        while now < until_s:
            now += OBSERVE_S
            limit.record(0.1, True)
            limit.observe(Load(limit.value, 10, idle=0.05))
        assert limit.value == busy


def test_a_limit_that_failed_is_tried_again_less_and_less_often() -> None:
    """In two minutes, fewer probes than one each HOLD_S."""
    worker = Worker(about(0.004), cpu_s=0.001, slots=2, is_lock=False)
    probes, before = 0, INITIAL
    worker.run(0.1, 200)
    for _ in range(1200):
        worker.run(0.1)
        probes += worker.limit.value > before
        before = worker.limit.value
    assert 1 <= probes < 120 / HOLD_S


@given(
    initial=st.integers(1, 2000),
    bounds=st.tuples(st.integers(1, 100), st.integers(0, 1000)),
    steps=st.lists(
        st.tuples(
            st.floats(0, 3), st.floats(0, 30), st.booleans(), st.integers(0, 2000),
            st.integers(0, 2000), st.integers(0, 3), st.floats(0, 1),
        ),
        max_size=80,
    ),
)  # fmt: skip
def test_whatever_happens_the_limit_stays_within_its_bounds(
    initial: int,
    bounds: tuple[int, int],
    steps: list[tuple[float, float, bool, int, int, int, float]],
) -> None:
    """No order of observations leads out of minimum and maximum."""
    minimum, maximum = bounds[0], sum(bounds)
    now = 0.0
    limit = Adaptive(initial=initial, minimum=minimum, maximum=maximum, clock=lambda: now)
    for pause_s, took_s, ok, in_progress, blocked, waiting, idle in steps:
        now += pause_s
        for _ in range(30):
            limit.record(took_s, ok)
        load = Load(in_progress, waiting, min(blocked, in_progress), blocked % 7, blocked % 5, idle)
        limit.observe(load)
        assert minimum <= limit.value <= maximum
    assert repr(limit).startswith(f"<Adaptive {limit.value} ")
