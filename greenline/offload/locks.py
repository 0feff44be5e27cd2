"""
Let greenlets wait for file locks: a lock that is held is tried again, after pauses in the hub.

The holder may be another greenlet, which cannot release the lock while the hub is blocked.
Native threads would not do either: one would be needed for each waiter.

The greenlets of one process wait for a file in order: the first tries often, the others seldom. A
release cannot be noticed, as it may be the close of the file or be in another process.
"""

import errno
import fcntl
import os
from collections import deque
from collections.abc import Callable, Hashable
from time import monotonic
from typing import Any, TypeVar

from greenline.hub.backoff import Backoff
from greenline.hub.deadline import wait_in
from greenline.hub.thread_locks import Event
from greenline.offload.threads import can_wait

HELD_ERRORS = {errno.EAGAIN, errno.EACCES}
# The commands that wait, and their counterparts that do not wait.
WAITING_COMMANDS = {fcntl.F_SETLKW: fcntl.F_SETLK}
if hasattr(fcntl, "F_OFD_SETLKW"):
    WAITING_COMMANDS[fcntl.F_OFD_SETLKW] = fcntl.F_OFD_SETLK

MIN_PAUSE_S, MAX_PAUSE_S = 0.001, 0.005  # between two attempts of the first that waits
# It tries less often the longer it is the first: a lock that is held for hours, such as that of the
# one process that does something for all, costs its waiters little.
PAUSE_SHARE, MAX_LONG_PAUSE_S = 0.03, 0.05
# Of the others, which try as well: one that changes its shared lock into an exclusive one may get
# it while the first, which waits for that shared lock, cannot.
MIN_LATER_PAUSE_S, MAX_LATER_PAUSE_S = 0.1, 0.2

T = TypeVar("T")

# By the file, and the part of it, that is waited for.
_waiting: dict[Hashable, deque[Event]] = {}

_fcntl: Callable[..., Any] = fcntl.fcntl
_flock: Callable[..., None] = fcntl.flock
_lockf: Callable[..., None] = fcntl.lockf
_os_lockf: Callable[..., None] = os.lockf


def _until_free(attempt: Callable[[], T], fd: Any, part: Hashable, is_shared: bool = False) -> T:
    """
    Call *attempt* until the lock is not held elsewhere.

    :param fd: the file, a descriptor or an object that has one.
    :param part: which part of the file is locked, and how: a queue is for one of them.
    :param is_shared: whether the lock is one that several may hold.
    """
    key = None
    # Behind those that wait: a greenlet that takes it again at once would keep them out. A shared
    # lock is tried at once: the system grants it beside others even while an exclusive one waits.
    may_try = is_shared or not _waiting or (key := _key(fd, part)) not in _waiting
    if may_try and (found := _try(attempt)):
        return found[0]
    return _wait(attempt, key or _key(fd, part))


def _key(fd: Any, part: Hashable) -> Hashable:
    status = os.fstat(fd if isinstance(fd, int) else fd.fileno())
    return status.st_dev, status.st_ino, part


def _try(attempt: Callable[[], T]) -> tuple[T] | None:
    try:
        return (attempt(),)
    except OSError as error:
        if error.errno not in HELD_ERRORS:
            raise
    return None


def _wait(attempt: Callable[[], T], key: Hashable) -> T:
    queue = _waiting.setdefault(key, deque())
    mine = Event()
    queue.append(mine)
    first = Backoff(MIN_PAUSE_S, MAX_PAUSE_S)
    later = Backoff(MIN_LATER_PAUSE_S, MAX_LATER_PAUSE_S)
    first_s = None
    try:
        while True:
            if queue[0] is mine:
                now = monotonic()
                first_s = first_s or now
                pause_s = max(first.next_s(), min(PAUSE_SHARE * (now - first_s), MAX_LONG_PAUSE_S))
            else:
                pause_s = later.next_s()
            wait_in(mine.wait, pause_s)
            mine.clear()
            if found := _try(attempt):
                return found[0]
    finally:
        queue.remove(mine)
        for first_one in tuple(queue)[:1]:  # native threads may empty it meanwhile
            first_one.set()  # it tries often from now on, and may share the lock
        if not queue and _waiting.get(key) is queue:  # not in a child that was forked meanwhile
            del _waiting[key]


def flock(fd: Any, operation: int, /) -> None:
    """Lock a file as :func:`fcntl.flock` does, with the same parameters; wait in the hub."""
    if operation & (fcntl.LOCK_NB | fcntl.LOCK_UN) or not can_wait():
        _flock(fd, operation)
    else:
        is_shared = bool(operation & fcntl.LOCK_SH)
        _until_free(lambda: _flock(fd, operation | fcntl.LOCK_NB), fd, "flock", is_shared)


def lockf(fd: Any, cmd: int, len: int = 0, start: int = 0, whence: int = 0, /) -> None:  # noqa: A002
    """Lock a range of a file as :func:`fcntl.lockf` does, with its parameters; wait in the hub."""
    if cmd & (fcntl.LOCK_NB | fcntl.LOCK_UN) or not can_wait():
        _lockf(fd, cmd, len, start, whence)
    else:
        place = (len, start, whence)
        part = (*place, _position(fd) if whence == os.SEEK_CUR else 0)
        is_shared = bool(cmd & fcntl.LOCK_SH)
        _until_free(lambda: _lockf(fd, cmd | fcntl.LOCK_NB, *place), fd, part, is_shared)


def fcntl_(fd: Any, cmd: int, arg: Any = 0, /) -> Any:
    """Act as :func:`fcntl.fcntl`, with the same parameters; wait for a lock in the hub."""
    if cmd not in WAITING_COMMANDS or not can_wait():
        return _fcntl(fd, cmd, arg)
    part = arg if isinstance(arg, int | str) else bytes(arg)
    return _until_free(lambda: _fcntl(fd, WAITING_COMMANDS[cmd], arg), fd, (cmd, part))


def os_lockf(fd: int, command: int, length: int, /) -> None:
    """Lock a range of a file as :func:`os.lockf` does, with its parameters; wait in the hub."""
    if command != os.F_LOCK or not can_wait():
        _os_lockf(fd, command, length)
    else:
        part = (_position(fd), length)
        _until_free(lambda: _os_lockf(fd, os.F_TLOCK, length), fd, part)


def _position(fd: Any) -> int:
    """Return where in the file the descriptor is, at which a range may begin."""
    try:
        return os.lseek(fd if isinstance(fd, int) else fd.fileno(), 0, os.SEEK_CUR)
    except OSError:  # a pipe, or what the lock fails of as well
        return 0


os.register_at_fork(after_in_child=_waiting.clear)
