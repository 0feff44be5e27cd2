"""
Separate a child process that an application forks off a worker from that worker.

A child of ``os.fork`` or ``multiprocessing`` computes and ends; it never serves. It has a hub of
its own, in which none of the worker's greenlets run, default signal handlers, and none of the
worker's connections: neither listening sockets nor those of clients and databases. It ends when
its worker ends, and so do its own children, unless one has called ``os.setsid()``. A program that
replaces the child goes on, as under threads.

Libraries that send in the background, OpenTelemetry's for instance, start threads in
``os.register_at_fork`` and wait for them. In the worker's hub such a wait would run the worker's
greenlets in the child, so the child gets its hub before any such hook runs.
"""

import _socket
import gc
import logging
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial, partialmethod, wraps
from typing import Any, NoReturn
from weakref import WeakSet

import gevent.hub
from gevent.exceptions import LoopExit
from gevent.monkey import get_original
from greenlet import getcurrent, greenlet, settrace

from greenline.hub import deadline, disconnect, gevent_compat, inherited
from greenline.hub.cooperate import stop_rounds
from greenline.hub.gevent_compat import get_hub_if_exists, set_hub, set_loop, watched_children

TERMINATE_S = 5.0  # from SIGTERM to SIGKILL, for a child whose worker has ended

log = logging.getLogger(__name__)

is_child = False  # whether this process was forked off a worker

_session = 0  # the session of the worker
_worker_end = _worker_life = -1  # a pipe: its write end is open for as long as the worker lives
_worker_end_id = 0
_is_for_exec = False
_abandoned: list[Any] = []  # the hubs and loops of the processes that this one was forked off
_own: WeakSet[greenlet] = WeakSet()  # greenlets that may run here
_forking = 0  # the id of the arbiter while it forks a worker, and in that until it is patched
_deferred: list[threading.Thread] = []
_held: dict[int, set[int]] = {}  # the signals that a thread blocks, before it forks


def prepare_threads() -> None:
    """
    Let background threads that hooks of a fork start in a worker wait until that is patched.

    A native thread would end the exchange of the application's locks, and block the hub where it is
    waited for. Call once, in the arbiter.
    """
    start = threading.Thread.start

    @wraps(start)
    def start_or_wait(self: threading.Thread) -> None:
        # A hook may wait for the end of a thread that is no daemon.
        if self.daemon and _forking not in (0, os.getpid()):
            _deferred.append(self)
        else:
            start(self)

    threading.Thread.start = start_or_wait  # type: ignore[method-assign]
    os.register_at_fork(after_in_parent=_end_forking)


def note_worker() -> None:
    """Note that the next child of the arbiter is a worker. Call just before the fork."""
    global _forking
    _forking = os.getpid()


def _end_forking() -> None:
    global _forking
    _forking = 0


def install() -> None:
    """Prepare a worker whose standard library is patched for forks. Call once in a process."""
    global _session, _worker_end, _worker_life, _worker_end_id
    _session = os.getsid(0)
    _worker_end, _worker_life = os.pipe()
    _worker_end_id = os.fstat(_worker_end).st_ino
    os.register_at_fork(before=_catch_ends, after_in_child=_begin_child)
    _defer_libraries(_begin_child)
    os.register_at_fork(
        before=_hold_signals, after_in_parent=_release_signals, after_in_child=_release_signals
    )
    # Not at the top: imported in the arbiter, it would keep unpatched functions.
    import gevent.subprocess

    gevent_compat.check_subprocess()
    subprocess: Any = gevent.subprocess
    subprocess.fork = partial(_fork_for_exec, subprocess.fork)
    _end_forking()
    while _deferred:
        _deferred.pop(0).start()


def _defer_libraries(hook: Callable[[], None]) -> None:
    """Let the hooks for children that libraries have registered run after *hook*, the last one."""
    # Python keeps the hooks in a list that can be found in this way alone.
    for hooks in inherited.objects():
        if type(hooks) is list and hooks and hooks[-1] is hook:
            hooks.sort(key=_is_of_library)


def _is_of_library(hook: Any) -> bool:
    name = getattr(hook, "__module__", None) or "builtins"  # None: a method of a lock
    return name.partition(".")[0] not in {*sys.stdlib_module_names, "gevent", "greenline"}


def end(error: BaseException | None) -> NoReturn:
    """
    End this child, which has returned to the worker's own code.

    :param error: the exception with which it ended; None when it returned.
    """
    status = 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        status = 1
        log.error("a forked child failed", exc_info=error)
    for flush in (logging.shutdown, sys.stdout.flush, sys.stderr.flush):
        with suppress(Exception):
            flush()
    # Not sys.exit(): the worker's own exit handlers and clean-up must not run here.
    os._exit(status)


def _catch_ends() -> None:
    """Have libev catch SIGCHLD: gevent does so after the first fork, when its child may be over."""
    hub = get_hub_if_exists()
    loop: Any = None if hub is None else hub.loop
    if loop is not None and loop.default:
        loop.install_sigchld()


def _hold_signals() -> None:
    """Hold signals back until the child has its own handlers: the worker's would swallow them."""
    # multiprocessing's Pool.terminate() may send SIGTERM to a child in this moment, and waits then.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _held[get_original("_thread", "get_ident")()] = before


def _release_signals() -> None:
    if (before := _held.pop(get_original("_thread", "get_ident")(), None)) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork_for_exec(fork: Callable[[], int]) -> int:
    """Fork for :mod:`subprocess`, which itself closes descriptors and executes the program."""
    global _is_for_exec
    _is_for_exec = True
    try:
        return fork()
    finally:
        _is_for_exec = False


