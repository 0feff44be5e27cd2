"""Coroutines run beside greenlets: they wait together, fail in place and end when cancelled."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

import flask
import gevent
import gevent.event
import gevent.lock
import greenlet
import pytest
from gevent.server import StreamServer

from greenline.errors import DeadlineExceeded
from greenline.flask import Flask
from greenline.hub import deadline
from greenline.hub.coroutines import run, to_sync
from tests.helpers.support import CHECKOUT, wait_until

NAP_S = 0.2
SLACK_S = 4.0  # one after the other they would take ten seconds and more

number: ContextVar[int] = ContextVar("number", default=0)


async def nap() -> str:
    await asyncio.sleep(NAP_S)
    return "rested"


def at_once(function: Callable[[], Any], times: int) -> list[Any]:
    """Call *function* in as many greenlets, and return what they returned."""
    jobs = [gevent.spawn(function) for _ in range(times)]
    gevent.joinall(jobs, raise_error=True)
    return [job.value for job in jobs]


def test_a_hundred_async_views_wait_side_by_side() -> None:
    """A hundred views of 0.2 s take as long as one, and each has its own request."""
    app = Flask(__name__)

    @app.get("/<int:n>")
    async def view(n: int) -> dict[str, Any]:
        await asyncio.sleep(NAP_S)
        return {"n": n, "path": flask.request.path}

    started = time.monotonic()
    numbers = iter(range(100))

    def ask() -> Any:
        return app.test_client().get(f"/{next(numbers)}").json

    answers = at_once(ask, 100)
    assert time.monotonic() - started < NAP_S + SLACK_S
    assert sorted(answer["n"] for answer in answers) == list(range(100))
    assert all(answer["path"] == f"/{answer['n']}" for answer in answers)


def test_async_hooks_share_the_request_and_its_variables() -> None:
    """What an async function before the request sets is there in the view and afterwards."""
    app = Flask(__name__)

    @app.before_request
    async def before() -> None:
        await asyncio.sleep(0)
        number.set(7)
        flask.g.name = "set before"

    @app.after_request
    async def after(response: flask.Response) -> flask.Response:
        await asyncio.sleep(0)
        response.headers["X-Name"] = flask.g.name
        return response

    app.add_url_rule("/", "sync", lambda: {"number": number.get()})
    response = app.test_client().get("/")
    assert response.json == {"number": 7}
    assert response.headers["X-Name"] == "set before"


def test_a_coroutine_gathers_others() -> None:
    """Tasks of a coroutine run side by side too."""

    async def gather() -> list[int]:
        await asyncio.gather(*(nap() for _ in range(50)))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(NAP_S, each)) for each in range(3)]
        return [task.result() for task in tasks]

    started = time.monotonic()
    assert run(gather()) == [0, 1, 2]
    assert time.monotonic() - started < 2 * NAP_S + SLACK_S


def test_sockets_by_name_are_read_while_greenlets_run() -> None:
    """Streams, names and threads of asyncio work, and a green server in this process answers."""

    def answer(sock: Any, _: Any) -> None:
        sock.recv(1024)
        gevent.sleep(NAP_S)
        sock.sendall(b"HTTP/1.0 200 OK\r\n\r\nhello")
        sock.close()

    async def fetch() -> bytes:
        reader, writer = await asyncio.open_connection("localhost", server.server_port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        data = await reader.read()
        writer.close()
        await writer.wait_closed()
        return data

    with StreamServer(("127.0.0.1", 0), answer) as server:
        server.start()
        started = time.monotonic()
        assert set(at_once(to_sync(fetch), 50)) == {b"HTTP/1.0 200 OK\r\n\r\nhello"}
        assert time.monotonic() - started < NAP_S + SLACK_S
        server.stop()


def test_a_busy_coroutine_lets_greenlets_run() -> None:
    """A coroutine that never waits for anything outside still gives greenlets their turn."""
    turns = 0

    async def spin() -> None:
        while turns < 10:
            await asyncio.sleep(0)

    def take_turns() -> None:
        nonlocal turns
        while turns < 10:
            turns += 1
            gevent.sleep(0)

    other = gevent.spawn(take_turns)
    with deadline.limit(10):
        run(spin())
    other.join()


def test_exceptions_arrive_with_their_stack() -> None:
    """A view's error is handled as that of any view, and its traceback names the coroutine."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("lost")

    with pytest.raises(KeyError) as caught:
        run(fail())
    assert "in fail" in "".join(traceback.format_exception(caught.value))

    async def leave() -> None:
        sys.exit(3)

    other = gevent.spawn(run, nap())
    gevent.sleep(0)
    with pytest.raises(SystemExit):
        run(leave())
    assert other.get(timeout=40) == "rested"


