"""Pages that block in C code run in native threads, and are what they are in a greenlet."""

import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from io import BytesIO
from pathlib import Path
from time import monotonic
from types import ModuleType, SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.monkey import get_original

from greenline.errors import PoolTimeout
from greenline.hub import request_timeout, unavailable
from greenline.hub.handlers import Handlers
from greenline.hub.request_timeout import RequestTimeout, RequestTimeouts
from greenline.offload import clients, threads
from greenline.offload import pages as module
from greenline.offload.clients import RequestEnded
from greenline.offload.pages import BLOCKED_S, MIN_BLOCKED, SMOOTHING, Blocking, Pages

LONG_S = 0.02
BODY = b"some\nlines\n"
native_sleep = get_original("time", "sleep")
native_ident = get_original("_thread", "get_ident")
native_event = get_original("threading", "Event")
native_lock = get_original("_thread", "allocate_lock")

local = threading.local()
variable: ContextVar[int] = ContextVar("variable", default=0)


class Response:
    """What the worker's response does, without a client."""

    headers_sent = False
    status_code: int | None = None
    sent = 0

    def __init__(self) -> None:
        self.written: list[tuple[int, bytes]] = []

    def start_response(self, status: str, _headers: Any, _error: Any = None) -> Any:
        self.status_code = int(status[:3])
        return self.write

    def write(self, data: bytes) -> None:
        gevent.sleep(0)  # a client may be slow
        self.written.append((native_ident(), data))


class Body:
    """A body for which the hub waits."""

    def __init__(self, data: bytes) -> None:
        self.data = BytesIO(data)
        self.readers: set[int] = set()

    def read(self, *size: int) -> bytes:
        gevent.sleep(0)
        self.readers.add(native_ident())
        return self.data.read(*size)

    def readline(self, *size: int) -> bytes:
        return self.data.readline(*size)

    def readlines(self, *size: int) -> list[bytes]:
        return self.data.readlines(*size)


class Request:
    """Of a page; requests of other pages have another *path*."""

    method = "GET"

    def __init__(self, path: str = "/long") -> None:
        self.path = path


def places_of(pages: Pages) -> Any:
    """Return what has a place for a request, None: it runs in its greenlet."""
    found = pages.find(Request(), {})
    return found and found.places


def call(application: Any, body: Any = None, response: Any = None, page: Any = None) -> Any:
    """Call *application* in a native thread for a request of a handler; return its result."""
    results = []
    environ = {"wsgi.input": body or BytesIO(BODY)}

    def work() -> None:
        results.append((page or Blocking()).run(application, environ, response or Response()))

    Handlers().run(work)
    return results[0]


def in_greenlet(function: Callable[[], Any]) -> Any:
    return gevent.spawn(function).get(timeout=10)


def test_a_page_that_has_blocked_for_long_runs_in_threads(pages: Pages) -> None:
    """Not at once: the first requests of a page may load something."""
    assert not pages.found
    for _ in range(MIN_BLOCKED - 1):
        pages.note(Request(), LONG_S, LONG_S)
        assert pages.found
        assert places_of(pages) is None
    pages.note(Request(), LONG_S, LONG_S)
    assert places_of(pages) is module._computing
    assert pages.find(Request("/other"), {}) is None


def test_each_request_counts_once(pages: Pages) -> None:
    one = Request()
    for _ in range(MIN_BLOCKED):
        pages.note(one, LONG_S, LONG_S)
    assert pages.find(one, {}) is None


def test_a_page_that_seldom_blocks_does_not(pages: Pages) -> None:
    """Of which the requests are counted that could have been noted."""
    for _ in range(MIN_BLOCKED):
        pages.note(Request(), LONG_S, LONG_S)
        for _ in range(round(2 * LONG_S / BLOCKED_S)):
            pages.find(Request(), {})
    assert places_of(pages) is None


@pytest.mark.parametrize(("blocked_s", "is_left"), [(BLOCKED_S, False), (200 * BLOCKED_S, True)])
def test_a_page_that_has_blocked_by_chance_is_forgotten(
    pages: Pages, blocked_s: float, is_left: bool
) -> None:
    """As long as there is one, each request of the worker looks for its page."""
    pages.note(Request(), blocked_s, 0.0)
    for _ in range(module.BY_CHANCE[0] - 1):  # the one that was noted is one
        assert pages.found
        pages.find(Request(), {})
    assert bool(pages.found) is is_left


