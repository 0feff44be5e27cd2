"""
Run calls that block below Python in native threads.

A greenlet passes a call to a thread and waits in the hub, while other greenlets run. These threads
are separate from gevent's pool, which has ten and resolves host names. There are as many threads as
calls in progress, so that no call waits for the end of another one; an idle thread ends itself.
"""

import atexit
import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from time import monotonic
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import gevent
from gevent.hub import Waiter
from gevent.lock import Semaphore
from gevent.monkey import get_original
from greenlet import getcurrent

from greenline.hub.callers import Caller
from greenline.hub.deadline import adopt, wait_in
from greenline.hub.gevent_compat import get_hub_if_exists
from greenline.hub.handlers import NativeHandler, end_wait, take_place
from greenline.hub.slices import interrupted
from greenline.hub.thread_locks import Event, SimpleQueue, is_main_thread
from greenline.offload import fork

IDLE_S = 10.0
MAX_IDLE = 16  # idle threads that no OwnThread keeps
MAX_KEPT = 64  # with more threads than these, an OwnThread keeps its thread only during a call
ABANDON_S = 5.0
MAX_REQUESTS = 64  # others run in the hub: each thread has a hub, with descriptors
END_S = 1.0  # for idle threads, at the end of the process
SWITCH_INTERVAL_S, SHORT_SWITCH_INTERVAL_S = 0.005, 0.0005  # that of Python, and ours
INTERRUPT_EVERY_S = 0.05

P = ParamSpec("P")
T = TypeVar("T")

get_ident: Callable[[], int] = get_original("_thread", "get_ident")
# In an instance, because greenline.hub.patching reports an original among the globals.
native = SimpleNamespace(
    allocate_lock=get_original("_thread", "allocate_lock"),
    start_new_thread=get_original("_thread", "start_new_thread"),
    sleep=get_original("time", "sleep"),
)
_local = get_original("threading", "local")()
_main_hub: Any = None


def can_wait() -> bool:
    """
    Return whether the caller may wait in a hub.

    The hub itself must not wait, and a native thread without a hub blocks instead.
    """
    hub = get_hub_if_exists()
    if hub is None:
        return is_main_thread()
    try:
        return gevent.getcurrent() is not hub
    except RuntimeError:  # a destructor runs when the interpreter has ended all greenlets
        return False


class _Outbox:
    """The finished jobs of one hub, in which it wakes their greenlets."""

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
        """Undo one call of :meth:`expect`."""
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
            if job.turns is not None:
                job.turns.release()
            job.waiter.switch(None)
            job.caller.forget()


def _outbox() -> _Outbox:
    """Return the outbox of this thread's hub."""
    global _main_hub
    hub = gevent.get_hub()
    if hub.main_hub:
        _main_hub = hub
    outbox: _Outbox | None = getattr(_local, "outbox", None)
    if outbox is None or outbox.hub is not hub:
        outbox = _local.outbox = _Outbox(hub)
    return outbox


