"""greenline.admission.limiter: what is admitted, waits or is refused, and that nothing is lost."""

import gc
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from time import monotonic
from weakref import ref

import gevent
import pytest
from gevent.event import Event
from gevent.monkey import get_original
from hypothesis import given, settings
from hypothesis import strategies as st

from greenline.admission import limiter as limiter_module
from greenline.admission.adaptive import Fixed
from greenline.admission.limiter import ConcurrencyLimiter
from greenline.admission.queue import CHECK_S, QueuedRequest
from greenline.errors import ClientGone, Overloaded
from greenline.hub.request_timeout import RequestTimeout
from greenline.telemetry.request_counts import QUEUE_FULL, WAITED
from tests.helpers.support import wait_until

BOOKS = {"PATH_INFO": "/books"}
LONG_S = 60.0


class Client:
    """A client's connection: what the limiter gets, and the client's end of it."""

    def __init__(self) -> None:
        self.sock, self.end = socket.socketpair()

    def acquire(self, limiter: ConcurrencyLimiter) -> float | None:
        return limiter.acquire(BOOKS, self.sock)

    def close(self) -> None:
        self.sock.close()
        self.end.close()


@pytest.fixture
def clients() -> Iterator[list[Client]]:
    """Five clients."""
    five = [Client() for _ in range(5)]
    yield five
    for client in five:
        client.close()


def busy(limiter: ConcurrencyLimiter, client: Client, count: int = 1) -> list[float | None]:
    """Fill *count* places."""
    return [client.acquire(limiter) for _ in range(count)]


def waiting(limiter: ConcurrencyLimiter, *those: Client) -> "list[gevent.Greenlet]":
    """Return greenlets that wait for a place, in this order."""
    greenlets = []
    for client in those:
        before = limiter.stats()["waiting"]
        greenlets.append(gevent.spawn(client.acquire, limiter))
        gevent.sleep(0)  # it waits by then, and no timer has ended that
        assert limiter.stats()["waiting"] == before + 1
    return greenlets


def test_admits_up_to_the_limit_and_refuses_the_next_at_once(clients: list[Client]) -> None:
    """Two of two are admitted, the third is not, and is when one has left."""
    limiter = ConcurrencyLimiter(Fixed(2))
    places = busy(limiter, clients[0], 2)
    started = monotonic()
    with pytest.raises(Overloaded):
        clients[1].acquire(limiter)
    assert monotonic() - started < 1
    limiter.release(places[0])
    assert clients[1].acquire(limiter) is not None
    assert (
        repr(limiter)
        == "<ConcurrencyLimiter limit=2 in_progress=2 waiting=0 refused=1 disconnected=0>"
    )


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_checks_pass_a_full_limiter_and_do_not_count(
    clients: list[Client], path: str
) -> None:
    """However busy it is, the worker tells that it lives, a hundred times."""
    limiter = ConcurrencyLimiter(Fixed(0))
    for _ in range(100):
        limiter.release(limiter.acquire({"PATH_INFO": path}, clients[0].sock))
    assert limiter.stats()["in_progress"] == limiter.stats()["refused"] == 0


@pytest.mark.parametrize("path", ["/healthz/", "/healthz/more", "/api/healthz", "", "/"])
def test_what_only_looks_like_a_health_check_is_refused(clients: list[Client], path: str) -> None:
    """A path that has the name of a health check in it is no way around the limit."""
    with pytest.raises(Overloaded):
        ConcurrencyLimiter(Fixed(0)).acquire({"PATH_INFO": path}, clients[0].sock)


def test_other_paths_may_be_the_health_checks(clients: list[Client]) -> None:
    """An application that has its own uses its own."""
    limiter = ConcurrencyLimiter(Fixed(0), exempt=("/status",))
    assert limiter.acquire({"PATH_INFO": "/status"}, clients[0].sock) is None
    with pytest.raises(Overloaded):
        limiter.acquire({"PATH_INFO": "/healthz"}, clients[0].sock)


