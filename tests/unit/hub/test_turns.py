"""greenline.hub.turns: pages that compute for long are started one after the other."""

import socket
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic, thread_time
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from greenline.hub import turns as module
from greenline.hub.turns import LONG_S, MAX_PAGES, Turn, Turns, page_of
from tests.helpers.clock import Clock
from tests.helpers.support import wait_until


class Ticking(Clock):
    """Passes by what the requests of a test compute, and by a little at each look."""

    def __call__(self) -> float:
        self.now += 1e-6  # no two looks at it are at the same time
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which the turns are measured."""
    made = Ticking()
    monkeypatch.setattr(module, "monotonic", made)
    return made


@pytest.fixture
def compute(clock: Clock) -> Callable[..., None]:
    def computing(seconds: float = LONG_S) -> None:
        clock.now += seconds

    return computing


def request(path: str, method: str = "GET") -> Any:
    return SimpleNamespace(method=method, path=path)


@pytest.fixture
def turns() -> Iterator[Turns]:
    """All who wait for their turn have it by the end of a test: it would keep the hub busy."""
    made = Turns()
    yield made
    wait_until(lambda: not made._round.active, "all to have had their turn")


@pytest.fixture
def readable() -> Iterator[Callable[[Callable[[], object]], Callable[[], object]]]:
    """Returns what makes a socket readable, whose event calls a function."""
    pairs = []

    def make(function: Callable[[], object]) -> Callable[[], object]:
        ours, theirs = pair = socket.socketpair()
        watcher = gevent.get_hub().loop.io(ours.fileno(), 1)
        pairs.append((*pair, watcher))
        watcher.start(lambda: (ours.recv(1), function()))
        return lambda: theirs.send(b"x")

    yield make
    for ours, theirs, watcher in pairs:
        watcher.stop()
        watcher.close()
        ours.close()
        theirs.close()


@pytest.mark.parametrize(
    ("one", "other", "is_one"),
    [
        ("/items/17", "/items/18", True),
        ("/items/17", "/items/17/report", False),
        ("/users/6f1c-a9/orders", "/users/b3/orders", True),
        ("/users", "/orders", False),
        ("/a/b/c/d/e", "/a/b/c/d/f", True),
        ("/", "/a", False),
        ("/" + 300 * "a" + "1", "/" + 300 * "a" + "2", True),
    ],
)
def test_a_page_is_what_has_one_shape(one: str, other: str, is_one: bool) -> None:
    assert (page_of("GET", one) == page_of("GET", other)) is is_one
    assert page_of("GET", one) != page_of("POST", one)


def learn(turns: Turns, path: str, computes_s: float) -> None:
    """By two requests: the second one is measured by the processor's time."""
    turns.note(request(path), computes_s, monotonic)
    turns.note(request(path), computes_s, thread_time)
    turns.must_wait(request("/another"))


def test_a_page_that_has_computed_for_long_takes_turns(turns: Turns) -> None:
    """The first one of a round goes on at once."""
    learn(turns, "/items/1", LONG_S / 2)
    assert not turns.must_wait(request("/items/2"))
    learn(turns, "/items/1", LONG_S)
    gevent.sleep(0.001)
    assert [turns.must_wait(request("/items/2")) for _ in range(3)] == [False, True, True]
    assert not turns.must_wait(request("/items/2", "HEAD"))
    gevent.sleep(0.001)
    assert not turns.must_wait(request("/items/2"))


def test_what_is_long_without_the_processor_is_not(turns: Turns) -> None:
    """Another process has it, or a page imports modules at its first request."""
    for _ in range(3):
        turns.note(request("/"), 10.0, monotonic)
        assert not turns.must_wait(request("/"))
        assert turns.clock(request("/")) is thread_time
        assert turns.clock(request("/other")) is monotonic
    turns.note(request("/"), LONG_S / 2, thread_time)
    assert turns.pages == {}
    assert turns.clock(request("/")) is monotonic


