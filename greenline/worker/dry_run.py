"""
Load a release in a child process, before the workers do, and report whether that failed.

gunicorn's arbiter stops the service when a worker fails to boot, an address is in use or its
configuration cannot be read, and it handles two workers that fail at once badly. Steps with effects
outside of the child are not tried: gunicorn's hooks (``post_fork``, ``post_worker_init``,
``on_reload``...), the pid file, and the creation of a unix socket.
"""

import os
import signal
import socket
import stat
import sys
import time
import traceback
from contextlib import ExitStack, suppress
from typing import Any

from gunicorn import sock, util
from gunicorn.errors import AppImportError

from greenline.errors import ConfigError
from greenline.telemetry import log_format
from greenline.worker import hooks
from greenline.worker.loading import few_collections

REFUSED = 4  # gunicorn's APP_LOAD_ERROR
# A release that takes longer to load is assumed to hang.
LOAD_TIMEOUT_S = 60.0
POLL_S = 0.02


def try_application(server: Any) -> None:
    """
    Load an application as a worker would, and exit with the child's status if that fails.

    :param server: gunicorn's Arbiter.
    """
    if server.cfg.reload:  # its workers wait for the next change of the code
        return
    if hasattr(server.cfg.worker_class, "prepare_libraries"):  # GreenWorker's
        # Not at the top: it imports gevent, which other worker classes need not.
        from greenline.worker.arbiter import prepare_to_fork

        prepare_to_fork()
    dry_run = DryRun(server)
    while (status := dry_run.status()) is None:
        time.sleep(POLL_S)
    if status:
        sys.exit(status)


class DryRun:
    """
    A child process that loads an application.

    :param server: gunicorn's Arbiter.
    :param again: read the configuration again, as a reload does, bool. Default False.
    """

    def __init__(self, server: Any, *, again: bool = False) -> None:
        self._server = server
        # The status comes by a pipe, not by waitpid(): the arbiter may reap the child first.
        self._answer, write_end = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            status = _load(server, again)
            os.write(write_end, bytes([status]))
            # Never return into the arbiter's code. Not `status`: an older gunicorn that reaps this
            # child takes it for a worker that could not boot, and stops.
            os._exit(0)
        os.close(write_end)
        os.set_blocking(self._answer, False)
        self._until = time.monotonic() + LOAD_TIMEOUT_S

    def status(self) -> int | None:
        """Return 0 if the application was loaded, another number if not, None while it loads."""
        try:
            answer = os.read(self._answer, 1)
        except BlockingIOError:
            if time.monotonic() < self._until:
                return None
            self.end()
            text = f"the application did not load within {LOAD_TIMEOUT_S:.0f} s"
            _report(self._server, text)
            return REFUSED
        # Without an answer the child has crashed, or closed the pipe and still runs: do not wait.
        self._forget(0 if answer else os.WNOHANG)
        return answer[0] if answer else REFUSED

    def end(self) -> None:
        """Kill the child."""
        # status() has just found the pipe open, so the process id is still the child's.
        os.kill(self._child, signal.SIGKILL)
        self._forget(0)

    def _forget(self, options: int) -> None:
        os.close(self._answer)
        with suppress(ChildProcessError):  # gunicorn has reaped it
            os.waitpid(self._child, options)


def _load(server: Any, again: bool) -> int:
    try:
        _boot(server, again)
    except (AppImportError, ConfigError) as error:
        is_ours = isinstance(error, ConfigError)
        _report(server, f"greenline: {error}" if is_ours else str(error))
        return REFUSED
    except SystemExit as error:
        if isinstance(error.code, str):
            _report(server, error.code)
        return (error.code & 0xFF if isinstance(error.code, int) else 0) or REFUSED
    except BaseException:
        if log_format.is_json():
            server.log.exception("the application cannot be loaded")
        else:
            traceback.print_exc()
        return REFUSED
    return 0


def _boot(server: Any, again: bool) -> None:
    """Repeat the steps of Arbiter.reload() and Worker.init_process(), in their order."""
    # Imported in the child only: the arbiter stays without gevent's hub.
    from gevent import monkey
    from gunicorn.workers.ggevent import GeventWorker

    from greenline.patch import gevent_patches

    for number in GeventWorker.SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    if again:
        _read_anew(server)
    cfg = server.app.cfg
    os.environ.update(cfg.env)
    # The environment is complete: setup() reads it.
    worker_class = cfg.worker_class  # gunicorn calls its setup(), which checks our settings
    if issubclass(worker_class, GeventWorker):
        with gevent_patches():
            monkey.patch_all()
    if prepare_libraries := getattr(worker_class, "prepare_libraries", None):  # GreenWorker's
        prepare_libraries(cfg)
    util.set_owner_process(cfg.uid, cfg.gid, initgroups=cfg.initgroups)
    if cfg.is_ssl:
        try:
            sock.ssl_context(cfg)
        except (OSError, ValueError) as error:
            raise ConfigError(f"TLS: {cfg.certfile}, {cfg.keyfile}: {error}") from error
    with few_collections():
        application = server.app.wsgi()
    # It may refuse a start, such as one without a key. A service that runs is not stopped for that.
    if not again:
        hooks.on_dry_run(application)


def _read_anew(server: Any) -> None:
    old = server.cfg
    for name in old.env:
        os.environ.pop(name, None)
        if name in old.env_orig:
            os.environ[name] = old.env_orig[name]
    server.app.reload()
    cfg = server.app.cfg
    # If an address changed, gunicorn opens all of them again, while the old workers still listen.
    if cfg.address != old.address:
        if server.systemd:  # gunicorn would close that socket and its backlog
            raise ConfigError("bind: it changed, and the socket is systemd's: restart instead")
        with ExitStack() as bound:
            for address in cfg.address:
                try:
                    _bind(address, cfg, bound)
                except (OSError, ValueError) as error:
                    raise ConfigError(f"bind: {address!r}: {error}") from error


def _bind(address: Any, cfg: Any, bound: ExitStack) -> None:
    if isinstance(address, str) and not address.startswith("\0"):
        # A bind would replace the socket of the running arbiter: only check that it can succeed.
        folder = os.path.dirname(address) or "."
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(f"no folder to write to: {folder!r}")
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.stat(address).st_mode):
                raise ValueError("it is there, and no socket")
    elif not isinstance(address, int):
        # Bound, but without listen(): no client can connect to the child.
        one = bound.enter_context(socket.socket(_family(address), socket.SOCK_STREAM))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if cfg.reuse_port and hasattr(socket, "SO_REUSEPORT"):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(address)


def _family(address: Any) -> socket.AddressFamily:
    if isinstance(address, str):
        return socket.AF_UNIX
    return socket.AF_INET6 if util.is_ipv6(address[0]) else socket.AF_INET


def _report(server: Any, line: str) -> None:
    # Not by the setting, which the new release may have made invalid: an error here would return
    # the child into the arbiter's code.
    if log_format.is_json():
        server.log.error("%s", line)
    else:
        print(line, file=sys.stderr, flush=True)