def test_waiting_requests_are_admitted_in_order_and_none_overtakes(clients: list[Client]) -> None:
    """A place that becomes free goes to who came first, not to who comes just then."""
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=3, max_wait_s=LONG_S)
    (place,) = busy(limiter, clients[0])
    first, second = waiting(limiter, clients[1], clients[2])
    limiter.release(place)
    third = gevent.spawn(clients[3].acquire, limiter)
    first.join(10)
    assert (first.ready(), second.ready(), third.ready()) == (True, False, False)
    limiter.release(first.value)
    second.join(10)
    assert (second.ready(), third.ready()) == (True, False)
    limiter.release(second.value)
    assert third.get(timeout=40) is not None


def test_no_request_waits_longer_than_allowed_or_in_too_long_a_queue(clients: list[Client]) -> None:
    """The one in the queue is refused in time; the one for whom it has no room at once."""
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=1, max_wait_s=1.0)
    busy(limiter, clients[0])
    started = monotonic()
    (waiter,) = waiting(limiter, clients[1])
    with pytest.raises(Overloaded) as at_once:
        clients[2].acquire(limiter)
    assert not waiter.ready()
    with pytest.raises(Overloaded) as later:
        waiter.get(timeout=40)
    assert (at_once.value.reason, later.value.reason) == (QUEUE_FULL, WAITED)
    assert 1.0 <= monotonic() - started < 2.5
    assert limiter.stats()["refused"] == 2
    assert limiter.stats()["waiting"] == 0


def test_a_waiter_that_misses_its_deadline_is_not_refused_for_an_overload(
    clients: list[Client],
) -> None:
    """Its place in the queue is free again."""
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=1, max_wait_s=None, timeout_s=0.2)
    busy(limiter, clients[0])
    (waiter,) = waiting(limiter, clients[1])
    with pytest.raises(RequestTimeout):
        waiter.get(timeout=10)
    assert limiter.stats()["refused"] == 0
    assert limiter.stats()["waiting"] == 0


def test_a_client_that_hangs_up_while_it_waits_is_let_go(clients: list[Client]) -> None:
    """It is noticed long before a place is free, and the queue has room again."""
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=1, max_wait_s=LONG_S)
    busy(limiter, clients[0])
    (waiter,) = waiting(limiter, clients[1])
    clients[1].end.close()
    with pytest.raises(ClientGone):
        waiter.get(timeout=40)
    assert limiter.stats() == {
        "limit": 1,
        "in_progress": 1,
        "waiting": 0,
        "refused": 0,
        "disconnected": 1,
    }


def test_those_that_hang_up_at_once_leave_the_others_in_the_queue(clients: list[Client]) -> None:
    """The one between them is admitted in its turn."""
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=3, max_wait_s=LONG_S)
    (place,) = busy(limiter, clients[0])
    first, second, third = waiting(limiter, *clients[1:4])
    for client in (clients[1], clients[3]):
        client.end.close()
    for waiter in (first, third):
        with pytest.raises(ClientGone):
            waiter.get(timeout=40)
    assert (limiter.stats()["waiting"], limiter.stats()["disconnected"]) == (1, 2)
    limiter.release(place)
    assert second.get(timeout=40) is not None


def test_a_client_that_hangs_up_after_sending_more_is_not_admitted(clients: list[Client]) -> None:
    """Its end hides behind a body that is not read yet; the place goes to the next."""
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=2, max_wait_s=LONG_S)
    (place,) = busy(limiter, clients[0])
    first, second = waiting(limiter, clients[1], clients[2])
    clients[1].end.send(b"x" * 1000)
    gevent.sleep(0.1)
    assert not first.ready()
    clients[1].end.close()
    with pytest.raises(ClientGone):
        first.get(timeout=40)
    limiter.release(place)
    assert second.get(timeout=40) is not None


def test_those_that_hung_up_while_the_hub_was_blocked_are_not_admitted(
    clients: list[Client],
) -> None:
    """The request that blocked it ends before the hub can look for them."""
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=2, max_wait_s=LONG_S)
    (place,) = busy(limiter, clients[0])
    first, second = waiting(limiter, clients[1], clients[2])
    clients[1].end.close()
    get_original("time", "sleep")(2 * CHECK_S)
    limiter.release(place)
    with pytest.raises(ClientGone):
        first.get(timeout=40)
    assert second.get(timeout=40) is not None


