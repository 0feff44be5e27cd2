"""
Start programs in C, as the standard library does.

gevent's ``Popen`` forks and prepares the child in Python, which costs several times as much CPU and
copies the page tables of the worker. Only the start is replaced: gevent goes on to wait for the
program and for its pipes.
"""

import os
import sys
from contextlib import suppress
from functools import wraps
from inspect import signature
from types import FunctionType, SimpleNamespace
from typing import Any

import gevent.os
import gevent.subprocess
from gevent.monkey import get_original

# In an instance: greenline.hub.patching reports an original among the globals as late patching.
_plain = SimpleNamespace(Popen=get_original("subprocess", "Popen"))
_green_start = gevent.subprocess.Popen._execute_child  # type: ignore[attr-defined]  # a private name


def _without_gevent(function: Any) -> Any:
    """Return a function of subprocess as it is without gevent, which closes descriptors late."""
    plain_os = SimpleNamespace(**vars(os))
    for name in ("close", "read"):
        setattr(plain_os, name, get_original("os", name))
    fork_exec = get_original("subprocess", "_fork_exec")
    names = {**function.__globals__, "os": plain_os, "_fork_exec": fork_exec}
    return FunctionType(function.__code__, names, closure=function.__closure__)


_plain_start = _without_gevent(_plain.Popen._execute_child)


def patch() -> None:
    """Replace how gevent's ``Popen`` starts a program; not where it takes other arguments."""
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
        # These fork, and the hub must not wait for what the child does.
        _green_start(self, args, executable, preexec_fn, *others)
        return
    for fd, standard in ((p2cread, 0), (c2pwrite, 1), (errwrite, 2)):
        with suppress(OSError):  # it may be closed
            # A socket of gevent's does not block, and a program expects that it does.
            self._remove_nonblock_flag(standard if fd == -1 else fd)
    self._loop.install_sigchld()
    _plain_start(
        self, args, executable, None, close_fds, pass_fds, cwd, env,
        startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite,
        restore_signals, gid, gids, uid, umask, start_new_session,
        -1 if process_group is None else process_group,
    )  # fmt: skip
    # By vfork the program runs when that returns, so the loop has not run, and no child was reaped.
    gevent.os._watch_child(self.pid, self._on_child, self._loop, True)  # type: ignore[attr-defined]