class _Job:
    """A call and the greenlet that waits for its end."""

    __slots__ = (
        "args", "caller", "context", "error", "func", "has_place", "is_done", "outbox", "places",
        "result", "turns", "waiter",
    )  # fmt: skip

    def __init__(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        outbox: _Outbox,
        places: SimpleQueue | None = None,
        has_place: bool = False,
    ) -> None:
        self.func = func
        self.args = args
        self.outbox = outbox
        self.places = places  # of requests; None: this is a call of one
        self.has_place = has_place
        # The application's callbacks, such as functions of sqlite, see the caller's variables.
        self.context: Any = copy_context()
        if places is not None:
            # Not a copy: in that its body could not set back what the call has set.
            self.context = getcurrent().gr_context
        self.caller = Caller()
        self.waiter: Any = Waiter(outbox.hub)
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.turns: Semaphore | None = None  # where a turn is given back at the end of the call

    def run(self, thread: Any) -> None:
        """
        Run in the native thread.

        :param thread: its greenlet.
        """
        func, args = self.func, self.args
        # The hub keeps the job longer than the greenlet that waits, and the objects not so long.
        del self.func, self.args
        run = self.context.run
        if self.places is not None:  # its context is that of a greenlet: it runs in no other one
            gevent.get_hub()  # made here: its parent must live as long as the thread
            thread = NativeHandler(self.caller.greenlet, self.places, self.has_place)
            thread.gr_context = self.context
            run = thread.switch
        self.caller.begin(thread, is_request=self.places is not None)
        try:
            self.result = run(func, *args)
        except BaseException as error:
            self.error = error
        if self.places is not None:
            thread.switch_out()
        self.caller.end(thread)

    def wait(self, has_deadline: bool = True) -> Any:
        """Wait in the hub; return the call's result or raise its error."""
        try:
            if has_deadline:
                wait_in(self.waiter.get)
            else:
                self.waiter.get()
        except BaseException:
            self.caller.leave()
            if self.places is not None:
                getcurrent().gr_context = copy_context()  # the call goes on in its own
            raise
        self.caller.resume()
        end_wait()
        if self.places is None:
            adopt(self.context)
        if self.error is None:
            return self.result
        error, self.error = self.error, None  # its traceback refers to this job: a cycle
        try:
            raise error
        finally:
            del error

    def wait_until_abandoned(self, interrupt: Callable[[], object] | None) -> None:
        """Wait at most ``ABANDON_S`` for the end of the call, which *interrupt* requests."""
        until = monotonic() + ABANDON_S
        while not self.is_done and monotonic() < until:
            if interrupt is not None:
                # Repeated, because it has no effect before sqlite has begun with the statement.
                with suppress(Exception):
                    interrupt()
            with gevent.Timeout(INTERRUPT_EVERY_S, False):  # type: ignore[arg-type]
                self.waiter.get()


class _Drop:
    """A job for which no greenlet waits: it lets go of what is in a list."""

    outbox: None = None

    def __init__(self, held: list[Any]) -> None:
        self.run = lambda _: held.clear()


class Thread:
    """Run one job after the other in a native thread, which ends after ``IDLE_S`` without one."""

    def __init__(self) -> None:
        self.ident = 0
        self.has_ended = False
        self._is_copy = False
        self._jobs: deque[_Job | _Drop] = deque()
        self._current: _Job | _Drop | None = None
        self._is_asleep = False
        self._lock = native.allocate_lock()  # never held during a wait
        self._wake = native.allocate_lock()
        self._wake.acquire()
        # A hub that is busy lets the interpreter's lock go between its callbacks, and takes it back
        # sooner than a thread wakes up. Each time the thread begins to wait for the interval anew.
        if sys.getswitchinterval() == SWITCH_INTERVAL_S:
            sys.setswitchinterval(SHORT_SWITCH_INTERVAL_S)
        while before_first:
            before_first.pop()()
        _alive.add(self)
        try:
            native.start_new_thread(self._work, ())
        except BaseException:  # the process has as many threads as it may have
            _alive.discard(self)
            raise

    def __repr__(self) -> str:
        return f"<Thread {self.ident} jobs={len(self._jobs)} idle={self.is_idle}>"

    @property
    def is_idle(self) -> bool:
        """Whether no job is queued or in progress."""
        return self._current is None and not self._jobs

    def submit(self, job: _Job) -> bool:
        """Queue *job*; return False if the thread has ended."""
        with self._lock:
            if self.has_ended:
                return False
            self._jobs.append(job)
            self._rouse()
            return True

    def withdraw(self, job: _Job) -> bool:
        """Remove *job* from the queue; return False if it has begun."""
        with self._lock:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            return True

    def end(self) -> None:
        """End the thread after its last job; a destructor may call this."""
        # A collection may call a destructor where this very thread holds the lock.
        if self._lock.acquire(False):
            try:
                self.has_ended = True
                self._rouse()
            finally:
                self._lock.release()
        else:
            _later(self.end)

    def drop(self, held: list[Any]) -> None:
        """Let go of the objects in *held* after the jobs before it; a destructor may call this."""
        if not self._lock.acquire(False):
            _later(partial(self.drop, held))
            return
        try:
            if not self.has_ended:
                self._jobs.append(_Drop(held))
                self._rouse()
                return
        finally:
            self._lock.release()
        _drop(held)

    def after_fork(self) -> None:
        """Mark the thread as ended, in a forked child."""
        # A child has only the thread that forked, and the copy of a lock may be held for ever.
        self._lock = native.allocate_lock()
        self.has_ended = self._is_copy = True

    def _rouse(self) -> None:
        if self._is_asleep:
            self._is_asleep = False
            self._wake.release()

    def _work(self) -> None:
        self.ident = get_ident()
        greenlet = gevent.getcurrent()
        _local.is_ours = True
        while self._next():
            job: Any = self._current
            job.run(greenlet)
            if self._is_copy:  # the call has forked, and this is the child
                fork.end(job.error)
            # Before the greenlet is woken: if the thread is idle, the greenlet may use the object
            # of the job, such as a connection, without the thread.
            self._current = None
            if job.outbox is not None:
                job.outbox.put(job)
            del job
        # A request has a hub in its thread, and so has a callback of the application that waited.
        hub = get_hub_if_exists()
        if hub is not None:
            hub.destroy(destroy_loop=True)
        _alive.discard(self)

    def _next(self) -> bool:
        """Wait for a job and make it the current one; return False if the thread must end."""
        while True:
            with self._lock:
                if self._jobs:
                    self._current = self._jobs.popleft()
                    return True
                if self.has_ended:
                    return False
                self._is_asleep = True
            if not self._wake.acquire(timeout=IDLE_S):
                with self._lock:
                    if self._is_asleep:
                        self.has_ended = True
                        return False
                self._wake.acquire()  # released between the timeout and the lock