def turns_a_second() -> float:
    """Return how often the loop turns while this greenlet waits."""
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1

    check = gevent.get_hub().loop.check()
    check.start(count)
    begun_s = monotonic()
    gevent.sleep(0.3)
    took_s = monotonic() - begun_s  # longer on a busy machine
    check.stop()
    check.close()
    return turns / took_s


def test_a_client_that_sends_its_body_while_it_waits_costs_nothing(clients: list[Client]) -> None:
    """Bytes that are not read yet wake the hub once, not all the time."""
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=1, max_wait_s=LONG_S)
    busy(limiter, clients[0])
    (waiter,) = waiting(limiter, clients[1])
    # What other tests of this process have left turns the loop as well.
    before = turns_a_second()
    clients[1].end.send(b"x")
    assert turns_a_second() < before + 150
    waiter.kill()


def test_killed_in_the_moment_it_is_admitted_it_passes_its_place_on(clients: list[Client]) -> None:
    """The place handed to a greenlet that dies before it runs goes to the next."""
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=2, max_wait_s=LONG_S)
    (place,) = busy(limiter, clients[0])
    first, second = waiting(limiter, clients[1], clients[2])
    first.kill(block=False)
    limiter.release(place)
    assert second.get(timeout=40) is not None
    assert limiter.stats()["in_progress"] == 1
    limiter.release(second.value)
    assert limiter.stats()["in_progress"] == 0


def queued(limiter: ConcurrencyLimiter, client: Client, resumed: list[Client]) -> QueuedRequest:
    """Queue *client* without a greenlet; it is in *resumed* when its wait has ended."""
    found = limiter.enqueue(BOOKS.copy(), client.sock, lambda: resumed.append(client))
    assert found is not None
    return found


def test_one_without_a_greenlet_has_its_turn_between_the_others(clients: list[Client]) -> None:
    """It is resumed in the hub, not by the greenlet that leaves."""
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=3, max_wait_s=LONG_S)
    (place,) = busy(limiter, clients[0])
    resumed: list[Client] = []
    (first,) = waiting(limiter, clients[1])
    second = queued(limiter, clients[2], resumed)
    (third,) = waiting(limiter, clients[3])
    limiter.release(place)
    limiter.release(first.get(timeout=40))
    assert resumed == []
    wait_until(lambda: resumed, "the second")
    environ = BOOKS.copy()
    place = limiter.acquire(environ, clients[2].sock, second)
    assert not third.ready()
    assert environ["greenline.spent"]["queued"] > 0  # type: ignore[index]
    limiter.release(place)
    assert third.get(timeout=40) is not None


def test_one_without_a_greenlet_is_not_queued_where_it_would_be_refused(
    clients: list[Client],
) -> None:
    """Nor is a health check; nothing is counted, because acquire() follows."""
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=1, max_wait_s=LONG_S)
    busy(limiter, clients[0])
    assert limiter.enqueue({"PATH_INFO": "/healthz"}, clients[1].sock, lambda: None) is None
    queued(limiter, clients[1], [])
    assert limiter.enqueue(BOOKS.copy(), clients[2].sock, lambda: None) is None
    assert (limiter.stats()["waiting"], limiter.stats()["refused"]) == (1, 0)


def test_one_without_a_greenlet_waits_no_longer_than_allowed(clients: list[Client]) -> None:
    """It is resumed, and acquire() says why."""
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=1, max_wait_s=0.2)
    busy(limiter, clients[0])
    resumed: list[Client] = []
    late = queued(limiter, clients[1], resumed)
    wait_until(lambda: resumed, "the end of the wait")
    with pytest.raises(Overloaded) as caught:
        limiter.acquire(BOOKS.copy(), clients[1].sock, late)
    assert caught.value.reason == WAITED
    assert limiter.stats()["waiting"] == 0


