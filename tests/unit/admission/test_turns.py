"""greenline.admission.turns: pages that compute for long are started one after the other."""

import socket
from collections.abc import Callable, Iterator
from time import monotonic
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from greenline.admission.turns import LONG_S, MAX_PAGES, Turns, page_of
from tests.helpers.support import wait_until


def compute(seconds: float = LONG_S) -> None:
    until_s = monotonic() + seconds
    while monotonic() < until_s:
        pass


def request(path: str, method: str = "GET") -> Any:
    return SimpleNamespace(method=method, path=path)


@pytest.fixture
def turns() -> Turns:
    return Turns(lambda work, request: work(request))


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


def test_a_page_that_has_computed_for_long_waits(turns: Turns) -> None:
    turns.start(lambda _: None, request("/items/1"))
    assert not turns.must_wait(request("/items/2"))
    turns.start(lambda _: compute(), request("/items/1"))
    assert turns.must_wait(request("/items/2"))
    assert not turns.must_wait(request("/items/2", "HEAD"))


def test_a_page_that_is_quick_again_waits_no_more(turns: Turns) -> None:
    """The first request of a page may import modules."""
    turns.start(lambda _: compute(10 * LONG_S), request("/"))
    for _ in range(20):
        turns.start(lambda _: None, request("/"))
    assert not turns.must_wait(request("/"))


def test_the_application_may_change_what_it_was_called_with(turns: Turns) -> None:
    """A dispatcher of WSGI applications does, in the environ; the request is another object."""
    turns.start(lambda one: compute(), one := request("/mounted/page"))
    assert turns.must_wait(one)


def test_there_is_a_bound(turns: Turns) -> None:
    for number in range(MAX_PAGES + 5):
        name = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        turns.start(lambda _: compute(), request(f"/{name}"))
    assert len(turns.long) == MAX_PAGES


def test_what_arrives_meanwhile_is_served_after_one_of_them(
    turns: Turns, readable: Callable[[Callable[[], object]], Callable[[], object]]
) -> None:
    order: list[str] = []
    arrives = readable(lambda: order.append("another"))

    def begin(name: str) -> None:
        order.append(name)
        if name == "first":
            arrives()
        compute()

    for name in ("first", "second", "third"):
        turns.wait(lambda name=name: begin(name))
    wait_until(lambda: len(order) == 4, "all of them")
    assert order == ["first", "another", "second", "third"]


def test_they_have_half_of_the_time(
    turns: Turns, readable: Callable[[Callable[[], object]], Callable[[], object]]
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
        turns.wait(begin)
    arrives()
    wait_until(lambda: len(order) >= 40 and order.count("one") == 12, "all of them")
    last = len(order) - order[::-1].index("one")
    assert order[:last].count("another") <= 6


def test_one_that_fails_does_not_end_the_turns(
    turns: Turns, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = []
    turns.wait(lambda: 1 / 0)
    turns.wait(lambda: begun.append("next"))
    wait_until(lambda: begun == ["next"], "the next one")
    assert "ZeroDivisionError" in capsys.readouterr().err