def test_a_deadline_cancels_the_coroutine_and_lets_it_clean_up() -> None:
    """The greenlet's interrupt is the coroutine's cancellation; others go on."""
    cleaned: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append("cleaned")

    other = gevent.spawn(run, nap())
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded), deadline.limit(0.1):
        run(wait())
    assert time.monotonic() - started < 0.1 + deadline.GRACE_S + SLACK_S
    assert cleaned == ["cleaned"]
    killed = gevent.spawn(run, wait())
    gevent.sleep(0)
    killed.kill()
    wait_until(lambda: cleaned == ["cleaned"] * 2 or not killed.started, "the coroutine's end")
    assert other.get() == "rested"


def test_a_coroutine_that_cannot_be_cancelled_does_not_block() -> None:
    """Past the time to clean up, the greenlet goes on without its coroutine."""
    stop = False

    async def stubborn() -> None:
        while not stop:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    started = time.monotonic()
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.1):
        run(stubborn())
    assert time.monotonic() - started < 0.1 + deadline.GRACE_S + SLACK_S
    stop = True


@pytest.mark.parametrize("is_first_step", [True, False], ids=["first step", "later"])
def test_a_limit_inside_a_coroutine_does_not_stop_the_others(is_first_step: bool) -> None:
    """
    What interrupts the caller cancels its coroutine; what interrupts the loop is logged.

    Every other coroutine goes on.
    """

    async def wrong() -> str:
        if not is_first_step:
            await asyncio.sleep(0)
        with deadline.limit(0.01):
            return await nap() + await nap()

    other = gevent.spawn(run, nap())
    if is_first_step:
        with pytest.raises(DeadlineExceeded):
            run(wrong())
    else:
        assert run(wrong()) == "restedrested"
    assert other.get(timeout=40) == "rested"


def test_the_first_step_runs_at_once_in_the_callers_greenlet() -> None:
    """A coroutine that waits for nothing needs no turn of the loop, and is a task all the same."""
    turns = []
    here = threading.local()
    here.name = "the caller's"

    async def work() -> str:
        assert asyncio.current_task().get_coro().__name__ == "work"  # type: ignore[union-attr]
        assert asyncio.get_running_loop() is asyncio.current_task().get_loop()  # type: ignore[union-attr]
        async with asyncio.timeout(60):
            return str(here.name)

    run(nap())
    other = gevent.spawn(turns.append, "other")
    assert run(work()) == "the caller's"
    assert (turns, asyncio._get_running_loop()) == ([], None)
    other.join()


def test_a_first_step_that_blocks_leaves_the_loop_to_others() -> None:
    """A coroutine that waits as plain code does has its task again when it goes on."""

    async def block() -> bool:
        task = asyncio.current_task()
        gevent.sleep(NAP_S)
        await asyncio.sleep(0)
        gevent.sleep(0)
        return asyncio.current_task() is task and asyncio.get_running_loop() is task.get_loop()

    blocked = gevent.spawn(run, block())
    gevent.sleep(0)
    assert asyncio._get_running_loop() is None
    assert at_once(to_sync(nap), 3) == ["rested"] * 3
    assert blocked.get(timeout=40)


@pytest.mark.parametrize(
    "wait",
    [
        lambda: gevent.event.Event().wait(0.01),
        lambda: gevent.lock.Semaphore(0).acquire(timeout=0.01),
        lambda: socket.getaddrinfo("localhost", 80),
        lambda: gevent.spawn(gevent.sleep, 0.01).get(),
    ],
    ids=["an event", "a semaphore", "a name", "a greenlet"],
)
def test_a_first_step_may_block_for_whatever_it_is(wait: Callable[[], object]) -> None:
    """Some waits look up how to resume the greenlet before it leaves its loop."""

    async def block() -> bool:
        task = asyncio.current_task()
        wait()
        await asyncio.sleep(0.01)
        return asyncio.current_task() is task and asyncio.get_running_loop() is task.get_loop()

    assert run(block())