def test_one_that_is_refused_is_freed_without_the_collector(clients: list[Client]) -> None:
    """In an overload there are many, each with its body and its environ."""

    class Environ(dict[str, object]):
        """One that can be referred to weakly."""

    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=1, max_wait_s=0.1)
    busy(limiter, clients[0])
    gc.disable()
    try:
        environ, ended = Environ(BOOKS), Event()
        freed = ref(environ)
        late = limiter.enqueue(environ, clients[1].sock, ended.set)
        assert ended.wait(10)
        with suppress(Overloaded):
            limiter.acquire(environ, clients[1].sock, late)
        assert environ["greenline.waits_for"] is None
        del environ, late
        assert freed() is None
    finally:
        gc.enable()


def in_turn(limiter: ConcurrencyLimiter, client: Client, resumed: list[Client]) -> QueuedRequest:
    """Queue *client* for its turn to compute."""
    found = limiter.enqueue(
        BOOKS.copy(), client.sock, lambda: resumed.append(client), takes_turn=True
    )
    assert found is not None
    return found


def test_one_that_waits_for_its_turn_needs_no_place_before(clients: list[Client]) -> None:
    """Others are admitted meanwhile, and the limit need not grow for it."""
    limit = Fixed(1)
    limiter = ConcurrencyLimiter(limit, max_waiting=2, max_wait_s=LONG_S)
    resumed: list[Client] = []
    first = in_turn(limiter, clients[0], resumed)
    (place,) = busy(limiter, clients[1])
    assert not limiter.is_late()
    limiter.release(place)
    assert (limiter.stats()["in_progress"], limiter.stats()["waiting"]) == (0, 1)
    assert limiter.admit(first)
    assert (limiter.stats()["in_progress"], limiter.stats()["waiting"]) == (1, 0)
    limiter.release(limiter.acquire(BOOKS.copy(), clients[0].sock, first))
    assert (limiter.stats()["in_progress"], resumed) == (0, [])


def test_one_whose_turn_has_come_waits_for_a_place_before_later_ones(
    clients: list[Client],
) -> None:
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=3, max_wait_s=LONG_S)
    resumed: list[Client] = []
    (place,) = busy(limiter, clients[0])
    first = in_turn(limiter, clients[1], resumed)
    queued(limiter, clients[2], resumed)
    assert not limiter.admit(first)
    limiter.release(place)
    wait_until(lambda: resumed, "one that is resumed")
    assert resumed == [clients[1]]
    assert not limiter.admit(first)
    limiter.release(limiter.acquire(BOOKS.copy(), clients[1].sock, first))
    wait_until(lambda: len(resumed) == 2, "the other one")


def test_a_small_page_overtakes_long_ones_once_before_each(clients: list[Client]) -> None:
    """Sixteen threads would start it at once; the long ones are not kept waiting by many."""
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=4, max_wait_s=LONG_S)
    admitted: list[str] = []
    requests = {}
    (place,) = busy(limiter, clients[0])
    names = ("long", "longer", "small", "smaller")
    for name, client in zip(names, clients[1:], strict=True):
        requests[name] = limiter.enqueue(
            BOOKS.copy(), client.sock, partial(admitted.append, name), is_long="long" in name
        )
    for name in ("small", "long", "smaller", "longer"):
        limiter.release(place)
        wait_until(lambda: admitted, "the next one")
        assert admitted == [name]
        place = limiter.acquire(BOOKS.copy(), clients[0].sock, requests[admitted.pop()])
    limiter.release(place)


def test_long_ones_alone_are_admitted_in_order(clients: list[Client]) -> None:
    """A small one that waits for its turn to compute is none that waits for a place."""
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=3, max_wait_s=LONG_S)
    resumed: list[Client] = []
    (place,) = busy(limiter, clients[0])
    found = [
        limiter.enqueue(
            BOOKS.copy(), client.sock, partial(resumed.append, client), takes_turn, not takes_turn
        )
        for client, takes_turn in zip(clients[1:4], (False, True, False), strict=True)
    ]
    limiter.release(place)
    wait_until(lambda: resumed, "the first one")
    limiter.release(limiter.acquire(BOOKS.copy(), clients[1].sock, found[0]))
    wait_until(lambda: len(resumed) == 2, "the other one")
    assert resumed == [clients[1], clients[3]]


