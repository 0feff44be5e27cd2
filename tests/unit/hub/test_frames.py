"""sys._current_frames() has the frames of threads that are greenlets, as of native ones."""

import os
import sys
import threading
import time
import traceback
from types import FrameType, SimpleNamespace
from typing import Any

import gevent

from greenline.hub.handlers import Handlers
from greenline.hub.thread_locks import Event
from greenline.offload import threads
from tests.helpers.support import wait_until

REQUEST = SimpleNamespace(method="GET", path="/")


def names_in(frame: FrameType) -> list[str]:
    """Return the names of the functions of a stack, the innermost one last."""
    return [each.f_code.co_name for each, _ in traceback.walk_stack(frame)][::-1]


def waits(seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds)


def test_a_request_is_found_by_its_ident_where_it_waits() -> None:
    """A profiler in a thread looks for it; what waits in gevent's Python waits in C in a thread."""
    seen: list[list[str]] = []

    def view(_: object) -> None:
        def look(ident: int) -> None:
            seen.append(names_in(sys._current_frames()[ident]))

        thread = threading.Thread(target=look, args=(threading.get_ident(),))
        thread.start()
        waits(0.02)
        thread.join()

    handlers = Handlers()
    gevent.spawn(handlers.run, view, None, request=REQUEST).join()
    # start_or_wait() is what starts a thread once a test has called fork.install().
    stack = [name for name in seen[0] if name != "start_or_wait"]
    assert stack[-2:] in (["view", "waits"], ["view", "start"]), seen


def test_each_thread_is_there_until_its_end() -> None:
    """Idents of threads that threading knows, and that of the caller, whose frame is its own."""
    go_on = Event()
    thread = threading.Thread(target=go_on.wait, daemon=True)
    thread.start()
    wait_until(lambda: thread.ident in sys._current_frames(), "the thread has begun")
    assert sys._current_frames()[threading.get_ident()] is sys._getframe()
    go_on.set()
    thread.join()
    assert thread.ident not in sys._current_frames()


def test_a_request_in_a_native_thread_is_where_it_runs_there() -> None:
    """Its handler waits in the hub meanwhile, which is not where the request is."""
    seen: dict[str, Any] = {}

    def sleeps() -> None:
        threads.native.sleep(0.2)
        seen["own"] = sys._current_frames()[threading.get_ident()] is sys._getframe()

    def view(_: object) -> None:
        seen["ident"] = threading.get_ident()
        threads.Places(2).run(0.0, sleeps)

    handlers = Handlers()
    running = gevent.spawn(handlers.run, view, None, request=REQUEST)
    gevent.sleep(0.1)
    assert names_in(sys._current_frames()[seen["ident"]])[-1] == "sleeps"
    running.join()
    assert seen["own"]


def test_a_forked_child_has_the_thread_that_forked_alone() -> None:
    """The others do not go on there."""
    go_on = Event()
    thread = threading.Thread(target=go_on.wait, daemon=True)
    thread.start()
    wait_until(lambda: thread.ident in sys._current_frames(), "the thread has begun")
    child = os.fork()
    if child == 0:
        found = sys._current_frames()
        os._exit(thread.ident in found or threading.get_ident() not in found)
    go_on.set()
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