def _later(func: Callable[[], object]) -> None:
    """Call *func* in the hub of the main thread."""
    if _main_hub is not None:
        _main_hub.loop.run_callback_threadsafe(func)


before_first: list[Callable[[], object]] = []  # is called before the first thread begins
_alive: set[Thread] = set()
_all_places: list["Places"] = []
_requests = 0  # requests in native threads
_idle: list[Thread] = []  # threads that no OwnThread keeps; the last used one is at the end


def _take() -> Thread:
    while _idle:
        with suppress(IndexError):  # another native thread has taken it since
            thread = _idle.pop()
            if not thread.has_ended:
                return thread
    return Thread()


def _give_back(thread: Thread) -> None:
    if thread.is_idle and len(_idle) < MAX_IDLE:
        _idle.append(thread)
    else:
        thread.end()


def _drop(held: list[Any]) -> None:
    """Let go of the objects in *held* in any thread."""
    thread = _take()
    thread.drop(held)
    _give_back(thread)


def run(func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """
    Call *func* in a native thread while this greenlet waits in the hub.

    An interrupted greenlet goes on at once, and the call goes on as well.

    :param func: the function to call.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :returns: the result of *func*.
    :raises DeadlineExceeded: the request's deadline passed first.
    """
    return _hand_over(func, args, kwargs)


def run_to_the_end(func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """
    Do what :func:`run` does, but wait for the end of the call in any case.

    That is for calls that must not go on while the greenlet goes on; they end by themselves.

    :param func: the function to call.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :returns: the result of *func*.
    :raises DeadlineExceeded: the request's deadline passed meanwhile.
    """
    return _hand_over(func, args, kwargs, is_left=False)


class Places:
    """
    Run requests in native threads, each as its greenlet.

    :param number: how many run at once, int; while one waits in a hub it is none of them.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._free = SimpleQueue()
        self.renew()
        _all_places.append(self)

    def run(self, wait_s: float, func: Callable[..., T], *args: Any) -> T:
        """
        Call *func*, all of a request, in a native thread when there is a place.

        It is called here where there are ``MAX_REQUESTS`` of them already.

        :param wait_s: how long it waits for a place, seconds, float. Then it goes on without one:
            those of a short page would wait for long ones otherwise.
        :param func: the function to call.
        :param args: its positional arguments.
        :returns: the result of *func*.
        """
        global _requests
        me = getcurrent()
        has_place = take_place(self._free, wait_s)
        if _requests >= MAX_REQUESTS:
            if has_place:
                self._free.put(None)
            return func(*args)
        outbox = _outbox()
        _requests += 1
        interrupted.add(me)  # the deadline ends the waits in the thread
        try:
            job = _Job(func, args, outbox, self._free, has_place)
            return _wait_for_thread(job, outbox, True, False)  # type: ignore[no-any-return]
        finally:
            interrupted.discard(me)
            _requests -= 1

    def is_used(self) -> bool:
        """Return whether a request runs."""
        return self._free.qsize() < self._number

    def renew(self) -> None:
        """Begin anew, in a forked child: the places of the parent's requests are not given back."""
        while not self._free.empty():
            self._free.get()
        for _ in range(self._number):
            self._free.put(None)


def is_offloaded() -> bool:
    """Return whether the caller runs in a thread of this module."""
    return hasattr(_local, "is_ours")


def main_hub() -> Any:
    """Return the hub of the main thread, None if nothing was offloaded in this process yet."""
    return _main_hub


def call_in_main_hub(func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """
    Call *func* in the main hub, from a thread of this module, and wait for its end.

    :param func: a function that does not wait.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :returns: the result of *func*.
    """
    return _call_there(lambda call: call(), func, args, kwargs)


def run_in_main_hub(func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """
    Call *func* in a greenlet of the main hub, from a thread of this module, and wait for its end.

    :param func: a function that may wait in the hub.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :returns: the result of *func*.
    """
    return _call_there(gevent.spawn, func, args, kwargs)


def _call_there(
    begin: Callable[[Callable[[], None]], Any],
    func: Callable[..., T],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> T:
    if _main_hub is None:
        return func(*args, **kwargs)
    has_ended = Event()
    results: list[T] = []
    errors: list[BaseException] = []
    begun: list[Any] = []
    context = copy_context()

    def call() -> None:
        try:
            results.append(context.run(func, *args, **kwargs))
        except BaseException as error:
            errors.append(error)
        finally:
            has_ended.set()

    def start() -> None:
        begun.append(begin(call))
        if isinstance(begun[0], gevent.Greenlet):  # it may be killed before it has begun
            begun[0].link(lambda _: has_ended.set())

    _main_hub.loop.run_callback_threadsafe(start)
    try:
        has_ended.wait()
    except BaseException:
        for each in filter(None, begun):
            _main_hub.loop.run_callback_threadsafe(partial(each.kill, block=False))
        raise
    if errors:
        raise errors.pop()
    if not results:
        raise gevent.GreenletExit
    return results.pop()


class Turns:
    """
    Computations in native threads, in C code that lets other threads run Python meanwhile.

    :param a_core: how many run at once for each core, int.
    :param is_left: whether a greenlet that is interrupted goes on at once, and the computation as
        well; otherwise it waits for its end.
    :param has_deadline: whether the request's deadline ends the wait. Default True.
    """

    def __init__(self, a_core: int, *, is_left: bool, has_deadline: bool = True) -> None:
        self._number = a_core * cores()
        self._is_left, self._has_deadline = is_left, has_deadline
        self.turns = Semaphore(self._number)
        _all_turns.append(self)

    def run(self, func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """
        Call *func* in a native thread, when it is its turn.

        A turn ends with the call, not with the wait of a greenlet that is interrupted.

        :param func: the function to call.
        :param args: its positional arguments.
        :param kwargs: its keyword arguments.
        :returns: the result of *func*.
        :raises DeadlineExceeded: the request's deadline passed first.
        """
        return _hand_over(
            func, args, kwargs, self.turns,
            is_left=self._is_left, has_deadline=self._has_deadline,
        )  # fmt: skip

    def run_if(self, is_long: bool, func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """
        Do what :meth:`run` does if the call takes long, and call *func* here otherwise.

        :param is_long: whether a thread is worth it, bool.
        :param func: the function to call.
        :param args: its positional arguments.
        :param kwargs: its keyword arguments.
        :returns: the result of *func*.
        :raises DeadlineExceeded: the request's deadline passed first.
        """
        return self.run(func, *args, **kwargs) if is_long else func(*args, **kwargs)

    def renew(self) -> None:
        """Begin anew, in a forked child: greenlets of the parent hold the copies of the turns."""
        self.turns = Semaphore(self._number)


_all_turns: list[Turns] = []


def _hand_over(
    func: Callable[..., T],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    turns: Semaphore | None = None,
    *,
    is_left: bool = True,
    has_deadline: bool = True,
) -> T:
    # A thread of ours that waited for something has a hub, and calls directly all the same: it has
    # the only turn, perhaps.
    if not can_wait() or is_offloaded():
        return func(*args, **kwargs)
    # Not in a variable: a greenlet that is killed would be in a cycle with its traceback.
    if not has_deadline:
        interrupted.add(gevent.getcurrent())  # no deadline ends its waits
    try:
        if turns is not None:
            wait_in(turns.acquire) if has_deadline else turns.acquire()
        outbox = _outbox()
        job = _Job(partial(func, **kwargs) if kwargs else func, args, outbox)
        job.turns = turns
        return _wait_for_thread(job, outbox, is_left, has_deadline)  # type: ignore[no-any-return]
    finally:
        interrupted.discard(gevent.getcurrent())


def _wait_for_thread(job: _Job, outbox: _Outbox, is_left: bool, has_deadline: bool) -> Any:
    try:
        thread = _take()
        while not thread.submit(job):
            thread = _take()
    except BaseException:  # no further thread can be started
        if job.turns is not None:
            job.turns.release()
        if job.places is not None and job.has_place:
            job.places.put(None)
        raise
    outbox.expect()
    try:
        return job.wait(has_deadline)
    except BaseException:
        while not is_left and not job.is_done:
            with suppress(BaseException):
                job.waiter.get()
        raise
    finally:
        outbox.forget()
        _give_back(thread)


class OwnThread:
    """
    Run the calls of one object, such as a database connection, one by one in one native thread.

    The thread is taken at the first call, and given back by :meth:`release` or the destructor.
    """

    def __init__(self) -> None:
        self._thread: Thread | None = None

    def __repr__(self) -> str:
        return f"<OwnThread {self._thread}>"

    def __del__(self) -> None:
        self.release()

    def __reduce__(self) -> Any:
        return OwnThread, ()  # a copy of its object has another one

    def release(self) -> None:
        """Give the thread back."""
        thread, self._thread = self._thread, None
        if thread is not None and not thread.has_ended:
            _give_back(thread)

    @property
    def is_idle(self) -> bool:
        """Whether no call is queued or in progress."""
        thread = self._thread
        return thread is None or thread.is_idle or thread.has_ended

    def is_current(self) -> bool:
        """Return whether the caller is a callback that runs in this thread."""
        thread = self._thread
        return thread is not None and thread.ident == get_ident()

    def drop(self, held: list[Any]) -> None:
        """
        Let go of objects in the thread, after the calls before it, and do not wait for that.

        :param held: a list with the only references to the objects, whose destructors may block.
        """
        drop = _drop if self._thread is None else self._thread.drop
        drop(held)

    def call(
        self,
        func: Callable[..., T],
        *args: Any,
        interrupt: Callable[[], object] | None = None,
        is_cleanup: bool = False,
    ) -> T:
        """
        Call *func* in the thread, after the calls before it, while this greenlet waits in the hub.

        An interrupted greenlet withdraws the call if it has not begun. Otherwise it waits at most
        ``ABANDON_S`` for its end, because nothing else may use the object meanwhile.

        :param func: the function to call.
        :param args: its arguments.
        :param interrupt: requests the end of the call; called in this greenlet. Default: None.
        :param is_cleanup: make the call even after the request's deadline. Default False.
        :returns: the result of *func*.
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


def cores() -> int:
    """Return on how many processors this process may run."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _end_idle() -> None:
    """End the threads that are idle, and wait for their ends."""
    # The interpreter would drop their hubs at its own end, in the main thread, and crash.
    ending = [thread for thread in list(_alive) if thread.is_idle]
    for thread in ending:
        thread.end()
    until_s = monotonic() + END_S
    while any(thread in _alive for thread in ending) and monotonic() < until_s:
        native.sleep(0.001)


atexit.register(_end_idle)


def _after_fork_in_child() -> None:
    global _main_hub, _requests
    _main_hub, _requests = None, 0
    for turns in _all_turns:
        turns.renew()
    for places in _all_places:
        places.renew()
    for thread in _alive:
        thread.after_fork()
    _alive.clear()
    _idle.clear()
    _local.__dict__.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