@pytest.mark.parametrize(("known_s", "is_moved"), [(5 * LONG_S, True), (20 * LONG_S, False)])
@pytest.mark.usefixtures("pages")
def test_a_page_that_computes_in_python_for_longer_does_not(known_s: float, is_moved: bool) -> None:
    """It would contend for the interpreter's lock, and gain little."""
    pages = Pages(logging.getLogger("test"), lambda _: known_s)
    pages.is_counting = lambda: True
    for _ in range(MIN_BLOCKED):
        pages.find(Request(), {})
        pages.note(Request(), LONG_S, LONG_S)
    assert bool(places_of(pages)) is is_moved


def test_a_websocket_stays_in_its_greenlet(pages: Pages) -> None:
    """It would keep one of the threads while its client is there."""
    for _ in range(MIN_BLOCKED):
        pages.note(Request(), LONG_S, LONG_S)
    assert pages.find(Request(), {"HTTP_UPGRADE": "websocket"}) is None


def test_what_waits_in_c_code_has_more_threads(pages: Pages) -> None:
    for _ in range(MIN_BLOCKED):
        pages.note(Request(), LONG_S, 0.0)
    assert places_of(pages) is module._waiting


def test_beside_threads_that_compute_only_the_processors_time_counts(pages: Pages) -> None:
    """The rest may have been a wait for the interpreter's lock."""
    begun, end = native_event(), native_lock()
    end.acquire()

    def compute(*_: Any) -> None:
        begun.set()
        end.acquire()

    computing = gevent.spawn(call, compute)
    while not begun.is_set():
        gevent.sleep(0.001)
    for _ in range(MIN_BLOCKED):
        pages.note(Request(), LONG_S, 0.0)
    assert places_of(pages) is None
    end.release()
    computing.get(timeout=10)
    for _ in range(MIN_BLOCKED):
        pages.note(Request(), LONG_S, 0.0)
    assert places_of(pages) is module._waiting


