"""greenline.hub.running_loop: the running loop is its greenlet's, however that one is resumed."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio.from_thread
import gevent
import pytest
from gevent.event import Event
from sqlalchemy.util import await_only, greenlet_spawn

from greenline.hub.running_loop import HOOKS
from tests.helpers.support import CHECKOUT

kept: AsyncIterator[int] | None = None


def spawned(function: Callable[[], Any]) -> Any:
    """Return what *function* returns in a greenlet of its own."""
    return gevent.spawn(function).get(timeout=10)


def has_loop() -> bool:
    """Return whether C code, which asks the thread, sees a running loop."""
    return asyncio._get_running_loop() is not None


def test_another_greenlet_sees_no_running_loop() -> None:
    """Neither while the loop waits nor while its coroutine blocks; its own greenlet always does."""
    seen = []

    async def work(block: Callable[[], None]) -> None:
        gevent.spawn(lambda: seen.append(has_loop()))
        block()
        assert has_loop()
        await asyncio.sleep(0.01)
        assert has_loop()

    for block in (gevent.sleep, bool, threading.Event().is_set, lambda: Event().wait(0.01)):
        spawned(lambda block=block: asyncio.run(work(block)))
    assert seen == [False] * 4


def test_a_loop_that_ends_closes_no_generator_of_another_one() -> None:
    """Each loop closes those that began in it: a shorter answer would be taken for a whole one."""
    closed = []

    async def rows(count: int) -> AsyncIterator[int]:
        try:
            for number in range(count):
                yield number
        finally:
            closed.append(count)

    async def read(count: int) -> int:
        read = 0
        async for _ in rows(count):
            await asyncio.sleep(0.002)
            read += 1
        return read

    async def leave_one() -> None:
        global kept
        kept = rows(99)
        await anext(kept)

    counts = [1, 20, 3, 40]
    running = [gevent.spawn(asyncio.run, read(count)) for count in counts]
    assert [each.get(timeout=10) for each in running] == counts
    assert sorted(closed) == sorted(counts)
    spawned(lambda: asyncio.run(leave_one()))
    assert closed[-1] == 99
    assert sys.get_asyncgen_hooks() == (None, None)


@pytest.mark.parametrize("is_caught", [True, False], ids=["caught", "not caught"])
@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "waits"])
def test_an_exception_that_is_thrown_finds_its_loop(is_caught: bool, blocks: bool) -> None:
    """A timeout or a kill that a coroutine outlives leaves it as it was, and else none is left."""
    begun = Event()

    async def work() -> str:
        try:
            begun.set()
            if blocks:
                gevent.sleep(10)
            else:
                await asyncio.sleep(10)
        except ConnectionError:
            if is_caught:
                await asyncio.sleep(0.01)
                return str(has_loop())
            raise
        return "nothing was thrown"

    def run() -> str:
        try:
            return asyncio.run(work())
        except ConnectionError:
            return f"raised {has_loop()} {HOOKS[0] in vars(gevent.getcurrent())}"

    job = gevent.spawn(run)
    begun.wait()
    gevent.sleep(0.01)  # asyncio's selector waits by then
    job.kill(ConnectionError, block=False)
    # What is thrown while the loop waits is the loop's own: it ends.
    assert job.get(timeout=10) == ("True" if is_caught and blocks else "raised False False")


def test_a_child_greenlet_may_await() -> None:
    """SQLAlchemy's asyncio engines wait so: the child switches to its parent, and back."""

    def query() -> bool:
        await_only(asyncio.sleep(0.01))
        return has_loop()

    async def work() -> bool:
        return await greenlet_spawn(query) and has_loop()

    jobs = [gevent.spawn(lambda: asyncio.run(work())) for _ in range(3)]
    assert [job.get(timeout=10) for job in jobs] == [True] * 3
    assert not spawned(has_loop)


def test_a_child_greenlet_may_block() -> None:
    """As what SQLAlchemy's run_sync() calls does: others run their loops meanwhile, and it its."""

    def work_as_a_thread_does(pause_s: float) -> list[bool]:
        seen = [has_loop()]
        gevent.sleep(pause_s)
        seen.append(has_loop())
        await_only(asyncio.sleep(0.01))
        gevent.sleep(pause_s)
        return [*seen, has_loop()]

    async def work(pause_s: float) -> bool:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        seen = await greenlet_spawn(work_as_a_thread_does, pause_s)
        return all(seen) and asyncio.get_running_loop() is loop and asyncio.current_task() is task

    async def plain() -> bool:
        await asyncio.sleep(0.001)
        return has_loop()

    jobs = [gevent.spawn(lambda s=s: asyncio.run(work(s))) for s in (0.02, 0.03, 0.05)]
    gevent.sleep(0.005)
    assert not has_loop()
    jobs += [gevent.spawn(lambda: asyncio.run(plain())) for _ in range(3)]
    assert [job.get(timeout=10) for job in jobs] == [True] * 6
    assert not spawned(has_loop)


def test_what_is_left_is_nothing() -> None:
    """A greenlet that ran a loop runs the next one, and switches as all others do then."""

    def run() -> list[str]:
        for _ in range(2):
            asyncio.run(asyncio.sleep(0))
        return [name for name in HOOKS if name in vars(gevent.getcurrent())]

    assert spawned(run) == []


def test_a_program_is_run_and_read() -> None:
    """asyncio's subprocesses wait for their end in a thread of their own."""

    async def run() -> bytes:
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "print(7)", stdout=asyncio.subprocess.PIPE
        )
        return (await program.communicate())[0]

    jobs = [gevent.spawn(lambda: asyncio.run(run())) for _ in range(3)]
    assert [job.get(timeout=20) for job in jobs] == [b"7\n"] * 3


def test_a_portal_of_anyio_serves_other_greenlets() -> None:
    """Its loop runs in a thread, which is a greenlet."""
    with anyio.from_thread.start_blocking_portal() as portal:
        jobs = [gevent.spawn(portal.call, anyio.sleep, 0.05) for _ in range(5)]
        gevent.joinall(jobs, timeout=10, raise_error=True)


def test_asyncio_may_have_been_imported_before_the_patching() -> None:
    """gunicorn's arbiter does so: the current loop is each greenlet's own all the same."""
    code = """
import asyncio
from greenline.patch import patch_all
patch_all()
import gevent
def run():
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    gevent.sleep(0.01)
    return asyncio.get_event_loop() is loop and loop.run_until_complete(asyncio.sleep(0.01, 7))
jobs = [gevent.spawn(run) for _ in range(5)]
print([job.get(timeout=10) for job in jobs])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("[7, 7, 7, 7, 7]\n", "")
