"""
Locks, events and queues for greenlets and native threads alike, as threading's are for threads.

gevent's belong to the hub of the thread that used them first, and notify in it. Where a native
thread shares them, as code in an offload thread does, notifications are lost and waits fail. These
keep a list of those that wait; a release wakes the first one, in its own hub or thread.
"""

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty
from time import monotonic
from types import GenericAlias
from typing import Any

import gevent
from gevent.hub import Waiter
from gevent.monkey import get_original
from greenlet import getcurrent

from greenline.hub.gevent_compat import get_hub_if_exists, green_thread, green_threading

NO_LIMIT = -1
# A lock that was handed over to the hub of another native thread is taken back after these seconds:
# that hub may stand still.
TAKE_BACK_S = 0.05

get_ident: Callable[[], int] = get_original("_thread", "get_ident")
# Not itself: greenline.hub.patching exchanges an original among the globals.
_allocate_lock: Callable[[], Any] = partial(get_original("_thread", "allocate_lock"))
TIMEOUT_MAX: float = get_original("_thread", "TIMEOUT_MAX")
_main_ident = get_ident()  # this module is imported by the thread that patches
_process = object()  # another one after a fork
_main_hub: Any = None  # once something has waited in it


def is_main_thread() -> bool:
    """Return whether the caller runs in the thread of the worker's hub."""
    return get_ident() == _main_ident


def main_ident() -> int:
    """Return the system's id of the thread of the worker's hub."""
    return _main_ident


