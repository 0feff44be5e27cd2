"""
Run coroutines from greenlets, on one asyncio loop for each native thread.

The loop runs in a greenlet and waits in gevent's hub through gevent's selector. So a coroutine
that waits blocks no other greenlet, needs no thread and no lock, and uses the same pools and names
as the rest of the code. A greenlet waits for its coroutine as for a socket.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar

import gevent
import gevent.monkey
from gevent.event import Event
from gevent.selectors import GeventSelector

from greenline.hub import running_loop
from greenline.hub.deadline import GRACE_S

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

# The loop of each native thread: each has a hub of its own.
_local = gevent.monkey.get_original("threading", "local")()


def to_sync(func: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """
    Wrap a coroutine function as a plain function, which waits for the coroutine's result.

    :param func: the coroutine function; its parameters are those of the wrapper.
    """

    @wraps(func)
    def wait(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(func(*args, **kwargs))

    return wait


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """
    Run *coroutine* while this greenlet waits, and return its result or raise its exception.

    The coroutine has a copy of the greenlet's context variables; the ones that it changed are
    changed here afterwards. Use ``deadline.limit`` around this call, because it interrupts
    greenlets, and ``asyncio.timeout`` inside the coroutine. ``deadline.remaining`` works in both.

    :param coroutine: the coroutine to run, not yet started.
    :returns: the coroutine's result.
    :raises RuntimeError: a coroutine is running in this greenlet; await *coroutine* in it.
    """
    context = copy_context()
    try:
        if not gevent.monkey.is_module_patched("socket"):
            # A script without gevent: a loop for each call, as in asyncio.run().
            with asyncio.Runner() as runner:
                return runner.run(coroutine, context=context)
        return _loop().run(coroutine, context)
    finally:
        _adopt(context)


def _adopt(context: Context) -> None:
    """Set the context variables that have another value in *context*."""
    var: ContextVar[Any]
    for var, value in context.items():
        if var.get(None) is not value:
            var.set(value)


def _loop() -> "_Loop":
    """Return the loop of this thread."""
    # Started at the first use and not before: an epoll descriptor made before the fork would be
    # shared by the workers. It ends with the process.
    loop: _Loop | None = getattr(_local, "loop", None)
    if loop is None or loop.greenlet.dead:
        loop = _local.loop = _Loop()
    return loop


class _Selector(GeventSelector):
    """A selector that waits in the hub."""

    def select(self, timeout: float | None = None) -> Any:
        if timeout == 0:
            # With the event set, gevent yields once by sleep(0) and starts no timer.
            self._ready.set()  # type: ignore[attr-defined]
        return super().select(timeout)


class _Loop:
    """An asyncio loop and the greenlet that it runs in."""

    def __init__(self) -> None:
        # Without this, asyncio.run() in another greenlet would fail while this loop runs.
        running_loop.install()
        # In an empty context, not in that of the request that needed the loop first.
        context = Context()
        self._loop = context.run(asyncio.SelectorEventLoop, _Selector())
        self.greenlet = context.run(gevent.spawn, self._run_forever)

    def run(self, coroutine: Coroutine[Any, Any, T], context: Context) -> T:
        if gevent.getcurrent() is self.greenlet:
            coroutine.close()
            raise RuntimeError("a coroutine is running here: await the other one in it")
        call = _Call(coroutine, context, self._loop)
        # The thread-safe variant, because only it wakes a loop that waits in its selector.
        self._loop.call_soon_threadsafe(call.start)
        try:
            call.done.wait()
        except BaseException:
            # This greenlet was interrupted, by a deadline or a kill: let the coroutine clean up.
            self._loop.call_soon_threadsafe(call.cancel)
            call.done.wait(GRACE_S)
            raise
        return call.result()

    def _run_forever(self) -> None:
        while not self._loop.is_closed():
            try:
                self._loop.run_forever()
            except gevent.GreenletExit:
                return
            except (SystemExit, KeyboardInterrupt):
                continue  # raised by a coroutine: the task keeps it, and its greenlet raises it
            except BaseException:
                log.exception("the loop was interrupted, not a coroutine; it goes on")


class _Call(Generic[T]):
    """A coroutine on the loop, and the event on which its greenlet waits."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], context: Context, loop: asyncio.BaseEventLoop
    ) -> None:
        self._coroutine = coroutine
        self._context = context
        self._loop = loop
        self.done = Event()

    def start(self) -> None:
        self._task = self._loop.create_task(self._coroutine, context=self._context)
        self._task.add_done_callback(lambda _: self.done.set())

    def cancel(self) -> None:
        self._task.cancel()  # start() has run: the loop calls callbacks in order

    def result(self) -> T:
        return self._task.result()
