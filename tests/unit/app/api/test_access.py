"""app.api.access: what is remembered, for how long, and who asks. Tokens and limits beside it."""

import re
from collections.abc import Callable

import gevent
import pytest
from flask import Response
from gevent.event import Event
from limits.storage import MemoryStorage

from app.api import access
from app.api.access import KEY_TTL_S, Access, Known
from app.api.operations import Scope
from app.api.rate_limit import HEADERS_KEY, RateLimit
from app.errors import InvalidToken, TooManyRequests, Unauthorized
from app.store import tokens
from app.store.keys import Grant
from greenline.errors import ConfigError, DeadlineExceeded, GreenlineError, StoreDown
from greenline.flask import Flask
from greenline.hub import deadline

GRANT = Grant(7, frozenset(["read"]))
TOKEN = tokens.make().text
HEADER = f"Bearer {TOKEN}"
BURST = 50


class Store:
    """Gives the answer that is set, counts the questions, and keeps them waiting while *closed*."""

    def __init__(self, answer: Grant | GreenlineError | None = GRANT) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.open = Event()
        self.open.set()
        self.now = 100.0
        self.took_s = 0.0

    def find(self, token: str) -> Grant | None:
        self.asked.append(token)
        self.open.wait()
        self.now += self.took_s
        if isinstance(self.answer, GreenlineError):
            raise self.answer
        return self.answer

    def clock(self) -> float:
        return self.now


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def known(store: Store) -> Known:
    return Known(store.find, store.clock)


def outcome(work: Callable[[], object]) -> object:
    """Return what *work* returns, or the kind of error that it raises."""
    try:
        return work()
    except GreenlineError as error:
        return type(error)


def burst(known: Known, count: int = BURST) -> "list[gevent.Greenlet[[], object]]":
    """Let so many greenlets ask for the same key, and each of them come as far as it can."""
    greenlets = [gevent.spawn(outcome, lambda: known.grant(HEADER)) for _ in range(count)]
    for _ in range(3):
        gevent.sleep(0)
    return greenlets


def outcomes(greenlets: "list[gevent.Greenlet[[], object]]") -> set[object]:
    gevent.joinall(greenlets, timeout=40, raise_error=True)
    return {greenlet.value for greenlet in greenlets}


def test_an_answer_is_remembered_for_a_second_from_its_question(known: Known, store: Store) -> None:
    """A slow answer is old when it comes: the second counts from before it was asked."""
    store.took_s = 0.6
    assert known.grant(HEADER) == GRANT
    store.now += KEY_TTL_S - 0.61
    assert known.grant(HEADER) == GRANT
    assert len(store.asked) == 1
    store.now += 0.02
    store.answer = None
    with pytest.raises(InvalidToken):
        known.grant(HEADER)
    assert len(store.asked) == 2


def test_that_there_is_no_such_key_is_remembered(known: Known, store: Store) -> None:
    """A wrong key costs a question a second, however often it is tried."""
    store.answer = None
    for _ in range(5):
        with pytest.raises(InvalidToken):
            known.grant(HEADER)
    assert store.asked == [TOKEN]
    store.now += KEY_TTL_S
    store.answer = GRANT
    assert known.grant(HEADER) == GRANT


@pytest.mark.parametrize(
    "token",
    ["x", "gl_", TOKEN[:-1], TOKEN + "a", TOKEN.replace("gl_", "GL_"), f"{TOKEN} x", "ÿ" * 59],
)
def test_what_is_no_key_costs_nothing(token: str, known: Known, store: Store) -> None:
    """Neither a question nor a place among what is remembered."""
    with pytest.raises(InvalidToken):
        known.grant(f"Bearer {token}")
    assert (store.asked, len(known._cache)) == ([], 0)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN])
def test_without_a_bearer_token_it_is_said_that_one_is_needed(
    header: str | None, known: Known
) -> None:
    """This is another error than a token that is wrong."""
    with pytest.raises(Unauthorized):
        known.grant(header)


@pytest.mark.parametrize("header", [f"bearer {TOKEN}", f"BEARER   {TOKEN}", f"Bearer  {TOKEN}"])
def test_the_scheme_is_the_same_in_any_case(header: str, known: Known, store: Store) -> None:
    """RFC 9110: and one key has one place, however it is sent."""
    assert known.grant(header) == known.grant(HEADER) == GRANT
    assert len(store.asked) == len(known._cache) == 1


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """A client that tries a million keys does not fill the worker's memory."""
    monkeypatch.setattr(access, "REMEMBERED_BYTES", 10_000)
    known = Known(store.find, store.clock)
    for _ in range(100):
        known.grant(f"Bearer {tokens.make().text}")
    assert 3 < len(known._cache) < 30
    known.grant(f"Bearer {store.asked[-1]}")
    assert len(store.asked) == 100
    known.grant(f"Bearer {store.asked[0]}")
    assert len(store.asked) == 101


def test_no_token_is_remembered(known: Known) -> None:
    """What is kept are hashes: a dump of the memory is no bunch of keys."""
    known.grant(HEADER)
    ((key, entry),) = known._cache._entries.items()
    assert key == tokens.digest(TOKEN).hex()
    assert TOKEN not in repr(entry)


