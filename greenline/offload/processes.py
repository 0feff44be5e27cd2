"""
Let greenlets wait for child processes: ``os.system`` and all of ``os.wait*`` wait in the hub.

Native threads would not do: as soon as anything has watched a child, libev reaps every child at
SIGCHLD, and a thread in ``waitpid`` would miss its own.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from resource import struct_rusage
from time import time
from typing import Any, TypeVar

import gevent
from gevent.event import AsyncResult
from gevent.monkey import get_original

from greenline.hub.backoff import Backoff
from greenline.hub.deadline import wait_for, wait_in
from greenline.hub.gevent_compat import watched_children
from greenline.offload.threads import can_wait

ANY_CHILD = -1
ENDS = {os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED}
UNKNOWN_USAGE = struct_rusage([0] * 16)

T = TypeVar("T")

_system: Callable[[Any], int] = os.system
_wait: Callable[[], tuple[int, int]] = os.wait
_waitpid: Callable[[int, int], tuple[int, int]] = os.waitpid  # that of gevent, after its patches
_native_waitpid: Callable[[int, int], tuple[int, int]] = get_original("os", "waitpid")
_wait4: Callable[[int, int], tuple[int, int, struct_rusage]] = os.wait4
_waitid: Callable[[int, int, int], Any] = getattr(os, "waitid", None)  # type: ignore[assignment]  # macOS


def system(command: Any) -> int:
    """
    Run *command* in a shell as :func:`os.system` does; wait in the hub.

    An interrupted greenlet goes on at once, and the command goes on as well.
    """
    if not can_wait():
        return _system(command)
    sys.audit("os.system", command)
    shell = [b"/bin/sh", b"-c", os.fsencode(command)]
    process = subprocess.Popen(shell, close_fds=False, restore_signals=False)
    code = process.wait()
    # The form of os.wait(): the signal in the low byte, or the exit code in the high byte.
    return code << 8 if code >= 0 else -code


def waitpid(pid: int, options: int, /) -> tuple[int, int]:
    """Wait for a child process in the hub, as :func:`os.waitpid` does, with its parameters."""
    if not can_wait():
        # As the interpreter ends, multiprocessing's resource tracker is waited for (Python 3.13),
        # and gevent's waitpid() would fail: no greenlet switches any more.
        return (_native_waitpid if sys.is_finalizing() else _waitpid)(pid, options)
    if options & os.WNOHANG:
        return _try_waitpid(pid, options)
    loop: Any = gevent.get_hub().loop
    # Not by watchers for any child: libev reports each child to all of them, so that two callers
    # would return the same one.
    if options or pid <= 0 or not loop.default:
        return wait4(pid, options)[:2]
    # Critical section: no greenlet switch between here and the start of the watcher in wait_for().
    # The watcher is made before the attempt: from then on libev notices the end of each child.
    with loop.child(pid, False) as watcher:
        ended = _try_waitpid(pid, os.WNOHANG)
        if ended[0]:
            return ended
        wait_for(watcher)
        status = watcher.rpid, watcher.rstatus
    _note_end(*status)
    return status


def wait() -> tuple[int, int]:
    """Wait for any child process in the hub, as :func:`os.wait` does."""
    return waitpid(ANY_CHILD, 0) if can_wait() else _wait()


def _try_waitpid(pid: int, options: int) -> tuple[int, int]:
    ended, status = _waitpid(pid, options)
    if ended:
        _note_end(ended, status)
    return ended, status


def wait3(options: int) -> tuple[int, int, struct_rusage]:
    """Wait for any child process in the hub, as :func:`os.wait3` does, with its parameters."""
    return wait4(ANY_CHILD, options)


def wait4(pid: int, options: int) -> tuple[int, int, struct_rusage]:
    """
    Wait for a child process in the hub, as :func:`os.wait4` does, with its parameters.

    The resource usage is all zeros for a child that libev has reaped: one that ended before this
    call, or after the last attempt while libev was about to reap another one.
    """
    if not can_wait():
        return _wait4(pid, options)
    return _reap_before_libev(partial(_try_wait4, pid, options | os.WNOHANG), options, _ended)


def waitid(idtype: int, id: int, options: int, /) -> Any:  # noqa: A002
    """Wait for a child process in the hub, as :func:`os.waitid` does, with its parameters."""
    if not can_wait():
        return _waitid(idtype, id, options)
    attempt = partial(_try_waitid, idtype, id, options | os.WNOHANG)
    return _reap_before_libev(attempt, options, bool)


def _ended(result: tuple[int, int, struct_rusage]) -> bool:
    return result[0] != 0


def _reap_before_libev(attempt: Callable[[], T], options: int, is_done: Callable[[T], bool]) -> T:
    """Call *attempt* until it is done; once if *options* have WNOHANG."""
    # libev's watcher has no resource usage and no details of the end, so *attempt* must reap the
    # child before libev does: in each round of the loop, ahead of libev.
    loop: Any = gevent.get_hub().loop
    if loop.default:
        # Before the first attempt, so that the end of a child wakes the loop.
        loop.install_sigchld()
    result = attempt()
    if options & os.WNOHANG or is_done(result):
        return result
    # Only the default loop is woken by SIGCHLD. In another one the child is polled.
    if not loop.default:
        backoff = Backoff()
        while not is_done(result := attempt()):
            backoff.wait()
        return result
    found: AsyncResult[T] = AsyncResult()

    def try_again() -> None:
        if found.ready():
            return
        try:
            result = attempt()
        except OSError as error:
            found.set_exception(error)
        else:
            if is_done(result):
                found.set(result)

    # Of equal priority, libev calls the watcher last that became pending first. So a check watcher
    # of the highest priority is called before the one that reaps the children.
    with loop.check(priority=loop.MAXPRI) as watcher:
        watcher.start(try_again)
        soon = loop.run_callback(try_again)  # libev may have reaped the child after the attempt
        try:
            wait_in(found.wait)
        finally:
            soon.stop()
    return found.get()  # type: ignore[return-value]


def _try_wait4(pid: int, options: int) -> tuple[int, int, struct_rusage]:
    try:
        ended, status, usage = _wait4(pid, options)
    except ChildProcessError:
        # libev may have reaped the child: then gevent has the status.
        return (*_try_waitpid(pid, options), UNKNOWN_USAGE)
    if ended:
        _note_end(ended, status)
    return ended, status, usage


def _try_waitid(idtype: int, id: int, options: int) -> Any:  # noqa: A002
    try:
        result = _waitid(idtype, id, options)
    except ChildProcessError:
        if idtype not in (os.P_PID, os.P_ALL) or not options & os.WEXITED:
            raise
        pid, status = _try_waitpid(id if idtype == os.P_PID else ANY_CHILD, os.WNOHANG)
        if pid and options & os.WNOWAIT:
            # WNOWAIT leaves the child to a later wait: give the status back to gevent.
            watched_children[pid] = (pid, status, time())
        return _as_waitid(pid, status) if pid else None
    if result is not None and not options & os.WNOWAIT and result.si_code in ENDS:
        exited = result.si_code == os.CLD_EXITED
        _note_end(result.si_pid, result.si_status << 8 if exited else result.si_status)
    return result


def _as_waitid(pid: int, status: int) -> Any:
    """Return the result of ``waitid`` for a status of ``waitpid``."""
    if os.WIFEXITED(status):
        number, code = os.WEXITSTATUS(status), os.CLD_EXITED
    else:
        number = os.WTERMSIG(status)
        code = os.CLD_DUMPED if os.WCOREDUMP(status) else os.CLD_KILLED
    return os.waitid_result((pid, os.getuid(), signal.SIGCHLD, number, code))


def _note_end(pid: int, status: int) -> None:
    """Note the end of a child that was reaped here."""
    # gevent may watch the child as well: a Popen that waits for it would never end.
    if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
        return
    watcher = watched_children.get(pid)
    # Not a tuple: the callback of the watcher has not run yet, or will never run.
    if watcher is not None and not isinstance(watcher, tuple):
        watcher.rpid, watcher.rstatus = pid, status
        watcher.callback(*watcher.args)
    watched_children.pop(pid, None)