def _begin_child() -> None:
    global is_child
    if _is_for_exec:
        _replace_hub()
        return
    # The children of a child keep the sockets and signal handlers that the child has made.
    is_first, is_child = not is_child, True
    if is_first:
        # Otherwise the end of the worker would not be the end of the pipe.
        get_original("os", "close")(_worker_life)
        _reset_signals()
        disconnect.serve(None)
        deadline.forget()
        timeout: Any = gevent.Timeout
        timeout.close = partialmethod(_close_timeout, timeout.close)
    _replace_hub()
    if os.getsid(0) == _session:
        get_original("_thread", "start_new_thread")(_end_with_worker, ())
    if is_first:
        _replace_sockets()


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)  # a pipe of gunicorn, which the worker reads
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            get_original("signal", "signal")(number, signal.SIG_DFL)


def _close_timeout(self: gevent.Timeout, close: Callable[[gevent.Timeout], None]) -> None:
    with suppress(ValueError):  # begun before the fork: its timer was destroyed with the loop
        close(self)


def _replace_sockets() -> None:
    """
    Replace each listening and each connected socket by /dev/null.

    The numbers stay open, because the objects that own them would later close other files under
    the same numbers. The last message of a collected driver goes to /dev/null.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # the descriptor of the folder itself is closed by now
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode) and _has_peers(int(name)):
                os.dup2(null, int(name), inheritable=False)
    get_original("os", "close")(null)


def _has_peers(number: int) -> bool:
    """Return whether the descriptor *number* is a socket that listens or is connected."""
    # Socket pairs without a name and datagram sockets (syslog's) may be shared with the parent.
    sock = _socket.socket(fileno=number)
    try:
        if sock.type != _socket.SOCK_STREAM:
            return False
        if sock.family != _socket.AF_UNIX or sock.getsockname():
            return True
        with suppress(OSError):
            return bool(sock.getpeername())
        return False
    finally:
        sock.detach()


class _AbandonedHub(gevent.hub.Hub):
    """The worker's hub in a child. It never runs, and passes calls to the child's hub."""

    dead = True  # so that locks and events bind themselves to the child's hub

    def switch(self) -> Any:
        return gevent.get_hub().switch()

    def wait(self, watcher: Any) -> None:
        """Wait for the descriptor of *watcher*, a watcher of the destroyed loop."""
        hub = gevent.get_hub()
        own = hub.loop.io(watcher.fd, watcher.events)
        try:
            hub.wait(own)
        finally:
            own.close()

    def cancel_waits_close_and_then(
        self, watchers: object, error: object, then: Callable[..., object], *args: object
    ) -> None:
        """Close a socket or a file, for which no greenlet waits in this process."""
        then(*args)


class _Hub(gevent.hub.Hub):
    """The hub of the child, which may first run when the forking greenlet has ended."""

    def run(self, *_: object) -> None:
        super().run()


def _replace_hub() -> None:
    """Replace the worker's hub by one of the child's own."""
    global _own
    old, current = get_hub_if_exists(), getcurrent()
    if old is None or current is old:
        return
    # A greenlet is resumed when it is collected, to clean up: the worker's must not do so here.
    gc.freeze()
    _abandoned.append((old, old.loop))
    old.__class__ = _AbandonedHub
    stop_rounds(old.loop)
    old.loop.destroy()  # and with it the epoll descriptor, which is shared with the parent's loop
    set_loop(None)  # type: ignore[arg-type]
    hub = _Hub()
    set_hub(hub)
    for _ in range(hub.loop.activecnt):  # libev keeps the count, and would wait for ever
        hub.loop.unref()
    for one, _ in _abandoned:
        one.loop = hub.loop  # gevent does not document that this can be set
    watched_children.clear()
    _own = WeakSet([hub])
    _own.add(current)
    top = current
    while top.parent not in (None, old):
        top = top.parent
        _own.add(top)
    if top.parent is old:
        # The process ends with this greenlet, or when no event is left that resumes one.
        guard = greenlet(_guard, old)
        _own.add(guard)
        guard.switch(current, top)
        hub.parent = guard
        top.parent = hub
    settrace(_park_others)


def _guard(forking: greenlet, top: greenlet) -> NoReturn:
    error: BaseException | None = None
    try:
        forking.switch()
    except BaseException as raised:
        # The hub raises LoopExit when the greenlet has ended, but also when it waits for ever.
        error = None if isinstance(raised, LoopExit) and top.dead else raised
    end(error)


def _park_others(event: str, switched: tuple[greenlet, greenlet]) -> None:
    """
    Switch back from a greenlet of the worker. This runs in the greenlet that is switched to.

    Such a greenlet is resumed when a lock is released in the child, or when a greenlet ends.
    """
    origin, target = switched
    if target in _own:
        return
    try:
        sys._getframe(1)
    except ValueError:  # no frame: it has not begun
        _own.add(target)
    else:
        (gevent.get_hub() if origin.dead else origin).switch()


def _end_with_worker() -> None:
    """End this process with the worker; in a native thread, so that a blocked child ends too."""
    try:
        if os.fstat(_worker_end).st_ino != _worker_end_id:
            return
    except OSError:
        return  # this child's parent, itself a child, has closed all its files
    os.read(_worker_end, 1)  # returns at the end of the pipe: the worker writes nothing
    for number in (signal.SIGTERM, signal.SIGKILL):
        # The child may have called os.setsid() since, to go on by itself.
        if os.getsid(0) != _session:
            return
        os.kill(os.getpid(), number)
        get_original("time", "sleep")(TERMINATE_S)
