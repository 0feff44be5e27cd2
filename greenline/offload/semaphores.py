"""
Wait in the hub for the semaphores of ``multiprocessing``, of which its locks and queues are made.

The greenlets of one process wait in order. A release by one of them wakes the first, and the first
alone polls: a semaphore has no descriptor, and another process may release it.
"""

import _multiprocessing  # type: ignore[import-not-found]
import os
from collections import deque
from math import inf
from time import monotonic
from typing import Any

from greenlet import getcurrent

from greenline.hub.backoff import Backoff
from greenline.hub.gevent_compat import get_hub_if_exists
from greenline.hub.thread_locks import Event

MIN_PAUSE_S, MAX_PAUSE_S = 0.001, 0.005  # between two attempts of the first that waits
RECURSIVE_LOCK = 0  # a kind of SemLock

# By handle, as two objects may have the same semaphore; of the semaphores that are waited for.
_waiting: dict[int, deque[Event]] = {}


def install() -> None:
    """Replace the class of what is made from now on. In the arbiter, what is preloaded as well."""
    _multiprocessing.SemLock = SemLock


def hub_to_wait_in() -> Any:
    """Return this thread's hub; None in a native thread without one and in the hub itself."""
    hub = get_hub_if_exists()
    return None if hub is getcurrent() else hub


class SemLock(_multiprocessing.SemLock):  # type: ignore[misc]
    """A semaphore of multiprocessing; greenlets wait for it in the hub."""

    _owner: Any = None

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Acquire the semaphore as ``multiprocessing.Lock.acquire`` does, with its parameters."""
        if hub_to_wait_in() is None:
            is_acquired = bool(super().acquire(block, timeout))
            if is_acquired and self.kind == RECURSIVE_LOCK:
                self._owner = getcurrent()  # its thread may have a hub when it acquires it again
            return is_acquired
        # Behind those that wait: a greenlet that takes it again at once would keep them out.
        must_queue = block and self.handle in _waiting and not self._is_own()
        if not must_queue and self._try():
            return True
        return block and self._wait(timeout)

    def release(self) -> None:
        """Release the semaphore as ``multiprocessing.Lock.release`` does."""
        if self.kind == RECURSIVE_LOCK and self._is_mine():
            if self._owner not in (None, getcurrent()):
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self._count() == 1:
                self._owner = None
        super().release()
        if _waiting:
            self._wake_first()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *args: object) -> None:
        super().__exit__(*args)  # the block has acquired it, so no other greenlet releases it
        if _waiting:
            self._wake_first()

    def _is_own(self) -> bool:
        return self.kind == RECURSIVE_LOCK and self._is_mine() and self._owner is getcurrent()

    def _try(self) -> bool:
        if self.kind == RECURSIVE_LOCK:
            # In C the owner is a native thread, which all greenlets share.
            if self._is_mine() and self._owner is not getcurrent():
                return False
            if super().acquire(False):
                self._owner = getcurrent()
                return True
            return False
        return bool(super().acquire(False))

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait in the hub, without the request's deadline: *timeout_s* alone limits this wait."""
        until_s = inf if timeout_s is None else monotonic() + timeout_s
        queue = _waiting.setdefault(self.handle, deque())
        mine = Event()
        queue.append(mine)
        backoff = Backoff(MIN_PAUSE_S, MAX_PAUSE_S)
        try:
            while queue[0] is not mine or not self._try():
                now_s = monotonic()
                if now_s >= until_s:
                    return False
                pause_s = min(until_s - now_s, backoff.next_s() if queue[0] is mine else inf)
                mine.wait(None if pause_s == inf else pause_s)
                mine.clear()
            return True
        finally:
            queue.remove(mine)
            if queue:
                queue[0].set()  # it polls from now on, and there may be one more to acquire
            elif _waiting.get(self.handle) is queue:  # not in a child that was forked meanwhile
                del _waiting[self.handle]

    def _wake_first(self) -> None:
        if queue := _waiting.get(self.handle):
            queue[0].set()


os.register_at_fork(after_in_child=_waiting.clear)