@pytest.mark.parametrize(("answer", "expected"), [(GRANT, GRANT), (None, InvalidToken)])
def test_a_burst_of_the_same_key_is_one_question(
    answer: Grant | None, expected: object, known: Known, store: Store
) -> None:
    """Who comes while it is asked waits for that answer, be it a grant or none."""
    store.answer = answer
    store.open.clear()
    greenlets = burst(known)
    assert len(store.asked) == 1
    store.open.set()
    assert outcomes(greenlets) == {expected}
    assert len(store.asked) == 1


def test_a_question_that_is_older_than_a_second_is_not_waited_for(
    known: Known, store: Store
) -> None:
    """Its answer may be older than the key's end: who comes later asks again."""
    store.open.clear()
    first = burst(known, 1)
    store.now += KEY_TTL_S
    second = burst(known, 1)
    assert len(store.asked) == 2
    store.open.set()
    assert outcomes(first + second) == {GRANT}


def test_a_store_that_is_down_fails_who_waits_and_is_not_remembered(
    known: Known, store: Store
) -> None:
    """All of the burst get the answer at once, and the next one asks again."""
    store.answer = StoreDown("it is away")
    store.open.clear()
    greenlets = burst(known)
    store.open.set()
    assert outcomes(greenlets) == {StoreDown}
    assert (len(store.asked), len(known._cache)) == (1, 0)
    store.answer = GRANT
    assert known.grant(HEADER) == GRANT


def test_what_is_remembered_works_its_second_out_while_the_store_is_down(
    known: Known, store: Store
) -> None:
    """An outage begins a second later for those whose key was just asked for."""
    known.grant(HEADER)
    store.answer = StoreDown()
    store.now += KEY_TTL_S - 0.01
    assert known.grant(HEADER) == GRANT
    store.now += 0.01
    with pytest.raises(StoreDown):
        known.grant(HEADER)


def test_who_waits_does_not_fail_by_the_deadline_of_who_asked(known: Known, store: Store) -> None:
    """When the first is out of time the next one asks, and the others wait for that."""

    def hurried() -> object:
        with deadline.limit(0.05):
            return known.grant(HEADER)

    store.open.clear()
    first = gevent.spawn(outcome, hurried)
    gevent.sleep(0)
    others = burst(known, 5)
    assert outcomes([first]) == {DeadlineExceeded}
    gevent.sleep(0)
    assert len(store.asked) == 2
    store.open.set()
    assert outcomes(others) == {GRANT}
    assert len(store.asked) == 2


def test_who_waits_has_a_deadline_too(known: Known, store: Store) -> None:
    """A store that is deaf keeps no request longer than the request may take."""
    store.open.clear()
    first = burst(known, 1)
    with deadline.limit(0.05), pytest.raises(DeadlineExceeded):  # by itself: it is not interrupted
        known.grant(HEADER)
    assert len(store.asked) == 1
    store.open.set()
    assert outcomes(first) == {GRANT}


def test_a_token_has_a_prefix_and_a_secret_and_is_like_no_other() -> None:
    """gl_, 12 characters to find it by, 43 to prove it."""
    made = [tokens.make() for _ in range(200)]
    for token in made:
        assert re.fullmatch(r"gl_[A-Za-z0-9]{12}_[A-Za-z0-9_-]{43}", token.text)
        assert tokens.prefix_of(token.text) == token.prefix
        assert tokens.digest(token.text) == token.digest
    assert len({token.prefix for token in made}) == len({token.text[-43:] for token in made}) == 200


def test_a_limit_counts_each_client_and_says_what_is_left() -> None:
    """The fourth of three is refused, with the time when the next may come."""
    limit = RateLimit("3/minute", MemoryStorage())
    for left in (2, 1, 0):
        environ: dict[str, object] = {}
        limit.take("me", environ)
        assert environ[HEADERS_KEY] == (
            ("RateLimit-Policy", '"3 per 1 minute";q=3;w=60'),
            ("RateLimit", f'"3 per 1 minute";r={left};t=60'),
        )
    with pytest.raises(TooManyRequests, match="more than 3 per 1 minute") as caught:
        limit.take("me", {})
    assert 58 <= caught.value.retry_after_s <= 60
    limit.take("you", {})


def test_who_tries_keys_is_counted_by_address(store: Store) -> None:
    """After so many that are none the answer is to wait; who has a key there goes on."""
    guard = Access(store.find, RateLimit("2/minute", MemoryStorage()).take).guard
    store.answer = None

    def tried(header: str) -> object:
        environ = {"HTTP_AUTHORIZATION": header, "REMOTE_ADDR": "192.0.2.1"}
        with Flask(__name__).test_request_context(environ_base=environ):
            return outcome(guard(Scope.READ, lambda: Response()))

    found = [tried(f"Bearer {tokens.make().text}") for _ in range(3)]
    assert found == [InvalidToken, InvalidToken, TooManyRequests]
    store.answer = GRANT
    assert isinstance(tried(HEADER), Response)


def test_of_several_limits_the_one_that_is_used_up_is_reported() -> None:
    """``10/second;2/hour`` is over after two, for an hour."""
    limit = RateLimit("10/second;2/hour", MemoryStorage())
    for _ in range(2):
        limit.take("me", {})
    with pytest.raises(TooManyRequests, match="more than 2 per 1 hour") as caught:
        limit.take("me", {})
    assert caught.value.retry_after_s > 3_000


@pytest.mark.parametrize("text", ["many", "10", "10/aeon", "-1/minute", "10/minute;x", "0/day"])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    """The text is shown, and how it should look."""
    with pytest.raises(ConfigError, match="is no limit like 100/minute"):
        RateLimit(text, MemoryStorage())
