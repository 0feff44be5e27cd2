"""
Native threads for calls that block below Python.

A greenlet hands a call to a thread and waits in the hub, while the other greenlets run. These
threads are apart from gevent's pool, which has ten and resolves names. There are as many as there
are calls at work, so that no call waits for the end of another one; an idle thread ends by itself.
"""

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from time import monotonic
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import gevent
from gevent._hub_local import get_hub_if_exists
from gevent.hub import Waiter
from gevent.monkey import get_original

from greenline.hub.deadline import wait_in

IDLE_S = 10.0
MAX_IDLE = 16  # idle threads without an owner
MAX_KEPT = 64  # with more threads than these, an owner keeps its thread only for the call
ABANDON_S = 5.0
INTERRUPT_EVERY_S = 0.05

P = ParamSpec("P")
T = TypeVar("T")

get_ident: Callable[[], int] = get_original("_thread", "get_ident")
# In an instance: greenline.hub.patching reports an original among the globals as late patching.
native = SimpleNamespace(
    allocate_lock=get_original("_thread", "allocate_lock"),
    start_new_thread=get_original("_thread", "start_new_thread"),
    sleep=get_original("time", "sleep"),
)
_local = get_original("threading", "local")()
_main_ident = get_ident()  # of the thread that imports this, which patches


def can_wait() -> bool:
    """
    Return whether the caller may wait in a hub.

    The hub itself may not, and a native thread without a hub blocks instead.
    """
    hub = get_hub_if_exists()
    if hub is None:
        return get_ident() == _main_ident
    return gevent.getcurrent() is not hub


class _Outbox:
    """The finished jobs of a hub. It wakes their greenlets."""

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self._finished: deque[_Job] = deque()
        self._pending = 0
        self._async: Any = hub.loop.async_(ref=False)
        self._async.start(self._deliver)

    def expect(self) -> None:
        """Keep the loop running while a greenlet waits for a thread."""
        self._pending += 1
        if self._pending == 1:
            self._async.ref = True

    def forget(self) -> None:
        """End what :meth:`expect` began."""
        self._pending -= 1
        if self._pending == 0:
            self._async.ref = False

    def put(self, job: "_Job") -> None:
        """Wake the job's greenlet; called in the native thread."""
        self._finished.append(job)
        self._async.send()

    def _deliver(self) -> None:
        while self._finished:
            job = self._finished.popleft()
            job.is_done = True
            job.waiter.switch(None)


def _outbox() -> _Outbox:
    """Return the outbox of this thread's hub."""
    hub = gevent.get_hub()
    outbox: _Outbox | None = getattr(_local, "outbox", None)
    if outbox is None or outbox.hub is not hub:
        outbox = _local.outbox = _Outbox(hub)
    return outbox


class _Job:
    """A call, and the greenlet that waits for it."""

    __slots__ = ("args", "context", "error", "func", "is_done", "outbox", "result", "waiter")

    def __init__(self, func: Callable[..., Any], args: tuple[Any, ...], outbox: _Outbox) -> None:
        self.func = func
        self.args = args
        self.outbox = outbox
        # Callbacks of the application see the caller's context variables.
        self.context: Context = copy_context()
        self.waiter: Any = Waiter(outbox.hub)
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False

    def run(self) -> None:
        """Run in the native thread."""
        try:
            self.result = self.context.run(self.func, *self.args)
        except BaseException as error:
            self.error = error

    def wait(self, has_deadline: bool = True) -> Any:
        """Wait in the hub; return the call's result or raise its error."""
        if has_deadline:
            wait_in(self.waiter.get)
        else:
            self.waiter.get()
        if self.error is None:
            return self.result
        error, self.error = self.error, None  # else the error's traceback holds the job: a cycle
        try:
            raise error
        finally:
            del error

    def wait_until_abandoned(self, interrupt: Callable[[], object] | None) -> None:
        """Wait for the end at most ``ABANDON_S``; *interrupt* asks the call to end."""
        until = monotonic() + ABANDON_S
        while not self.is_done and monotonic() < until:
            if interrupt is not None:
                # Again and again: it has no effect before sqlite has begun with the statement.
                with suppress(Exception):
                    interrupt()
            with gevent.Timeout(INTERRUPT_EVERY_S, False):  # type: ignore[arg-type]
                self.waiter.get()


