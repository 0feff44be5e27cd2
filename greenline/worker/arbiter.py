"""
What gunicorn's master does for green workers.

1. On HUP it tries the new release in a process of its own, and goes on with its work meanwhile. A
   release that cannot be loaded is refused in one line, and the workers go on with the old one:
   gunicorn alone would stop everything. Another HUP tries anew; a stop ends the trial.
2. It says when it stops. A worker that is only replaced (HUP, USR2, max_requests, TTOU) gets the
   same SIGTERM, and must not call the service unready for it.
3. A setting of ours that is wrong stops it before a fork: its workers would boot and die for ever.
4. What is on the disk may be a release that was refused, or one that is being written. A worker
   that cannot boot from it does not end a service that served, as gunicorn would have it: it is
   tried again later. Meanwhile max_requests replaces nobody.
5. After a reload it does not wait for the old workers, as gunicorn does, deaf to signals: a stop
   would begin when they have ended. They may get their SIGTERM more than once.
6. It is met in the ``pre_fork`` hook: the one place where a worker class sees it.
"""

import sys
from functools import partial
from mmap import mmap
from time import monotonic
from typing import Any

from gunicorn.errors import HaltServer

from greenline import settings
from greenline.errors import ConfigError
from greenline.worker.dry_run import DryRun

BOOT_RETRY_S = 5.0

# Shared with the workers, which are forked off later.
_shared = mmap(-1, 3)
_STOPPING, _SERVED, _UNLOADABLE = range(3)


def is_stopping() -> bool:
    """Return whether the service ends with this master, and no other takes its place."""
    return _shared[_STOPPING] != 0


def note_boot() -> None:
    """Note, in a worker, that it has loaded what is on the disk, and serves."""
    _shared[_SERVED], _shared[_UNLOADABLE] = 1, 0


def has_successors() -> bool:
    """Return whether a worker that ends now is replaced, as far as is known."""
    return _shared[_UNLOADABLE] == 0


def attend(cfg: Any) -> None:
    """Have the master whose workers *cfg* describes do the above; once is enough."""
    hook = cfg.pre_fork
    if not (isinstance(hook, partial) and hook.func is _pre_fork):
        cfg.set("pre_fork", partial(_pre_fork, hook))


def _pre_fork(hook: Any, server: Any, worker: Any) -> None:
    try:
        # Only now gunicorn has put `raw_env` into the environment.
        settings.check()
    except ConfigError as error:
        raise HaltServer(f"greenline: {error}", 1) from error
    if "handle_hup" not in vars(server):
        Reloads(server)
    # Until it sets its own handlers, a worker that boots gets its signals in a copy of this.
    worker.early_signals = server.SIG_QUEUE
    hook(server, worker)


class _Waiting(Exception):
    """All of a reload is done, but for waiting for the old workers."""


class Reloads:
    """Take the place of *server*'s methods that deal with releases, and with those that fail."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._dry_run: DryRun | None = None
        self._not_before_s = 0.0
        self._is_reloading = False
        self._reload, server.handle_hup = server.handle_hup, self.begin
        self._manage, server.manage_workers = server.manage_workers, self.go_round
        self._reap, server.reap_workers = server.reap_workers, self.reap
        self._stop, server.stop = server.stop, self.stop
        if sys.modules["__main__"].__spec__ is not None:
            # Started by `python -m`: USR2 would execute the module's file, and its folder, first in
            # sys.path, would hide the standard library's http.
            server.START_CTX["args"] = [sys.executable, *sys.orig_argv[1:]]

    def begin(self) -> None:
        """Try what is on the disk now, in place of what is being tried."""
        self._end()
        if self._server.cfg.reload:
            self._take()
        else:
            self._dry_run = DryRun(self._server, again=True)

    def go_round(self) -> None:
        """Look at the trial: gunicorn comes here once a second, and when a child has ended."""
        if self._dry_run is not None and (status := self._dry_run.status()) is not None:
            self._dry_run = None
            if status == 0:
                self._not_before_s = 0.0
                self._take()
            else:
                _shared[_UNLOADABLE] = 1
                self._server.log.error(
                    "reload refused: the new release cannot be loaded (see above); "
                    "the workers go on with the old one"
                )
        if monotonic() >= self._not_before_s:
            self._manage()

    def _take(self) -> None:
        """Reload, without the wait at the end."""
        self._is_reloading = True
        try:
            self._reload()
        except _Waiting:
            pass
        finally:
            self._is_reloading = False

    def reap(self) -> None:
        """Note which children have ended; one that could not boot ends no service that served."""
        if self._is_reloading:
            raise _Waiting
        while True:
            try:
                self._reap()
            except HaltServer as error:
                if not _shared[_SERVED]:
                    raise
                _shared[_UNLOADABLE] = 1
                self._not_before_s = monotonic() + BOOT_RETRY_S
                self._server.log.error(
                    "%s %d others go on; the next is tried in %.0f s",
                    error.reason,
                    len(self._server.WORKERS),
                    BOOT_RETRY_S,
                )
            else:
                return

    def stop(self, graceful: bool = True) -> None:
        """Say that the service ends, unless another master serves on the same sockets."""
        self._end()
        if not self._server.reexec_pid and not self._server.master_pid:
            _shared[_STOPPING] = 1
        self._stop(graceful)

    def _end(self) -> None:
        if self._dry_run is not None and self._dry_run.status() is None:
            self._dry_run.end()
        self._dry_run = None