def test_long_pages_alone_take_no_turns(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for some time after a request of another page."""
    learn(turns, "/", LONG_S)
    turns.wait(request("/"), lambda: None)
    assert turns.must_wait(request("/"))
    monkeypatch.setattr(module, "ALONE_S", 0.0)
    assert not turns.must_wait(request("/"))


def test_one_of_some_requests_is_measured(turns: Turns) -> None:
    learn(turns, "/", LONG_S)
    clocks = [turns.clock(request("/")) for _ in range(8)]
    assert clocks.count(thread_time) == 2


def test_one_waits_behind_those_that_wait(turns: Turns) -> None:
    learn(turns, "/", LONG_S)
    turns.wait(request("/"), lambda: None)
    assert turns.must_wait(request("/"))


def test_a_page_that_is_quick_again_takes_no_turns(turns: Turns) -> None:
    learn(turns, "/", LONG_S)
    for _ in range(3):
        turns.note(request("/"), 0.0, thread_time)
    assert not turns.pages


def test_a_page_that_is_not_requested_is_forgotten(turns: Turns) -> None:
    learn(turns, "/one", LONG_S)
    learn(turns, "/other", LONG_S)
    turns.forget_unused()
    turns.note(request("/one"), LONG_S, thread_time)
    turns.forget_unused()
    assert list(turns.pages) == [page_of("GET", "/one")]
    turns.wait(request("/one"), lambda: None)
    turns.forget_unused()
    assert list(turns.pages) == [page_of("GET", "/one")]
    turns.forget_unused()
    assert turns.pages == {}


def test_there_is_a_bound(turns: Turns) -> None:
    for number in range(MAX_PAGES + 5):
        learn(turns, f"/{chr(number + 0x4E00)}", LONG_S)
    assert len(turns.pages) == MAX_PAGES


def test_one_that_was_not_measured_makes_room(turns: Turns) -> None:
    """A site may have thousands of pages that are asked for once."""
    for number in range(MAX_PAGES):
        turns.note(request(f"/{chr(number + 0x4E00)}"), LONG_S, monotonic)
    learn(turns, "/report", LONG_S)
    assert turns.pages[page_of("GET", "/report")] == LONG_S
    assert len(turns.pages) == MAX_PAGES


# What each of three computes before it waits for its turn, and then.
@pytest.mark.parametrize(
    ("before_s", "then_s"),
    [
        (0.0, 30 * LONG_S),  # longer than what others may have had before
        # Many that begin at once, and are interrupted: that was no time of others.
        (10 * LONG_S, LONG_S),
    ],
    ids=["before they begin", "after they were interrupted"],
)
def test_what_arrives_meanwhile_is_served_after_one_of_them(
    turns: Turns,
    readable: Callable[[Callable[[], object]], Callable[[], object]],
    compute: Callable[..., None],
    before_s: float,
    then_s: float,
) -> None:
    order: list[str] = []
    arrives = readable(lambda: order.append("another"))

    def begin(name: str) -> None:
        order.append(name)
        if name == "first":
            arrives()
        compute(then_s)

    for name in ("first", "second", "third"):
        compute(before_s)
        turns.wait(request("/"), partial(begin, name), before_s)
    wait_until(lambda: len(order) == 4, "all of them")
    assert order == ["first", "another", "second", "third"]


def test_the_shortest_are_first_until_others_have_waited(
    turns: Turns, compute: Callable[..., None]
) -> None:
    order: list[str] = []
    learn(turns, "/long", 20 * LONG_S)
    learn(turns, "/short", LONG_S)

    def wait(name: str) -> None:
        turns.wait(request(name), lambda: (order.append(name), compute()))

    for name in ("/long", "/long", "/long", "/short"):
        wait(name)
    wait_until(lambda: len(order) == 4, "all of them")
    assert order == ["/short", "/long", "/long", "/long"]

    def short() -> None:
        order.append("/short")
        compute()
        if "/long" not in order:
            turns.wait(request("/short"), short)

    del order[:]
    wait("/long")
    turns.wait(request("/short"), short)
    wait_until(lambda: "/long" in order, "the long one")


@pytest.mark.usefixtures("clock")
def test_one_that_has_computed_already_waits_for_its_rest(turns: Turns) -> None:
    """It goes on before others of its page begin, so that few are in progress."""
    order: list[str] = []
    learn(turns, "/long", 20 * LONG_S)
    for name, computed_s in (("new", 0.0), ("interrupted", 10 * LONG_S), ("overdue", 50 * LONG_S)):
        turns.wait(request("/long"), partial(order.append, name), computed_s)
    wait_until(lambda: len(order) == 3, "all of them")
    assert order == ["overdue", "interrupted", "new"]


@pytest.mark.usefixtures("clock")
def test_those_of_one_page_end_one_after_the_other(turns: Turns) -> None:
    """Each gives its place in the limit to another one soon."""
    order: list[str] = []
    learn(turns, "/long", 4 * module.REST_S)

    def go_on(name: str, times: int, last: Turn | None = None) -> None:
        if last is not None:
            order.append(name)
        if times < 4:
            computed_s = times * module.REST_S
            begin = lambda: go_on(name, times + 1, mine)  # noqa: E731
            mine = turns.wait(request("/long"), begin, computed_s, last)

    for name in ("first", "second"):
        go_on(name, 1)
    wait_until(lambda: len(order) == 6, "both")
    assert order == [*3 * ["first"], *3 * ["second"]]


def test_one_without_an_end_has_its_share(turns: Turns, compute: Callable[..., None]) -> None:
    """It waits again and again, for what it computes until it is interrupted."""
    order: list[str] = []
    learn(turns, "/long", 2 * module.REST_S)

    def go_on(last: Turn | None = None) -> None:
        if last is not None:
            order.append("endless")
            compute(module.REST_S)
        if order.count("/long") < 4:
            mine = turns.wait(None, lambda: go_on(mine), 1.0, last)

    for _ in range(4):
        turns.wait(request("/long"), lambda: (order.append("/long"), compute(2 * module.REST_S)))
    go_on()
    wait_until(lambda: order.count("/long") == 4, "those with an end")
    # Each of five has a fifth of the processor.
    assert order[:4] == ["endless", *3 * ["/long"]]


def test_one_is_started_in_a_round_if_it_soon_waits(
    turns: Turns,
    readable: Callable[[Callable[[], object]], Callable[[], object]],
    compute: Callable[..., None],
) -> None:
    """However long the others of the round have taken."""
    order: list[str] = []
    arrives = readable(lambda: (order.append("another"), compute(10 * LONG_S), arrives()))
    arrives()
    for _ in range(3):
        turns.wait(request("/"), lambda: order.append("one"))
    wait_until(lambda: order.count("one") == 3, "all of them")
    assert [(one, order[at + 1]) for at, one in enumerate(order[:-1])].count(("one", "one")) == 0


def test_they_have_half_of_the_time(
    turns: Turns,
    readable: Callable[[Callable[[], object]], Callable[[], object]],
    compute: Callable[..., None],
) -> None:
    """Others that arrive all the time do not keep them from being served."""
    order: list[str] = []

    def another() -> None:
        order.append("another")
        compute(4 * LONG_S)
        if len(order) < 40:
            arrives()

    arrives = readable(another)

    def begin() -> None:
        order.append("one")
        compute()

    for _ in range(12):
        turns.wait(request("/"), begin)
    arrives()
    wait_until(lambda: len(order) >= 40 and order.count("one") == 12, "all of them")
    last = len(order) - order[::-1].index("one")
    assert order[:last].count("another") <= 6


def test_one_that_fails_does_not_end_the_turns(
    turns: Turns, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = []
    turns.wait(request("/"), lambda: 1 / 0)
    turns.wait(request("/"), lambda: begun.append("next"))
    wait_until(lambda: begun == ["next"], "the next one")
    assert "ZeroDivisionError" in capsys.readouterr().err
