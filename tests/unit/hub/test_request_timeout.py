"""greenline.hub.request_timeout: what a wait fails with, and which waits do not fail."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.monkey import get_original

from greenline.hub import request_timeout
from greenline.hub.request_timeout import RequestTimeout, RequestTimeouts
from greenline.offload import threads

native_sleep = get_original("time", "sleep")

REQUEST = SimpleNamespace(method="GET", path="/")


@pytest.fixture
def within() -> Iterator[Callable[[Callable[[], object]], object]]:
    """Return a function that calls another one as a request that may take 50 ms."""
    timeouts = RequestTimeouts(0.05, logging.getLogger("test"))

    def respond(application: Any, environ: Any, response: Any, *_: object) -> None:
        environ["result"] = application(environ, None)

    def call(work: Callable[[], object]) -> object:
        environ: dict[str, Any] = {}
        response = SimpleNamespace(sent=0, headers_sent=False, status_code=None)
        limited = timeouts.limited(respond)
        limited(lambda *_: work(), environ, response, monotonic(), REQUEST)
        return environ["result"]

    timeouts.start()
    with gevent.Timeout(10):
        yield call
    timeouts.stop()


def error_of(wait: Callable[[], object]) -> Exception:
    try:
        wait()
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


@pytest.mark.parametrize(
    ("wait", "kind"),
    [
        pytest.param(lambda: gevent.sleep(60), TimeoutError, id="sleep"),
        pytest.param(lambda: queue.Queue[int]().get(timeout=60), queue.Empty, id="item of a queue"),
        pytest.param(lambda: put_two(queue.LifoQueue(1)), queue.Full, id="place in a queue"),
    ],
)
def test_a_wait_fails_with_what_its_callers_know(
    within: Callable[..., Any], wait: Callable[[], object], kind: type[Exception]
) -> None:
    """Each is a TimeoutError; a queue's is its own error as well."""
    error = within(lambda: error_of(wait))
    assert isinstance(error, TimeoutError)
    assert isinstance(error, kind)


def put_two(one: "queue.Queue[int]") -> None:
    for item in range(2):
        one.put(item)


def test_a_condition_has_its_lock_back_before_its_wait_fails(within: Callable[..., Any]) -> None:
    """Else the block around the wait would release the lock that another one holds."""
    lock = threading.Lock()
    condition = threading.Condition(lock)

    def wait() -> None:
        with condition:
            condition.wait()

    request = gevent.spawn(error_of, lambda: within(wait))
    gevent.sleep(0)  # it waits by then, and no timer has ended that
    assert condition._waiters  # type: ignore[attr-defined]
    with condition:
        condition.notify()
        gevent.sleep(0.05 + 5 * request_timeout.TIMEOUT_SWEEP_S)
        assert lock.locked()
        assert not request.ready()
    with pytest.raises(AssertionError, match="did not fail"):
        request.get()


def test_what_a_thread_computes_for_the_request_does_not_fail(within: Callable[..., Any]) -> None:
    """As nothing fails that computes; the wait after it does, each time that one is tried."""
    ended = []
    turns = threads.Turns(1, is_left=False, has_deadline=False)

    def work() -> None:
        turns.run(native_sleep, 0.3)
        ended.append(True)
        assert isinstance(error_of(lambda: gevent.sleep(60)), TimeoutError)
        ended.append(True)

    within(work)
    assert ended == [True, True]


def test_an_error_before_the_deadline_stays_what_it_is(within: Callable[..., Any]) -> None:
    """It is the application's."""
    with pytest.raises(ZeroDivisionError):
        within(lambda: 1 / 0)


def test_whatever_a_request_makes_of_the_timeout_it_ends_as_one(
    within: Callable[..., Any],
) -> None:
    """An error of a library, or another wait each time."""

    def wrap() -> None:
        try:
            gevent.sleep(60)
        except TimeoutError as error:
            raise ValueError("not reachable") from error

    def swallow() -> None:
        while True:
            with suppress(TimeoutError):
                gevent.sleep(60)

    for work in (wrap, swallow):
        with pytest.raises(RequestTimeout):
            within(work)


def test_a_clean_up_is_not_interrupted(within: Callable[..., Any]) -> None:
    """It may wait as long as the request itself, at least for seconds."""

    def clean_up() -> str:
        try:
            gevent.sleep(60)
        except TimeoutError:
            gevent.sleep(1)
        return "cleaned up"

    assert within(clean_up) == "cleaned up"


def test_a_release_at_the_deadline_is_not_interrupted(
    within: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a pool has one connection fewer, for ever."""
    monkeypatch.setattr(request_timeout, "RELEASE_S", 5.0)
    lock = threading.Lock()

    def hold() -> None:
        with lock:
            gevent.sleep(0.5)

    def release() -> str:
        gevent.spawn(hold)
        try:
            gevent.sleep(0)
        finally:
            with lock:
                released.append(True)
        return "released"

    released: list[bool] = []
    assert within(release) == "released"
    assert released


def test_a_release_without_an_end_is_interrupted(within: Callable[..., Any]) -> None:
    """As that of a thread pool, which waits for all of its work."""
    begun_s = monotonic()

    def release() -> None:
        try:
            gevent.sleep(0)
        finally:
            gevent.sleep(60)

    with pytest.raises(RequestTimeout):
        within(release)
    assert monotonic() - begun_s >= 0.05 + request_timeout.RELEASE_S


def test_what_an_except_block_tries_instead_ends_too(
    within: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks like a clean-up, and takes longer than one may."""
    monkeypatch.setattr(request_timeout, "MIN_CLEAN_UP_S", 0.3)
    begun_s = monotonic()

    def try_both() -> None:
        try:
            gevent.sleep(60)
        except TimeoutError:
            gevent.sleep(60)

    with pytest.raises(RequestTimeout):
        within(try_both)
    assert monotonic() - begun_s >= 0.35