def test_what_a_first_step_starts_goes_on() -> None:
    """A timer, a task and a socket of a coroutine that has ended are the loop's: it is woken."""
    ended: list[str] = []
    ours, theirs = socket.socketpair()

    async def later() -> None:
        ended.append("task")

    async def begin() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, ended.append, "timer")
        loop.add_reader(ours, lambda: (loop.remove_reader(ours), ended.append("socket")))
        ended.append("begun")
        tasks.append(loop.create_task(later()))

    tasks: list[Any] = []
    run(nap())
    gevent.sleep(0.01)  # the loop waits by then
    run(begin())
    assert ended == ["begun"]
    theirs.send(b"x")
    wait_until(lambda: len(ended) == 4, "all three")
    assert sorted(ended) == ["begun", "socket", "task", "timer"]
    ours.close(), theirs.close()


def test_a_generator_that_a_first_step_leaves_is_closed() -> None:
    """By the loop, since closing it may wait, as after asyncio.run()."""
    closed = []

    async def rows() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0.01)
            closed.append("rows")

    async def first() -> int:
        async for row in rows():
            return row
        return 0

    assert run(first()) == 1
    wait_until(lambda: closed == ["rows"], "the generator's end")
    assert sys.get_asyncgen_hooks() == (None, None)


@pytest.mark.parametrize("nested", [False, True], ids=["one", "nested"])
def test_a_limit_of_a_coroutine_ends_with_it(nested: bool) -> None:
    """One that is slow to clean up: the greenlet goes on, and is interrupted no more."""
    may_end = False

    async def slow() -> None:
        with deadline.limit(0.1), deadline.limit(60 if nested else 0.1):
            try:
                await asyncio.sleep(60)
            finally:
                while not may_end:
                    await asyncio.sleep(0.01)

    def request() -> str:
        with pytest.raises(DeadlineExceeded):
            run(slow())
        assert deadline.remaining() is None
        gevent.sleep(4 * deadline.GRACE_S)
        return "went on"

    assert gevent.spawn(request).get(timeout=40) == "went on"
    may_end = True


def test_a_child_greenlet_of_a_coroutine_keeps_no_other_from_running() -> None:
    """As SQLAlchemy's: it waits without the hooks of its parent, and may run no coroutine."""

    async def begin() -> str:
        def child() -> str:
            loop = asyncio.get_running_loop()
            gevent.sleep(NAP_S)
            assert asyncio._get_running_loop() is loop
            with pytest.raises(RuntimeError, match="await"):
                run(nap())
            return "child"

        return str(greenlet.greenlet(child).switch())

    waiting = gevent.spawn(run, begin())
    gevent.sleep(0)
    assert run(nap()) == "rested"
    assert waiting.get(timeout=40) == "child"


def test_what_is_no_coroutine_leaves_nothing_behind() -> None:
    """The next one runs."""
    with pytest.raises(TypeError):
        run(3)  # type: ignore[arg-type]
    assert run(nap()) == "rested"


def test_a_method_is_wrapped_as_well() -> None:
    """As a plain function it is bound, and has its name."""

    class Shop:
        @to_sync
        async def rest(self) -> str:
            return await nap()

    assert Shop().rest() == "rested"
    assert Shop.rest.__name__ == "rest"


def test_other_greenlets_may_run_loops_of_their_own() -> None:
    """asyncio.run in a sync view works while coroutines wait in ours."""
    waiting = gevent.spawn(run, nap())
    gevent.sleep(NAP_S / 4)
    assert asyncio.run(nap()) == "rested"
    assert waiting.get() == "rested"


def test_waiting_for_a_coroutine_inside_a_coroutine_is_refused() -> None:
    """It could only wait for itself: it gets an error instead."""

    async def outer() -> str:
        return run(nap())

    with pytest.raises(RuntimeError, match="await"):
        run(outer())


@pytest.mark.parametrize("prepare", ["", "from greenline.patch import patch_all; patch_all()"])
def test_it_works_patched_and_not_and_leaves_quietly(prepare: str) -> None:
    """With warnings as errors coroutines run after a fork, keep no request, and exit cleanly."""
    program = f"""
{prepare}
import asyncio, gc, gevent, logging, os, weakref
from contextvars import ContextVar
# Its warnings say how long a callback took, which is the machine's; a lost task is an error.
logging.getLogger("asyncio").setLevel(logging.ERROR)
from greenline.hub.coroutines import run
held = ContextVar("held")
class Request: pass
def first():
    held.set(Request())
    check()
    return weakref.ref(held.get())
async def three():
    await asyncio.sleep(0.01)
    return 3
def check():
    for _ in range(3):
        assert run(three()) == 3
pid = os.fork()
released = gevent.spawn(first).get()
gevent.sleep(0.01)
gc.collect()
assert released() is None
if pid:
    assert os.waitpid(pid, 0)[1] == 0
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", program],
        cwd=CHECKOUT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
