"""
Patch gunicorn's arbiter so that a release that cannot be loaded does not stop the service.

On HUP a child loads the new release first; if that fails, the workers continue with the old one.
A worker that fails to boot later is started again after ``BOOT_RETRY_S``. The arbiter also shares
with its workers whether the service stops, runs the process of ``/metrics``, sends the values of
all workers to statsd, and hands the counts over to the arbiter that follows it at USR2.
"""

import signal
import sys
from functools import partial
from mmap import mmap
from time import monotonic
from typing import Any

from gunicorn.errors import HaltServer

from greenline import settings
from greenline.errors import ConfigError
from greenline.http.gunicorn_compat import (
    RELOAD_REAPS,
    check_settings,
    forget_dead_workers,
    signal_queue,
)
from greenline.hub import deadline, inherited
from greenline.offload import fork
from greenline.patch import entry_points
from greenline.telemetry import counters, log_format, redaction, shared_memory
from greenline.worker.dry_run import DryRun
from greenline.worker.ops_process import OpsProcess

BOOT_RETRY_S = 5.0
SEND_EVERY_S = 0.9  # the arbiter goes round each second

# Memory shared with the workers, which are forked later; one byte for each flag.
_shared = mmap(-1, 3)
_STOPPING, _SERVED, _UNLOADABLE = range(3)


def is_stopping() -> bool:
    """Return whether the service stops, with no other arbiter to take its place."""
    # A worker that is only replaced (HUP, USR2, max_requests, TTOU) gets the same SIGTERM, and must
    # not report the service as not ready.
    return _shared[_STOPPING] != 0


def note_boot() -> None:
    """Note that this worker has loaded the release on the disk and serves."""
    _shared[_SERVED], _shared[_UNLOADABLE] = 1, 0


def has_successors() -> bool:
    """Return whether a worker that ends now can be replaced."""
    # The release on the disk may have been refused, or may be incomplete: then max_requests ends no
    # worker.
    return _shared[_UNLOADABLE] == 0


def format_log() -> None:
    """
    Format the log as ``GREENLINE_LOG`` has it, and remove secrets from gunicorn's lines.

    The workers, and dry runs, are forked from this process.

    :raises ConfigError: the value is invalid.
    """
    redaction.install()
    log_format.install(as_json=settings.logs_json(), environ=deadline.request_environ)


def attend(cfg: Any) -> None:
    """
    Patch the arbiter of the workers that *cfg* describes, before it forks the first of them.

    :param cfg: gunicorn's settings, which are changed; a second call changes nothing.
    """
    # pre_fork is the only hook that a worker class can set and that gets the arbiter.
    hook = cfg.pre_fork
    if not (isinstance(hook, partial) and hook.func is _pre_fork):
        cfg.set("pre_fork", partial(_pre_fork, hook))
        cfg.set("post_fork", partial(_post_fork, cfg.post_fork))


def prepare_to_fork() -> None:
    """Do once in the arbiter what each of its children would do: call it before the first fork."""
    entry_points()
    inherited.freeze()


def _pre_fork(hook: Any, server: Any, worker: Any) -> None:
    try:
        # Checked in the arbiter: workers would boot and exit in an endless loop. Not earlier:
        # gunicorn has just put `raw_env` into the environment.
        settings.check()
        format_log()
        check_settings(server.cfg)
    except ConfigError as error:
        raise HaltServer(f"greenline: {error}", 1) from error
    if not hasattr(server, "reloads"):
        server.reloads = Reloads(server, worker.shared_fd)
    # Until a booting worker sets its own handlers, signals go to its copy of this queue.
    worker.early_signals = signal_queue(server)
    hook(server, worker)
    prepare_to_fork()
    fork.note_worker()  # last: the hook may fork other children


def _post_fork(hook: Any, server: Any, worker: Any) -> None:
    server.reloads.leave_to_arbiter()
    # Before the hook, which may open databases: what it imports must find the process patched.
    worker.patch()
    hook(server, worker)


class _Waiting(Exception):
    """A reload is complete, except for the wait for the old workers."""