@pytest.mark.parametrize("name", ["pysqlite3", "greenline.postgres.pool"])
def test_objects_of_one_thread_keep_pages_out_of_others(
    pages: Pages, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    for _ in range(MIN_BLOCKED):
        pages.note(Request(), LONG_S, LONG_S)
    assert places_of(pages) is None


def test_an_application_that_spawns_greenlets_stays_in_the_hub(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would stand still when the thread has ended the request."""
    application = ModuleType("application")
    monkeypatch.setattr(application, "spawn", gevent.spawn, raising=False)
    monkeypatch.setitem(sys.modules, "application", application)
    for _ in range(MIN_BLOCKED):
        pages.note(Request(), LONG_S, LONG_S)
    assert places_of(pages) is None


IN_ANY_CASE = "if True:\n    from gevent import spawn\n"
IF_IT_IS_THERE = "try:\n    import gevent\nexcept ImportError:\n    gevent = None\n"
OF_ANOTHER = "from gevent_or_none import gevent\n"


@pytest.mark.parametrize(
    ("folder", "source", "moves"),
    [
        ("site-packages", IN_ANY_CASE, False),
        ("site-packages", "import gevent.pool, sys\n", False),
        ("site-packages", IF_IT_IS_THERE, True),
        ("dist-packages", OF_ANOTHER, True),
        ("site-packages", "gevent", False),
        ("application", IF_IT_IS_THERE, False),
    ],
)
def test_a_library_that_works_without_gevent_does_not_keep_pages_in_the_hub(
    pages: Pages,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    folder: str,
    source: str,
    moves: bool,
) -> None:
    """It uses gevent where the application wants it to."""
    path = tmp_path / folder / "library.py"
    path.parent.mkdir()
    library = ModuleType("library")
    vars(library).update(gevent=gevent, __file__=str(path))
    if source != "gevent":  # there is none
        path.write_text(source)
    monkeypatch.setitem(sys.modules, "library", library)
    for _ in range(MIN_BLOCKED):
        pages.note(Request(), LONG_S, LONG_S)
    assert (places_of(pages) is not None) is moves


def test_a_page_that_ends_at_once_runs_in_greenlets_again(pages: Pages) -> None:
    """It was loading something, which it has now."""
    for _ in range(MIN_BLOCKED):
        pages.note(Request(), LONG_S, LONG_S)
    runs = 0
    while places_of(pages):
        call(lambda *_: [], page=pages.find(Request(), {}))
        runs += 1
    assert runs > SMOOTHING
    pages.note(Request(), LONG_S, LONG_S)
    assert places_of(pages) is None


def test_the_pages_that_are_used_are_remembered(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there is room for."""
    monkeypatch.setattr(module, "MAX_PAGES", 2)
    for path in ("/used", "/unused", "/new"):
        pages.find(Request("/used"), {})
        for _ in range(MIN_BLOCKED):
            pages.note(Request(path), LONG_S, LONG_S)
    assert pages.find(Request("/used"), {})
    assert pages.find(Request("/new"), {})
    assert pages.find(Request("/unused"), {}) is None


def test_others_run_meanwhile() -> None:
    rounds = 0

    def application(*_: Any) -> bool:
        until_s = monotonic() + 20
        while rounds <= 20 and monotonic() < until_s:
            native_sleep(0.001)
        return rounds > 20

    calling = gevent.spawn(call, application)
    while not calling.ready():
        gevent.sleep(0.001)
        rounds += 1
    assert calling.get()


def test_it_is_the_thread_of_its_handler() -> None:
    """Its id, its thread-locals and its context are the same."""
    found: dict[str, Any] = {}

    def application(*_: Any) -> list[bytes]:
        found["there"] = threading.get_ident(), local.value, variable.get(), native_ident()
        local.value, local.added = 2, 3
        return [b"body"]

    def work() -> None:
        local.value = 1
        variable.set(1)
        environ = {"wsgi.input": BytesIO()}
        found["here"] = threading.get_ident(), 1, 1, native_ident()
        found["result"] = Blocking().run(application, environ, Response())
        found["after"] = local.value, local.added

    Handlers().run(work)
    assert found["there"][:3] == found["here"][:3]
    assert found["there"][3] != found["here"][3]
    assert found["result"] == [b"body"]
    assert found["after"] == (2, 3)


def test_a_body_may_set_back_what_the_call_has_set() -> None:
    """Flask's streams do: a token works in one context alone."""

    def application(*_: Any) -> Any:
        tokens = [variable.set(7)]

        def parts() -> Any:
            yield variable.get()
            variable.reset(tokens.pop())
            yield variable.get()

        return parts()

    def work() -> None:
        found.extend(Blocking().run(application, {"wsgi.input": BytesIO()}, Response()))

    found: list[int] = []
    Handlers().run(work)
    assert found == [7, 0]


def page_of_bodies() -> Blocking:
    """Return a page whose bodies are known to block."""
    page = Blocking()
    page.places = module._computing
    for _ in range(MIN_BLOCKED):
        one = Request()
        page.moved.add(one)
        page.note(one, LONG_S, LONG_S, 0.0)
    return page


def streaming(parts: Callable[[], Any]) -> list[bytes]:
    """Stream *parts* of such a page; return the body."""
    page, found = page_of_bodies(), list[bytes]()

    def work() -> None:
        result = page.run(lambda *_: parts(), {"wsgi.input": BytesIO()}, Response())
        try:
            found.extend(result)
        finally:
            if hasattr(result, "close"):
                result.close()

    Handlers().run(work)
    return found


def test_the_parts_of_a_body_that_blocks_are_made_in_threads() -> None:
    """In the same thread-locals and context, and it is closed."""
    idents, closed = set[int](), list[bool]()

    def parts() -> Any:
        local.value = 1
        tokens = [variable.set(7)]
        try:
            for _ in range(3):
                idents.add(native_ident())
                yield b"%d %d" % (local.value, variable.get())
        finally:
            variable.reset(tokens.pop())
            closed.append(True)

    assert streaming(parts) == 3 * [b"1 7"]
    assert native_ident() not in idents
    assert closed == [True]
    # What is made already needs no thread, and may have any type.
    assert streaming(lambda: [b"a", b"b"]) == [b"a", b"b"]


def test_of_many_quick_parts_of_a_body_few_need_a_thread() -> None:
    """A hand-over takes longer than a word of JSON."""
    idents: list[int] = []

    def parts() -> Any:
        for _ in range(1000):
            idents.append(native_ident())
            yield b"1"

    assert streaming(parts) == 1000 * [b"1"]
    assert idents.count(native_ident()) > 500
    assert native_ident() not in idents[:8]


def test_slow_parts_between_quick_ones_soon_are_all_made_in_threads() -> None:
    """Each in the hub blocks it, so more quick ones are needed before the next one there."""
    idents: list[int] = []

    def parts() -> Any:
        for _ in range(10):
            for _ in range(20):
                yield b"1"
            idents.append(native_ident())
            native_sleep(2 * module.BLOCKED_S)
            yield b"2"

    assert len(streaming(parts)) == 210
    assert idents.count(native_ident()) <= 2


def test_a_body_that_a_thread_makes_when_it_is_left_is_closed_there() -> None:
    begun, go_on, closed = native_event(), native_lock(), list[int]()
    go_on.acquire()

    def parts() -> Any:
        try:
            begun.set()
            go_on.acquire()
            yield b"part"
        finally:
            closed.append(native_ident())

    serving = gevent.spawn(streaming, parts)
    while not begun.is_set():
        gevent.sleep(0.001)
    serving.kill(timeout=10)
    assert not closed
    go_on.release()
    while not closed:
        gevent.sleep(0.001)
    assert closed != [native_ident()]


def test_an_error_of_the_application_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        call(lambda *_: 1 / 0)


def test_it_may_wait_as_in_a_greenlet() -> None:
    """The first wait makes a hub for the thread, which the next requests use."""

    def application(*_: Any) -> Any:
        with gevent.Timeout(5):
            threading.Thread(target=partial(gevent.sleep, 0.001)).start()
            gevent.sleep(0.001)
        return native_ident()

    assert call(application) == call(application) != native_ident()


def test_the_hub_of_a_thread_is_not_that_of_one_request() -> None:
    """Its parent is where an error goes that nobody waits for."""
    hubs = [call(lambda *_: gevent.get_hub()) for _ in range(2)]
    assert hubs[0] is hubs[1]
    assert not hubs[0].parent.dead


def test_the_client_is_read_and_written_in_the_hub() -> None:
    response, body = Response(), Body(BODY)

    def application(environ: Any, start_response: Any) -> Any:
        write = start_response("200 OK", [])
        write(environ["wsgi.input"].read(5))
        return [*environ["wsgi.input"], environ["wsgi.input"].data.tell()]

    assert call(application, body, response) == [b"lines\n", len(BODY)]
    assert response.written == [(native_ident(), BODY[:5])]
    assert response.status_code == 200
    assert body.readers == {native_ident()}


def test_a_call_that_is_left_uses_the_client_no_more() -> None:
    """The worker has killed its greenlet, whose connection and context have another request."""
    handlers, response = Handlers(), Response()
    begun, go_on, ended = native_event(), native_event(), native_event()
    errors: list[BaseException] = []
    handler: list[Any] = []

    def application(environ: Any, start_response: Any) -> None:
        begun.set()
        go_on.wait()
        variable.set(9)
        for use in (environ["wsgi.input"].read, partial(start_response, "200 OK", [])):
            try:
                use()
            except RequestEnded as error:
                errors.append(error)
        ended.set()

    def work() -> None:
        handler.append(gevent.getcurrent())
        Blocking().run(application, {"wsgi.input": Body(BODY)}, response)

    serving = gevent.spawn(handlers.run, work)
    while not begun.is_set():
        gevent.sleep(0.001)
    serving.kill(timeout=10)
    go_on.set()
    while not ended.is_set():
        gevent.sleep(0.001)
    assert len(errors) == 2
    assert response.status_code is None
    assert handler[0].gr_context.get(variable) != 9


def call_in_time(application: Any, body: Any = None, page: Any = None) -> None:
    """Call *application* as the worker does with a REQUEST_TIMEOUT of 50 ms."""
    timeouts = RequestTimeouts(0.05, logging.getLogger("test"), [clients.__name__])

    def respond(application: Any, environ: Any, response: Any, *_: object) -> None:
        for _ in (page or Blocking()).run(application, environ, response) or ():
            pass

    def work() -> None:
        environ = {"wsgi.input": body or BytesIO()}
        timeouts.limited(respond)(application, environ, Response(), monotonic(), Request())

    timeouts.start()
    try:
        with gevent.Timeout(10):
            Handlers().run(work)
    finally:
        timeouts.stop()


def wait_and_note(failed: list[BaseException]) -> None:
    """Wait for long, and add the error of the wait to *failed*."""
    try:
        gevent.sleep(60)
    except TimeoutError as error:
        failed.append(error)
        raise


def test_a_request_that_waits_in_a_thread_ends_in_time() -> None:
    """Its wait fails, as it would in a greenlet."""
    failed: list[BaseException] = []
    with pytest.raises(RequestTimeout):
        call_in_time(lambda *_: wait_and_note(failed))
    assert failed


def test_a_part_of_a_body_ends_in_time() -> None:
    """Its wait fails in the thread that makes it."""
    failed: list[BaseException] = []

    def parts() -> Any:
        yield b"first"
        wait_and_note(failed)

    with pytest.raises(RequestTimeout):
        call_in_time(lambda *_: parts(), page=page_of_bodies())
    assert failed


def test_a_request_that_waits_for_a_thread_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While others use all of them."""
    monkeypatch.setattr(module, "_computing", threads.Places(1))
    end = native_lock()
    end.acquire()
    other = gevent.spawn(call, lambda *_: end.acquire())
    gevent.sleep(0)
    begun: list[bool] = []
    page = Blocking()
    page._used_s = 60.0  # so that it waits for long
    with pytest.raises(RequestTimeout):
        call_in_time(lambda *_: begun.append(True), page=page)
    end.release()
    other.get(timeout=10)
    assert not begun
    call(lambda *_: begun.append(True))
    assert begun


def test_a_slow_client_is_not_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    body = Body(BODY)
    monkeypatch.setattr(body, "read", lambda: gevent.sleep(0.3) or BODY)
    read: list[bytes] = []
    call_in_time(lambda environ, _: read.append(environ["wsgi.input"].read()), body)
    assert read == [BODY]


def test_the_hub_does_not_touch_a_request_that_waits_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is late, and its own thread looks after it."""
    monkeypatch.setattr(request_timeout, "TIMEOUT_SWEEP_S", 60.0)
    timeouts = RequestTimeouts(0.01, logging.getLogger("test"))
    begun = native_event()

    def respond(application: Any, environ: Any, response: Any, *_: object) -> None:
        Blocking().run(application, environ, response)

    def application(*_: Any) -> None:
        begun.set()
        gevent.sleep(0.2)

    def work() -> None:
        environ = {"wsgi.input": BytesIO()}
        timeouts.limited(respond)(application, environ, Response(), monotonic(), Request())

    serving = gevent.spawn(Handlers().run, work)
    while not begun.is_set():
        gevent.sleep(0.02)
    timeouts._sweep()
    serving.get(timeout=10)


def test_what_was_unavailable_in_a_thread_is_known_in_its_handler() -> None:
    """The worker makes a 503 of the 500."""
    found: list[Any] = []

    def application(*_: Any) -> None:
        unavailable.note(PoolTimeout("none"))

    def work() -> None:
        Blocking().run(application, {"wsgi.input": BytesIO()}, Response())
        found.append(unavailable.reason())
        unavailable.forget()

    Handlers().run(work)
    assert isinstance(found[0], PoolTimeout)


def test_nothing_of_a_request_is_kept() -> None:
    class Result(list[bytes]):
        """With a weak reference to it."""

    result = call(lambda *_: Result([b"x"]))
    gone = weakref.ref(result)
    del result
    assert in_greenlet(lambda: threads.run(int)) == 0  # the thread's next job
    gc.collect()
    assert gone() is None