def test_a_greenlet_may_wait_for_its_turn(clients: list[Client]) -> None:
    """And is refused, where too many wait; else it would overtake them."""
    limiter = ConcurrencyLimiter(Fixed(2), max_waiting=1, max_wait_s=LONG_S)
    turns: list[Callable[[], object]] = []
    first = gevent.spawn(limiter.acquire, BOOKS.copy(), clients[0].sock, in_turn=turns.append)
    wait_until(lambda: turns, "the wait")
    with pytest.raises(Overloaded):
        limiter.acquire(BOOKS.copy(), clients[1].sock, in_turn=turns.append)
    (place,) = busy(limiter, clients[2])
    assert not first.ready()
    turns[0]()
    limiter.release(first.get(timeout=40))
    limiter.release(place)
    assert (limiter.stats()["in_progress"], limiter.stats()["waiting"]) == (0, 0)


@pytest.mark.parametrize("ends", ["too late", "disconnected", "interrupted"])
def test_one_that_has_ended_has_no_turn(clients: list[Client], ends: str) -> None:
    limiter = ConcurrencyLimiter(
        Fixed(1), max_waiting=1, max_wait_s=0.1 if ends == "too late" else LONG_S
    )
    resumed: list[Client] = []
    waits = in_turn(limiter, clients[0], resumed)
    if ends == "disconnected":
        clients[0].close()
    elif ends == "interrupted":
        limiter.interrupt(waits)
    wait_until(lambda: resumed, "the end of the wait")
    assert not limiter.admit(waits)
    with pytest.raises((Overloaded, ClientGone, gevent.GreenletExit)):
        limiter.acquire(BOOKS.copy(), clients[0].sock, waits)
    assert not limiter.admit(waits)
    assert (limiter.stats()["in_progress"], limiter.stats()["waiting"]) == (0, 0)


@pytest.mark.parametrize("is_admitted", [False, True])
def test_one_without_a_greenlet_that_is_interrupted_leaves_its_place(
    clients: list[Client], is_admitted: bool
) -> None:
    """Before its turn, and in the moment between its turn and its begin."""
    limiter = ConcurrencyLimiter(Fixed(1), max_waiting=2, max_wait_s=LONG_S)
    (place,) = busy(limiter, clients[0])
    resumed: list[Client] = []
    cut = queued(limiter, clients[1], resumed)
    (other,) = waiting(limiter, clients[2])
    if is_admitted:
        limiter.release(place)
    limiter.interrupt(cut)
    wait_until(lambda: resumed, "the end of the wait")
    with pytest.raises(gevent.GreenletExit):
        limiter.acquire(BOOKS.copy(), clients[1].sock, cut)
    if not is_admitted:
        limiter.release(place)
    limiter.release(other.get(timeout=40))
    assert limiter.stats()["in_progress"] == limiter.stats()["waiting"] == 0