class Reloads:
    """
    Replace the methods of an arbiter that load releases and reap workers.

    :param server: gunicorn's Arbiter.
    :param memory: the descriptor of the counters' memory, int.
    """

    def __init__(self, server: Any, memory: int) -> None:
        self._server = server
        self._memory = memory
        self._dry_run: DryRun | None = None
        self._not_before_s = 0.0
        self._is_reloading = False
        self._reload, server.handle_hup = server.handle_hup, self.begin
        self._manage, server.manage_workers = server.manage_workers, self.go_round
        self._reap, server.reap_workers = server.reap_workers, self.reap
        self._stop, server.stop = server.stop, self.stop
        self._reexec, server.reexec = server.reexec, self.reexec
        if sys.modules["__main__"].__spec__ is not None:
            # Started by `python -m`. USR2 would execute the module's file instead: that puts its
            # folder first in sys.path, where our http hides the standard library's.
            server.START_CTX["args"] = [sys.executable, *sys.orig_argv[1:]]
        has_metrics = settings.OPS_BIND.read() is not None
        self._ops = OpsProcess(server, memory) if has_metrics else None
        if self._ops is not None:
            self._ops.start()
        # gunicorn's own logger for statsd has such a method.
        gauge = getattr(server.log, "gauge", None) if server.cfg.statsd_host else None
        self._send = gauge and partial(_send_values, counters.Reader(memory), gauge)
        self._sent_s = 0.0

    def leave_to_arbiter(self) -> None:
        """Close in a worker what belongs to the arbiter alone."""
        if self._ops is not None:
            self._ops.close_pipe()

    def begin(self) -> None:
        """Handle SIGHUP: start a dry run of the release on the disk, and end an earlier one."""
        self._end()
        # With --reload, a worker with a syntax error waits for the next change of the code.
        if self._server.cfg.reload:
            self._take()
        else:
            # It may take as long as a start, and the workers change after it.
            self._server.log.info("reload: the new release is loaded in a process of its own first")
            self._dry_run = DryRun(self._server, again=True)

    def go_round(self) -> None:
        """Manage the workers: gunicorn calls this each second, and when a child has ended."""
        if self._dry_run is not None and (status := self._dry_run.status()) is not None:
            self._dry_run = None
            if status == 0:
                # This release can boot: a pause after an earlier failure does not apply to it.
                self._not_before_s = 0.0
                self._take()
            else:
                _shared[_UNLOADABLE] = 1
                self._server.log.error(
                    "reload refused: the new release cannot be loaded (see above); "
                    "the workers continue with the old one"
                )
        if monotonic() >= self._not_before_s:
            self._manage()
        if self._ops is not None:
            self._ops.start()
        if self._send is not None and monotonic() - self._sent_s >= SEND_EVERY_S:
            self._sent_s = monotonic()
            self._send()

    def _take(self) -> None:
        """Reload, without gunicorn's wait for the old workers."""
        # During that wait gunicorn handles no signals, so a stop would be delayed until they have
        # ended. Without it the old workers may get SIGTERM more than once.
        self._is_reloading = True
        try:
            self._reload()
        except _Waiting:
            # What gunicorn's handle_hup() does after the wait.
            if self._server.dirty_arbiter_pid:
                self._server.kill_dirty_arbiter(signal.SIGHUP)
        finally:
            self._is_reloading = False

    def reap(self) -> None:
        """Reap children; a worker that could not boot does not end a service that has served."""
        # gunicorn's reload() calls this only in the wait at its end.
        if self._is_reloading and RELOAD_REAPS:
            raise _Waiting
        # After an error there may be more children to reap.
        while True:
            try:
                self._reap()
            except HaltServer as error:
                if not _shared[_SERVED]:
                    raise  # a first start that fails is reported at once
                forget_dead_workers(self._server)
                _shared[_UNLOADABLE] = 1
                self._not_before_s = monotonic() + BOOT_RETRY_S
                self._server.log.error(
                    "%s Workers still running: %d. The next one is started in %.0f s.",
                    error.reason,
                    len(self._server.WORKERS),
                    BOOT_RETRY_S,
                )
            else:
                return

    def stop(self, graceful: bool = True) -> None:
        """Stop the workers; note that the service ends, unless another arbiter continues it."""
        self._end()
        # After USR2 the parent, or the child, serves on the same sockets.
        if not self._server.reexec_pid and not self._server.master_pid:
            _shared[_STOPPING] = 1
        self._stop(graceful)
        if self._ops is not None:
            self._ops.end()

    def reexec(self) -> None:
        """Handle USR2: start another arbiter, whose workers continue from the counts of these."""
        with shared_memory.handed_over(self._memory, self._server.cfg.env_orig):
            self._reexec()

    def _end(self) -> None:
        if self._dry_run is not None and self._dry_run.status() is None:
            self._dry_run.end()
        self._dry_run = None


def _send_values(reader: counters.Reader, gauge: Any) -> None:
    """Send the values of all workers to statsd."""
    for name, value in reader.values().items():
        gauge(".".join(("greenline", *map(str, name))).replace(" ", "_"), value)
