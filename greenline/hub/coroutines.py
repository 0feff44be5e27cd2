"""
Run coroutines from greenlets, on one asyncio loop for each native thread.

The loop runs in a greenlet and waits in gevent's hub through gevent's selector. So a coroutine
that waits blocks no other greenlet, needs no thread and no lock, and uses the same pools and names
as the rest of the code. A greenlet runs its coroutine until that waits for the first time, and
waits for the rest as for a socket.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import gevent
import gevent.monkey
from gevent.event import Event

from greenline.errors import DeadlineExceeded
from greenline.hub import deadline, running_loop
from greenline.hub.loop_selector import LoopSelector

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


def call(func: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a coroutine function, and wait for the coroutine's result."""
    return run(func(*args, **kwargs))


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """
    Run *coroutine* while this greenlet waits, and return its result or raise its exception.

    Until it waits for the first time it runs in this greenlet, then in that of the loop: use
    context variables, not a ``threading.local`` or an RLock, for what has to last over an await.
    The coroutine has a copy of the greenlet's context variables; the ones that it changed are
    changed here afterwards. Use ``deadline.limit`` around this call, because it interrupts
    greenlets, and ``asyncio.timeout`` inside the coroutine. ``deadline.remaining`` works in both.

    :param coroutine: the coroutine to run, not yet started.
    :returns: the coroutine's result.
    :raises RuntimeError: a coroutine is running in this greenlet; await *coroutine* in it.
    """
    context = copy_context()
    try:
        loop = _loop()
        if loop is None:
            # A script without gevent: a loop for each call, as in asyncio.run().
            with asyncio.Runner() as runner:
                return runner.run(coroutine, context=context)
        if running_loop.is_running():
            coroutine.close()
            raise RuntimeError("a coroutine is running here: await the other one in it")
        return loop.wait_for(coroutine, context)
    finally:
        deadline.adopt(context)


def _loop() -> "_Loop | None":
    """Return the loop of this thread; None: sockets are not gevent's."""
    # Started at the first use and not before: an epoll descriptor made before the fork would be
    # shared by the workers. It ends with the process.
    loop: _Loop | None = getattr(_local, "loop", None)
    if (loop is None or loop.greenlet.dead) and gevent.monkey.is_module_patched("socket"):
        loop = _local.loop = _Loop()
    return loop


class _Selector(LoopSelector):
    """A selector that waits in the hub, in one greenlet; any greenlet of the thread may wake it."""

    greenlet: Any = None

    def wake(self) -> None:
        """End the wait of :meth:`select`; if it does not wait now, the next one does not."""
        if gevent.getcurrent() is not self.greenlet:
            self._ready.set()  # type: ignore[attr-defined]

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        self.wake()  # gevent starts the watchers of new files at the beginning of select()
        return super().register(fileobj, events, data)


class _Loop(asyncio.SelectorEventLoop):
    """
    An asyncio loop in a greenlet of its own, which all greenlets of the thread may call.

    What they schedule wakes it by its selector in place of asyncio's socket: no system call.
    """

    def __init__(self) -> None:
        # Without this, asyncio.run() in another greenlet would fail while this loop runs.
        running_loop.install()
        # The first steps of tasks that are made now, by the id() of their contexts.
        self._first_steps: dict[int, Any] = {}
        self._wakes = selector = _Selector()
        # In an empty context, not in that of the request that needed the loop first.
        context = Context()
        context.run(super().__init__, selector)
        self.greenlet = selector.greenlet = context.run(gevent.spawn, self._run)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        if self._first_steps and self._first_steps.get(id(context), ...) is None:
            self._first_steps[id(context)] = callback
            return None
        self._wakes.wake()
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        self._wakes.wake()
        return super().call_at(when, callback, *args, context=context)

    def _check_thread(self) -> None:
        # In debug mode asyncio compares threading.get_ident(), here the greenlet's.
        pass

    def wait_for(self, coroutine: Coroutine[Any, Any, T], context: Context) -> T:
        """Return what *coroutine* returns, or raise what it raises, while this greenlet waits."""
        task = self._begin(coroutine, context)
        if not task.done():
            done = Event()
            task.add_done_callback(lambda _: done.set())
            try:
                done.wait()
            except BaseException as error:
                # Interrupted by a deadline or a kill: let the coroutine clean up.
                limits = deadline.entered_in(context)
                is_its_own = isinstance(error, deadline.Interrupt) and error.source in limits
                deadline.abandon(limits)
                task.cancel()
                done.wait(deadline.GRACE_S)
                if is_its_own:
                    raise DeadlineExceeded from None
                raise
        return task.result()

    def _begin(self, coroutine: Coroutine[Any, Any, T], context: Context) -> "asyncio.Task[T]":
        """
        Return a task whose first step has run in this greenlet, as of Python 3.12's eager tasks.

        A coroutine that waits for nothing needs no turn of the loop.
        """
        # asyncio schedules the first step by call_soon(), which keeps it for this greenlet.
        self._first_steps[id(context)] = None
        try:
            task = asyncio.Task(coroutine, loop=self, context=context)
        finally:
            first_step = self._first_steps.pop(id(context))
        # As run_forever() does: a generator that begins in the first step is closed by the loop.
        before = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)  # type: ignore[attr-defined]
        asyncio._set_running_loop(self)
        try:
            context.run(first_step)
        except (SystemExit, KeyboardInterrupt):
            pass  # the task keeps it as its result
        finally:
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*before)
        return task

    def _run(self) -> None:
        while not self.is_closed():
            try:
                self.run_forever()
            except gevent.GreenletExit:
                return
            except (SystemExit, KeyboardInterrupt):
                continue  # raised by a coroutine: the task keeps it, and its greenlet raises it
            except BaseException:
                log.exception("the loop was interrupted, not a coroutine; it goes on")
                gevent.sleep(0)  # others run where it fails again and again