def test_one_that_leaves_gives_its_place_on(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a limit that adapts lets a stream leave, and only when another has waited for long."""
    monkeypatch.setattr(limiter_module, "LATE_S", 1.0)  # none is late at once on a busy machine

    class Busy(Fixed):
        is_adaptive = True

    limiter = ConcurrencyLimiter(Busy(4), max_waiting=None, max_wait_s=None)
    busy(limiter, clients[0], 4)
    assert not limiter.is_late()
    (next_one,) = waiting(limiter, clients[1])
    assert not limiter.is_late()
    wait_until(limiter.is_late, "it to have waited for long", 10)
    limiter.leave()
    next_one.join(10)
    assert limiter.stats()["in_progress"] == 4
    assert not limiter.is_late()

    fixed = ConcurrencyLimiter(Fixed(1), max_waiting=None, max_wait_s=None)
    busy(fixed, clients[0])
    (never,) = waiting(fixed, clients[2])
    gevent.sleep(limiter_module.LATE_S)
    assert not fixed.is_late()
    never.kill()


def test_a_limit_that_grows_admits_all_it_can(clients: list[Client]) -> None:
    """One leaves, three more may be in: three of the waiters are."""
    limit = Fixed(1)
    limiter = ConcurrencyLimiter(limit, max_waiting=4, max_wait_s=LONG_S)
    (place,) = busy(limiter, clients[0])
    waiters = waiting(limiter, *clients[1:])
    limit.value = 3
    limiter.release(place)
    gevent.joinall(waiters[:3], timeout=40)
    assert [waiter.ready() for waiter in waiters] == [True, True, True, False]
    gevent.killall(waiters)


def test_the_limit_learns_how_long_each_took_and_how_it_ended(clients: list[Client]) -> None:
    """What the arithmetic needs: seconds since the admission, and whether it was an error."""
    learnt: list[tuple[float, bool]] = []

    class Listening(Fixed):
        def record(self, took_s: float, ok: bool) -> None:
            learnt.append((took_s, ok))

    limiter = ConcurrencyLimiter(Listening(2), max_waiting=1, max_wait_s=LONG_S)
    admitted = busy(limiter, clients[0], 2)
    (waiter,) = waiting(limiter, clients[1])  # else the limit does not matter
    begun_s = monotonic()
    gevent.sleep(0.2)
    slept_s = monotonic() - begun_s  # longer on a busy machine
    limiter.release(admitted[0])
    limiter.release(admitted[1], ok=False)
    assert [ok for _, ok in learnt] == [True, False]
    assert all(slept_s <= took_s < slept_s + 1 for took_s, _ in learnt)
    waiter.join(10)


@settings(max_examples=100)
@given(
    limit=st.integers(1, 3),
    queue=st.integers(0, 4),
    work=st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=25),
    kills=st.lists(st.tuples(st.integers(0, 24), st.integers(0, 20)), max_size=12),
    closes=st.lists(st.tuples(st.integers(0, 24), st.integers(0, 20)), max_size=8),
)
def test_whichever_request_is_killed_or_disconnects_no_place_is_lost(
    limit: int,
    queue: int,
    work: list[tuple[int, bool]],
    kills: list[tuple[int, int]],
    closes: list[tuple[int, int]],
) -> None:
    """The limit holds at every step, and in the end all places are free, with a greenlet or not."""
    limiter = ConcurrencyLimiter(Fixed(limit), max_waiting=queue, max_wait_s=LONG_S)
    clients = [Client() for _ in work]
    highest = inside = 0

    places: dict[Client, QueuedRequest] = {}  # of those without a greenlet

    def serve(client: Client, turns: int, has_greenlet: bool) -> None:
        nonlocal highest, inside
        queued = None
        if not (has_greenlet or limiter.has_room()):
            resumed = Event()
            queued = limiter.enqueue(BOOKS.copy(), client.sock, resumed.set)
            if queued is not None:
                places[client] = queued
                resumed.wait()
                places.pop(client, None)
        try:
            place = limiter.acquire(BOOKS.copy(), client.sock, queued)
        except (Overloaded, ClientGone, gevent.GreenletExit):
            return
        inside += 1
        highest = max(highest, inside)
        try:
            for _ in range(turns):
                gevent.sleep(0)
        finally:
            inside -= 1
            limiter.release(place)

    def kill(victim: int) -> None:
        queued = list(places)
        client = queued[victim % len(queued)] if queued and victim % 2 else clients[victim]
        if client in places:
            limiter.interrupt(places.pop(client))
        else:
            greenlets[victim].kill(block=False)

    greenlets = [gevent.spawn(serve, one, *each) for one, each in zip(clients, work, strict=True)]
    for step in range(21):
        for victim, when in kills:
            if when == step and victim < len(work):
                kill(victim)
        for victim, when in closes:
            if when == step and victim < len(work):
                clients[victim].end.close()
        gevent.sleep(0)
    gevent.joinall(greenlets, timeout=40)
    stats = limiter.stats()
    for client in clients:
        client.close()
    assert all(greenlet.ready() for greenlet in greenlets)
    assert highest <= limit
    assert stats["in_progress"] == stats["waiting"] == 0
