"""
Coroutines for greenlets: one asyncio loop in a greenlet, side by side with all the others.

1. The loop waits in gevent's hub, through gevent's own selector, so it takes neither a thread nor
   a lock: a coroutine that waits blocks nobody, and what it calls runs where everything else runs,
   with the same pools, locks and names. A greenlet waits for its coroutine as for a socket.
2. It starts at the first need, so after the fork, and ends with the process.
3. It runs in its greenlet alone (``greenline.hub.running_loop``): another one may call
   ``asyncio.run``.
4. A coroutine has a copy of the greenlet's context variables, and what it changed is there
   afterwards. Its exceptions are raised in the greenlet.
5. A greenlet that is interrupted (a deadline, a kill) cancels its coroutine, gives it ``GRACE_S``
   to clean up, and goes on. ``deadline.limit`` interrupts greenlets: around ``run``, not in a
   coroutine, which has ``asyncio.timeout``. ``deadline.remaining`` works in both.
6. Where nothing is patched each call has a loop of its own, as in ``asyncio.run``.
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

# One for each native thread, which has a hub of its own.
_local = gevent.monkey.get_original("threading", "local")()


def to_sync(func: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return a function that runs the coroutine function *func* and waits for its result."""

    @wraps(func)
    def wait(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(func(*args, **kwargs))

    return wait


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """
    Run *coroutine* while this greenlet waits, and return its result or raise its exception.

    Raises:
        RuntimeError: a coroutine is running here already: await this one there.
    """
    context = copy_context()
    try:
        if not gevent.monkey.is_module_patched("socket"):
            with asyncio.Runner() as runner:
                return runner.run(coroutine, context=context)
        return _loop().run(coroutine, context)
    finally:
        _adopt(context)


def _adopt(context: Context) -> None:
    """Set here the context variables that were set in *context*."""
    var: ContextVar[Any]
    for var, value in context.items():
        if var.get(None) is not value:
            var.set(value)


def _loop() -> "_Loop":
    """Return the loop of this thread; start it when there is none."""
    loop: _Loop | None = getattr(_local, "loop", None)
    if loop is None or loop.greenlet.dead:
        loop = _local.loop = _Loop()
    return loop


class _Selector(GeventSelector):
    """Waits in the hub; with a timeout of 0 for one turn of it, without a timer."""

    def select(self, timeout: float | None = None) -> Any:
        if timeout == 0:
            self._ready.set()  # type: ignore[attr-defined]
        return super().select(timeout)


class _Loop:
    """An asyncio loop and the greenlet that it runs in."""

    def __init__(self) -> None:
        running_loop.install()
        # In a context of their own: not in that of the request that needed the loop first.
        context = Context()
        self._loop = context.run(asyncio.SelectorEventLoop, _Selector())
        self.greenlet = context.run(gevent.spawn, self._run_forever)

    def run(self, coroutine: Coroutine[Any, Any, T], context: Context) -> T:
        if gevent.getcurrent() is self.greenlet:
            coroutine.close()
            raise RuntimeError("a coroutine is running here: await the other one in it")
        call = _Call(coroutine, context, self._loop)
        self._loop.call_soon_threadsafe(call.start)
        try:
            call.done.wait()
        except BaseException:
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
                continue  # a coroutine's, whose greenlet has it too
            except BaseException:
                log.exception("the loop was interrupted, not a coroutine; it goes on")


class _Call(Generic[T]):
    """A coroutine on the loop, and the event that its greenlet waits for."""

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
        self._task.cancel()  # asyncio keeps the order: it has started

    def result(self) -> T:
        return self._task.result()