class _Wait:
    """
    A wait of a greenlet, or of a native thread without a hub.

    :param shared: what it waits for, or None where it does not matter who is faster.
    :param was_passed_over: whether another one was faster before.
    """

    __slots__ = (
        "_alarm", "_claim", "_hub", "_possession", "_process", "_shared", "_waiter",
        "has_ended", "has_lock", "is_woken", "was_passed_over",
    )  # fmt: skip

    def __init__(self, shared: "_Shared | None", was_passed_over: bool = False) -> None:
        self._shared = shared
        self.was_passed_over = was_passed_over
        self._process = _process
        self._claim, self._possession = [None], [None]
        self.is_woken = self.has_lock = self.has_ended = False
        self._hub: Any = get_hub_if_exists()
        if is_main_thread():
            global _main_hub
            self._hub = _main_hub = gevent.get_hub()
        self._alarm: Any = None
        if self._hub is None:
            self._waiter: Any = _allocate_lock()
            self._waiter.acquire()
            return
        self._waiter = Waiter(self._hub)
        if not self._hub.main_hub:  # there, nothing else may keep the loop running
            self._alarm = self._hub.loop.async_()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until it is woken, and return whether it is."""
        if self._hub is None:
            self._waiter.acquire(True, NO_LIMIT if timeout_s is None else timeout_s)
        elif self._alarm is None:
            self._wait_in_hub(timeout_s)
        else:
            self._alarm.start(self._waiter.switch, None)
            try:
                self._wait_in_hub(timeout_s)
            finally:
                self._alarm.stop()
                self._alarm.close()
        return self.is_woken

    def _wait_in_hub(self, timeout_s: float | None) -> None:
        # Again, where something else has switched to this greenlet.
        if timeout_s is None:
            while not self.is_woken:
                self._waiter.get()
        else:
            with gevent.Timeout(timeout_s, False):  # type: ignore[arg-type]
                while not self.is_woken:
                    self._waiter.get()

    def wake(self) -> bool:
        """End the wait, and return whether it surely does: its process and its hub may be gone."""
        if self._process is not _process:
            return False
        self.is_woken = True
        if self._hub is None:
            self._waiter.release()
            return True
        loop = self._hub.loop
        if loop is None:
            return False
        if self._alarm is not None:
            self._alarm.send()
            return False
        if is_main_thread():
            loop.run_callback(self._resume)
        else:
            loop.run_callback_threadsafe(self._resume)
        return True

    @property
    def is_next_owner(self) -> bool:
        """Whether the next release hands the lock over to it."""
        # Where another one was faster before, and its hub runs, or the main one can find out.
        return self.was_passed_over and (self._alarm is None or _main_hub is not None)

    def hand_over(self, take_back: Callable[["_Wait"], object]) -> bool:
        """
        Wake it with the lock, and return whether it has the lock now.

        :param take_back: is called with this wait later, if its hub may stand still.
        """
        self.has_lock = self.claim()
        if not self.has_lock:
            return False
        if self._alarm is None or self._process is not _process:
            return self.wake()
        self.wake()
        _main_hub.loop.run_callback_threadsafe(_call_later, take_back, self)
        return True

    def claim(self) -> bool:
        """Return True once: a hand-over and the end of the wait may come at the same moment."""
        return _pop(self._claim)

    def possess(self) -> bool:
        """Return True once: to the wait that has the lock, or to who takes the lock back."""
        return _pop(self._possession)

    def _resume(self) -> None:
        """Go on with the greenlet, or with the wait if another one was faster."""
        if self.has_ended:
            return
        shared = self._shared
        if shared is not None and not self.has_lock and not shared.is_free():
            self.is_woken = False
            self.was_passed_over = True
            shared.put_first(self)
        else:
            self._waiter.switch(None)


class _Shared:
    """What one of those that wait for it takes."""

    __slots__ = ("__weakref__", "_waits")

    def __init__(self) -> None:
        self._waits: list[_Wait] = []  # its methods are atomic

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")

    def is_free(self) -> bool:
        """Return whether one that waits may go on."""
        raise NotImplementedError

    def _take(self) -> bool:
        """Take it if it is free, and return whether it was."""
        raise NotImplementedError

    def put_first(self, wait: _Wait) -> None:
        """Let *wait* be the next one that is woken."""
        self._waits.insert(0, wait)
        if self.is_free():  # since a moment, by a native thread
            _wake_one(self._waits)

    def _wait(self, timeout: float) -> bool:
        until = None if timeout == NO_LIMIT else monotonic() + timeout
        mine, is_taken = _Wait(self), False
        self._waits.append(mine)
        try:
            while not (is_taken := self._take()):
                # Once in any case: code that polls lets the others run.
                if not mine.wait(None if until is None else max(until - monotonic(), 0.0)):
                    break
                if is_taken := (mine.has_lock and mine.possess()) or self._take():
                    break
                # Another one was faster: the first place is kept.
                mine.has_ended = True  # after a timeout, its callback may be still to come
                mine = _Wait(self, was_passed_over=True)
                self._waits.insert(0, mine)
        except BaseException:
            if self._leave(mine, is_taken):
                self._pass_on()
            raise
        return self._leave(mine, is_taken) or is_taken

    def _leave(self, wait: _Wait, is_taken: bool) -> bool:
        """End *wait*, and return whether the lock was handed over to it."""
        wait.has_ended = True
        try:
            self._waits.remove(wait)
        except ValueError:  # it was woken
            if not wait.claim():
                return wait.possess()
            # If it goes with nothing, the next one may go on.
            if not is_taken and self.is_free():
                _wake_one(self._waits)
        return False

    def _pass_on(self) -> None:
        """Release what was handed over."""
        raise NotImplementedError


class Lock(_Shared):
    """What ``threading.Lock`` is after the patching."""

    __slots__ = ("_native",)

    def __init__(self) -> None:
        self._native = _allocate_lock()
        self._waits = []

    def __repr__(self) -> str:
        state = "locked" if self.locked() else "unlocked"
        return f"<{state} {__name__}.Lock object at {id(self):#x} waits={len(self._waits)}>"

    def acquire(self, blocking: bool = True, timeout: float = NO_LIMIT) -> bool:
        """
        Acquire the lock.

        :param blocking: wait for it. Default True.
        :param timeout: how long, seconds, float. Default -1: for ever.
        :returns: whether it is acquired.
        :raises ValueError: *timeout* is negative, or the call does not block.
        :raises OverflowError: *timeout* is too large.
        """
        if timeout != NO_LIMIT and not (blocking and 0 <= timeout <= TIMEOUT_MAX):
            _allocate_lock().acquire(blocking, timeout)  # raises the errors
        if self._native.acquire(False):
            return True
        if blocking:
            return self._wait(timeout)
        # For code that tries again until it has the lock.
        hub = get_hub_if_exists()
        if hub is not None and getcurrent() is not hub:
            gevent.sleep()
        return False

    __enter__ = acquire

    def release(self) -> None:
        """
        Release the lock, which another greenlet or thread may have acquired.

        :raises RuntimeError: it is not locked.
        """
        if self._waits:
            self._pass_on()
        else:
            self._native.release()
            if self._waits:  # since a moment, by a native thread
                _wake_one(self._waits)

    def __exit__(self, *_: object) -> None:
        self.release()

    def locked(self) -> bool:
        """Return whether it is acquired."""
        return bool(self._native.locked())

    # A condition asks this, and otherwise tries to acquire the lock, which may switch.
    _is_owned = locked

    def is_free(self) -> bool:
        return not self._native.locked()

    def _take(self) -> bool:
        return bool(self._native.acquire(False))

    def _pass_on(self) -> None:
        # Code that takes the lock again at once, as a thread does that polls under a lock, would
        # keep out the others for ever: a greenlet gives way where it waits, and not in between.
        try:
            first = self._waits[0]
            if first.is_next_owner and self._native.locked():
                self._waits.remove(first)
                if first.hand_over(self._take_back):
                    return
        except (IndexError, ValueError):  # it is gone, since a moment
            pass
        self._native.release()
        _wake_one(self._waits)

    def _take_back(self, wait: _Wait) -> None:
        """Let another one have the lock that *wait* has not taken."""
        if wait.possess():
            self._pass_on()

    def _at_fork_reinit(self) -> None:
        self._native._at_fork_reinit()
        self._waits.clear()


class SimpleQueue(_Shared):
    """What ``queue.SimpleQueue`` is after the patching; a destructor may put into it."""

    __slots__ = ("_items",)
    __module__ = "queue"
    __class_getitem__: Any = classmethod(GenericAlias)

    def __init__(self) -> None:
        super().__init__()
        self._items: deque[Any] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put *item* into the queue; the others are there for code that passes them to a Queue."""
        self._items.append(item)
        if self._waits:
            _wake_one(self._waits)

    def put_nowait(self, item: Any) -> None:
        """Put *item* into the queue."""
        self.put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """
        Take the first item out of the queue.

        :param block: wait for one. Default True.
        :param timeout: how long, seconds, float. Default None: for ever.
        :raises queue.Empty: there is none.
        :raises ValueError: *timeout* is negative.
        """
        if block and timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        until = None if timeout is None else monotonic() + timeout
        while True:
            try:
                return self._items.popleft()
            except IndexError:
                pass
            remaining = NO_LIMIT if until is None else max(until - monotonic(), 0)
            if not block or not self._wait(remaining):
                raise Empty

    def get_nowait(self) -> Any:
        """Take the first item out of the queue, or raise Empty."""
        return self.get(False)

    def empty(self) -> bool:
        """Return whether there is no item."""
        return not self._items

    def qsize(self) -> int:
        """Return the number of items."""
        return len(self._items)

    def is_free(self) -> bool:
        return bool(self._items)

    _take = is_free  # get() takes an item out