class Thread:
    """A native thread that does one job after the other, and ends after ``IDLE_S`` without one."""

    def __init__(self) -> None:
        self.ident = 0
        self.is_over = False
        self._jobs: deque[_Job] = deque()
        self._current: _Job | None = None
        self._is_asleep = False
        self._lock = native.allocate_lock()  # held for a few lines, never while anything waits
        self._wake = native.allocate_lock()
        self._wake.acquire()
        _alive.add(self)
        native.start_new_thread(self._work, ())

    def __repr__(self) -> str:
        return f"<Thread {self.ident} jobs={len(self._jobs)} idle={self.is_idle}>"

    @property
    def is_idle(self) -> bool:
        """Whether no job is queued or at work."""
        return self._current is None and not self._jobs

    def submit(self, job: _Job) -> bool:
        """Queue *job*; return False if the thread has ended."""
        with self._lock:
            if self.is_over:
                return False
            self._jobs.append(job)
            self._rouse()
            return True

    def withdraw(self, job: _Job) -> bool:
        """Take *job* out of the queue; return False if it has begun."""
        with self._lock:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            return True

    def end(self) -> None:
        """End the thread after its last job."""
        with self._lock:
            self.is_over = True
            self._rouse()

    def after_fork(self) -> None:
        """In a child no thread but the one that forked lives on, and any lock may be held."""
        self._lock = native.allocate_lock()
        self.is_over = True

    def _rouse(self) -> None:
        if self._is_asleep:
            self._is_asleep = False
            self._wake.release()

    def _work(self) -> None:
        self.ident = get_ident()
        while self._next():
            job: Any = self._current
            job.run()
            # Idle before the greenlet runs, which may then use what the job used without a thread.
            self._current = None
            job.outbox.put(job)
            del job
        _alive.discard(self)
        hub = get_hub_if_exists()  # made by a callback of the application that waited
        if hub is not None:
            hub.destroy(destroy_loop=True)

    def _next(self) -> bool:
        """Wait for a job and make it the current one; return False when the thread is to end."""
        while True:
            with self._lock:
                if self._jobs:
                    self._current = self._jobs.popleft()
                    return True
                if self.is_over:
                    return False
                self._is_asleep = True
            if not self._wake.acquire(timeout=IDLE_S):
                with self._lock:
                    if self._is_asleep:
                        self.is_over = True
                        return False
                self._wake.acquire()  # released between the timeout and the lock


_alive: set[Thread] = set()
_idle: list[Thread] = []  # without an owner; the last one was used last


def _take() -> Thread:
    while _idle:
        with suppress(IndexError):  # another native thread was faster
            thread = _idle.pop()
            if not thread.is_over:
                return thread
    return Thread()


def _give_back(thread: Thread) -> None:
    if thread.is_idle and len(_idle) < MAX_IDLE:
        _idle.append(thread)
    else:
        thread.end()


def run(func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """
    Call *func* in a native thread while this greenlet waits in the hub.

    A greenlet that is interrupted goes on at once; the call ends by itself.

    :returns: what *func* returns.
    :raises DeadlineExceeded: the request's deadline passed first.
    """
    if not can_wait():
        return func(*args, **kwargs)
    outbox = _outbox()
    job = _Job(partial(func, **kwargs) if kwargs else func, args, outbox)
    thread = _take()
    while not thread.submit(job):
        thread = _take()
    outbox.expect()
    try:
        return job.wait()  # type: ignore[no-any-return]
    finally:
        outbox.forget()
        _give_back(thread)


class OwnThread:
    """
    The thread of one object, such as a database connection: its calls run there one by one.

    It is taken at the first call, and given back by :meth:`release` or when this is collected.
    """

    def __init__(self) -> None:
        self._thread: Thread | None = None

    def __repr__(self) -> str:
        return f"<OwnThread {self._thread}>"

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Give the thread back."""
        thread, self._thread = self._thread, None
        if thread is not None and not thread.is_over:
            _give_back(thread)

    @property
    def is_idle(self) -> bool:
        """Whether no call is waiting or at work."""
        thread = self._thread
        return thread is None or thread.is_idle or thread.is_over

    def is_current(self) -> bool:
        """Return whether the caller is a callback that runs in this thread."""
        thread = self._thread
        return thread is not None and thread.ident == get_ident()

    def call(
        self,
        func: Callable[..., T],
        *args: Any,
        interrupt: Callable[[], object] | None = None,
        is_cleanup: bool = False,
    ) -> T:
        """
        Call *func* in the thread, after the calls before it, while this greenlet waits in the hub.

        A greenlet that is interrupted withdraws the call if it has not begun. Otherwise it waits
        at most ``ABANDON_S`` for its end: nothing else may use the object meanwhile.

        :param interrupt: asks the call to end; called in this greenlet.
        :param is_cleanup: the call is made after the request's deadline, too. Default False.
        :returns: what *func* returns.
        :raises DeadlineExceeded: the request's deadline passed first.
        """
        if self.is_current() or not can_wait():
            return func(*args)
        outbox = _outbox()
        job = _Job(func, args, outbox)
        thread = self._thread
        while thread is None or not thread.submit(job):
            thread = self._thread = _take()
        outbox.expect()
        try:
            return job.wait(not is_cleanup)  # type: ignore[no-any-return]
        except BaseException:
            if not job.is_done and not thread.withdraw(job):
                job.wait_until_abandoned(interrupt)
            raise
        finally:
            outbox.forget()
            if len(_alive) > MAX_KEPT and thread.is_idle and thread is self._thread:
                self.release()


def _after_fork_in_child() -> None:
    global _main_ident
    _main_ident = get_ident()
    for thread in _alive:
        thread.after_fork()
    _alive.clear()
    _idle.clear()
    _local.__dict__.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
