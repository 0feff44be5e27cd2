"""
Locks and events for greenlets and native threads alike, as those of threading are for threads.

gevent's belong to the hub of the thread that used them first, and notify in it. Where a native
thread shares them, as code in an offload thread does, notifications are lost and waits fail. These
keep a list of who waits; whoever releases a lock wakes the first one in its own hub or thread.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import gevent
from gevent.hub import Waiter
from gevent.monkey import get_original
from greenlet import getcurrent

from greenline.hub.gevent_compat import get_hub_if_exists, green_thread, green_threading

NO_LIMIT = -1

get_ident: Callable[[], int] = get_original("_thread", "get_ident")
# Not itself: greenline.hub.patching exchanges an original among the globals.
_allocate_lock: Callable[[], Any] = partial(get_original("_thread", "allocate_lock"))
_main_ident = get_ident()  # this module is imported by the thread that patches
_process = object()  # another one after a fork


def is_main_thread() -> bool:
    """Return whether the caller runs in the thread of the worker's hub."""
    return get_ident() == _main_ident


class _Wait:
    """
    A wait of a greenlet, or of a native thread without a hub.

    :param lock: the lock that it waits for. Default: None.
    """

    __slots__ = ("_alarm", "_hub", "_lock", "_process", "_waiter", "has_ended", "is_woken")

    def __init__(self, lock: "Lock | None" = None) -> None:
        self._lock = lock
        self._process = _process
        self.is_woken = self.has_ended = False
        self._hub: Any = get_hub_if_exists()
        if self._hub is None and is_main_thread():
            self._hub = gevent.get_hub()
        if self._hub is None:
            self._waiter: Any = _allocate_lock()
            self._waiter.acquire()
            return
        self._waiter = Waiter(self._hub)
        # In another thread, nothing else may keep the loop running.
        self._alarm: Any = None if self._hub.main_hub else self._hub.loop.async_()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until it is woken, and return whether it is."""
        if self._hub is None:
            self._waiter.acquire(True, NO_LIMIT if timeout_s is None else timeout_s)
        elif self._alarm is None:
            self._wait_in_hub(timeout_s)
        else:
            self._alarm.start(self._waiter.switch, None)
            try:
                if not self.is_woken:
                    self._wait_in_hub(timeout_s)
            finally:
                self._alarm.stop()
                self._alarm.close()
        return self.is_woken

    def _wait_in_hub(self, timeout_s: float | None) -> None:
        if timeout_s is None:
            self._waiter.get()
        else:
            with gevent.Timeout(timeout_s, False):  # type: ignore[arg-type]
                self._waiter.get()

    def wake(self) -> bool:
        """End the wait, and return whether there is one: not in another process, or a dead hub."""
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
        elif is_main_thread():
            loop.run_callback(self._resume)
        else:
            loop.run_callback_threadsafe(self._resume)
        return True

    def _resume(self) -> None:
        """Go on with the greenlet, or with the wait if another one has the lock by now."""
        if self.has_ended:
            return
        lock = self._lock
        if lock is not None and lock.locked():
            self.is_woken = False
            lock.put_first(self)
        else:
            self._waiter.switch(None)


class Lock:
    """What ``threading.Lock`` is after the patching."""

    __slots__ = ("__weakref__", "_native", "_waits")

    def __init__(self) -> None:
        self._native = _allocate_lock()
        self._waits: list[_Wait] = []  # its methods are atomic

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
        if timeout != NO_LIMIT:
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
        self._native.release()
        if self._waits:
            _wake_one(self._waits)

    def __exit__(self, *_: object) -> None:
        self._native.release()
        if self._waits:
            _wake_one(self._waits)

    def locked(self) -> bool:
        """Return whether it is acquired."""
        return bool(self._native.locked())

    # A condition asks this, and otherwise tries to acquire the lock, which may switch.
    _is_owned = locked

    def _wait(self, timeout: float) -> bool:
        until = None if timeout == NO_LIMIT else monotonic() + timeout
        mine = _Wait(self)
        self._waits.append(mine)
        try:
            while not self._native.acquire(False):
                remaining = None if until is None else until - monotonic()
                if (remaining is not None and remaining <= 0) or not mine.wait(remaining):
                    return False
                if self._native.acquire(False):
                    return True
                # Another one was faster: the first place is kept.
                mine = _Wait(self)
                self._waits.insert(0, mine)
            return True
        finally:
            mine.has_ended = True
            try:
                self._waits.remove(mine)
            except ValueError:
                # It was woken. If it goes without the lock, the next one gets it.
                if not self._native.locked():
                    _wake_one(self._waits)

    def put_first(self, wait: _Wait) -> None:
        """Let *wait* be the next one that is woken."""
        self._waits.insert(0, wait)
        if not self._native.locked():  # released since by a native thread
            _wake_one(self._waits)

    def _at_fork_reinit(self) -> None:
        self._native._at_fork_reinit()
        self._waits.clear()


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
        mine = _Wait()
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


def _wake_one(waits: list[_Wait]) -> None:
    """Wake the first one that can be woken."""
    try:
        while not waits.pop(0).wake():
            pass
    except IndexError:
        pass


def _after_fork_in_child() -> None:
    global _main_ident, _process
    _main_ident, _process = get_ident(), object()


os.register_at_fork(after_in_child=_after_fork_in_child)
