"""
Start programs in C, as the standard library does, where gevent's ``Popen`` would fork in Python.

gevent's way costs several times as much CPU, and copies the page tables of the worker. Only the
start is replaced: gevent still waits for the program and for its pipes.
"""

import os
import sys
from contextlib import suppress
from functools import wraps
from inspect import signature
from types import FunctionType, SimpleNamespace
from typing import Any

import gevent.subprocess
from gevent.monkey import get_original

from greenline.hub import gevent_compat

gevent_compat.check_subprocess()
# In an instance, because greenline.hub.patching reports an original among the globals.
_plain = SimpleNamespace(Popen=get_original("subprocess", "Popen"))
_green_start = gevent.subprocess.Popen._execute_child  # type: ignore[attr-defined]


def _without_gevent(function: Any) -> Any:
    """Return a copy of a function of subprocess that uses the originals of ``os``."""
    # gevent's os.close() may close a descriptor only in the next round of the loop.
    plain_os = SimpleNamespace(**vars(os))
    for name in ("close", "read"):
        setattr(plain_os, name, get_original("os", name))
    fork_exec = get_original("subprocess", "_fork_exec")
    names = {**function.__globals__, "os": plain_os, "_fork_exec": fork_exec}
    return FunctionType(function.__code__, names, closure=function.__closure__)


_plain_start = _without_gevent(_plain.Popen._execute_child)


def patch() -> None:
    """Replace how gevent's ``Popen`` starts a program."""
    # Only where both functions have the parameters that _start() expects: private names may change.
    expected = [*signature(_plain.Popen._execute_child).parameters]
    expected.insert(expected.index("env") + 1, "universal_newlines")
    if not sys.platform.startswith("linux") or [*signature(_green_start).parameters] != expected:
        return
    popen: Any = gevent.subprocess.Popen
    popen._close_pipe_fds = _without_gevent(_plain.Popen._close_pipe_fds)
    popen._execute_child = _start


@wraps(_green_start)
def _start(self: Any, args: Any, executable: Any, preexec_fn: Any, *others: Any) -> None:
    close_fds, pass_fds, cwd, env, _, startupinfo, creationflags, shell, *others_ = others
    p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, *ids = others_
    gid, gids, uid, umask, start_new_session, process_group = ids
    if preexec_fn is not None or not (gid is gids is uid is None):
        # The standard library forks for these and waits for the child, which would block the hub.
        _green_start(self, args, executable, preexec_fn, *others)
        return
    for fd, standard in ((p2cread, 0), (c2pwrite, 1), (errwrite, 2)):
        with suppress(OSError):  # it may be closed
            # A socket of gevent is in non-blocking mode, which a program does not expect.
            self._remove_nonblock_flag(standard if fd == -1 else fd)
    # Before the start, so that the end of a short program is noticed.
    self._loop.install_sigchld()
    _plain_start(
        self, args, executable, None, close_fds, pass_fds, cwd, env,
        startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite,
        restore_signals, gid, gids, uid, umask, start_new_session,
        -1 if process_group is None else process_group,
    )  # fmt: skip
    # Critical section: no greenlet switch since the start, so libev has not reaped the child yet.
    gevent_compat.watch_child(self.pid, self._on_child, self._loop, True)
