"""
Child processes for greenlets: ``os.system``, ``os.waitpid`` and ``os.wait`` wait in the hub.

Not in a thread: as soon as anything has watched a child, libev reaps every child at SIGCHLD, and a
thread in ``waitpid`` would miss its own. A watcher of libev's gets the status in any case.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent

from greenline.deadline import wait_for
from greenline.offload.locks import Pauses
from greenline.offload.threads import can_wait

ANY_CHILD = -1

_system: Callable[[Any], int] = os.system
_wait: Callable[[], tuple[int, int]] = os.wait
_waitpid: Callable[[int, int], tuple[int, int]] = os.waitpid  # gevent's, when it has patched


def system(command: Any) -> int:
    """
    Run *command* in a shell, as :func:`os.system` does; wait in the hub.

    A greenlet that is interrupted goes on at once, and so does the command.
    """
    if not can_wait():
        return _system(command)
    sys.audit("os.system", command)
    shell = [b"/bin/sh", b"-c", os.fsencode(command)]
    process = subprocess.Popen(shell, close_fds=False, restore_signals=False)
    code = process.wait()
    # A status as wait() gives it: the signal in the low byte, or the exit code in the high one.
    return code << 8 if code >= 0 else -code


def waitpid(pid: int, options: int, /) -> tuple[int, int]:
    """Wait for a child process as :func:`os.waitpid` does, in the hub."""
    if options & os.WNOHANG or not can_wait():
        return _waitpid(pid, options)
    loop: Any = gevent.get_hub().loop
    if options or pid == 0 or pid < ANY_CHILD or not loop.default:
        return _look_again(pid, options)
    # The watcher is made first: from then on no child ends without libev's noticing. It is started
    # before the loop runs again.
    with loop.child(max(pid, 0), False) as watcher:
        ended = _waitpid(pid, os.WNOHANG)
        if ended[0]:
            return ended
        wait_for(watcher)
        status = watcher.rpid, watcher.rstatus
    with suppress(ChildProcessError):  # gevent notes the end of a child that it forked itself
        _waitpid(status[0], os.WNOHANG)
    return status


def wait() -> tuple[int, int]:
    """Wait for any child process as :func:`os.wait` does, in the hub."""
    return waitpid(ANY_CHILD, 0) if can_wait() else _wait()


def _look_again(pid: int, options: int) -> tuple[int, int]:
    pauses = Pauses()
    while not (ended := _waitpid(pid, options | os.WNOHANG))[0]:
        pauses.wait()
    return ended