class Event:
    """What ``threading.Event`` is after the patching."""

    # Not the standard library's, which takes five times as long: each start of a thread has one.
    __module__ = "threading"

    def __init__(self) -> None:
        self._flag = False
        self._waits: list[_Wait] = []

    def __repr__(self) -> str:
        kind = type(self)
        state = "set" if self._flag else "unset"
        return f"<{kind.__module__}.{kind.__qualname__} at {id(self):#x}: {state}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._flag

    isSet = is_set  # noqa: N815

    def set(self) -> None:
        """Set it, and wake all that wait."""
        self._flag = True
        while self._waits:
            _wake_one(self._waits)

    def clear(self) -> None:
        """Unset it."""
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        """
        Wait until it is set.

        :param timeout: how long, seconds, float. Default None: for ever.
        :returns: whether it is set, or was since the wait began.
        """
        if self._flag:
            return True
        mine = _Wait(None)
        self._waits.append(mine)
        try:
            return self._flag or mine.wait(timeout and max(timeout, 0.0)) or self._flag
        finally:
            mine.has_ended = True
            with suppress(ValueError):
                self._waits.remove(mine)

    def _at_fork_reinit(self) -> None:
        self._waits.clear()


def install() -> None:
    """Let gevent patch with these locks; call it before the patching."""
    for name in ("LockType", "allocate_lock", "lock"):
        setattr(green_thread, name, Lock)
    for name in ("Lock", "_allocate_lock", "_set_sentinel", "allocate_lock"):
        setattr(green_threading, name, Lock)


def _call_later(function: Callable[[_Wait], object], wait: _Wait) -> None:
    """Call *function* in the main hub, after ``TAKE_BACK_S``."""
    timer = gevent.get_hub().loop.timer(TAKE_BACK_S, ref=False)

    def end() -> None:
        timer.close()
        function(wait)

    timer.start(end)


def _pop(tokens: list[None]) -> bool:
    """Return True to the first caller."""
    try:
        tokens.pop()
    except IndexError:
        return False
    return True


def _wake_one(waits: list[_Wait]) -> None:
    """Wake the first one that can be woken."""
    try:
        while not waits.pop(0).wake():
            pass
    except IndexError:
        pass


def _after_fork_in_child() -> None:
    global _main_hub, _main_ident, _process
    _main_hub, _main_ident, _process = None, get_ident(), object()


os.register_at_fork(after_in_child=_after_fork_in_child)
