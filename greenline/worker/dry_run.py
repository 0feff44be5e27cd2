"""
Load a release once, in a child, before the workers do.

gunicorn's master stops everything when a worker refuses to boot, when an address is taken or when
its configuration cannot be read; and it stumbles when two workers refuse at once. A trial finds it
out first, and tells it once.

1. The child does what the master and a worker would: it reads the configuration anew, binds what
   it would bind (without listening), takes the worker's environment and user, checks our settings
   and the certificates, and loads the application, which may refuse a start.
2. Its answer comes by a pipe, because gunicorn's master may reap it first. Nobody waits for it but
   a start.
3. Not tried is what has effects outside of the child: gunicorn's hooks (``post_fork``,
   ``post_worker_init``, ``on_reload``...), the pid file, and the making of a unix socket.
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
from greenline.worker import hooks

REFUSED = 4  # what gunicorn's own workers exit with when the application cannot be loaded
# A release that takes longer to load than this is taken for one that hangs.
LOAD_TIMEOUT_S = 60.0
POLL_S = 0.02


def try_application(server: Any) -> None:
    """
    Load *server*'s application (a gunicorn Arbiter's) as one of its workers would.

    Exit with the child's status when it cannot be loaded; a reloading server goes on, because
    its workers wait for the next change of the code.
    """
    if server.cfg.reload:
        return
    trial = DryRun(server)
    while (status := trial.status()) is None:
        time.sleep(POLL_S)
    if status:
        sys.exit(status)


class DryRun:
    """A child that loads *server*'s application; *again* reads the configuration anew as well."""

    def __init__(self, server: Any, *, again: bool = False) -> None:
        self._answer, told = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            status = _load(server, again)
            os.write(told, bytes([status]))
            os._exit(status)
        os.close(told)
        os.set_blocking(self._answer, False)
        self._until = time.monotonic() + LOAD_TIMEOUT_S

    def status(self) -> int | None:
        """Return 0 when it has loaded, another number when it cannot be, None while it loads."""
        try:
            answer = os.read(self._answer, 1)
        except BlockingIOError:
            if time.monotonic() < self._until:
                return None
            self.end()
            _tell(f"the application did not load within {LOAD_TIMEOUT_S:.0f} s")
            return REFUSED
        # Without an answer it has crashed; or it lives on without the pipe, which is its affair.
        self._forget(0 if answer else os.WNOHANG)
        return answer[0] if answer else REFUSED

    def end(self) -> None:
        """Kill it. Its pipe was open a moment ago, so that the number is still its own."""
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
        _tell(f"greenline: {error}" if isinstance(error, ConfigError) else str(error))
        return REFUSED
    except SystemExit as error:
        if isinstance(error.code, str):
            _tell(error.code)
        return (error.code & 0xFF if isinstance(error.code, int) else 0) or REFUSED
    except BaseException:
        traceback.print_exc()
        return REFUSED
    return 0


def _boot(server: Any, again: bool) -> None:
    """Do in the order of Arbiter.reload and Worker.init_process what can be done here."""
    from gevent import monkey
    from gunicorn.workers.ggevent import GeventWorker

    from greenline.patch import entry_points_read_once

    for number in GeventWorker.SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    if again:
        _read_anew(server)
    cfg = server.app.cfg
    os.environ.update(cfg.env)
    worker_class = cfg.worker_class  # gunicorn calls its setup(), which checks our settings
    if issubclass(worker_class, GeventWorker):
        with entry_points_read_once():
            monkey.patch_all()
    util.set_owner_process(cfg.uid, cfg.gid, initgroups=cfg.initgroups)
    if cfg.is_ssl:
        try:
            sock.ssl_context(cfg)
        except (OSError, ValueError) as error:
            raise ConfigError(f"TLS: {cfg.certfile}, {cfg.keyfile}: {error}") from error
    application = server.app.wsgi()
    if not again:  # a reload is no start: who serves now goes on to
        hooks.on_dry_run(application)


def _read_anew(server: Any) -> None:
    old = server.cfg
    for name in old.env:
        os.environ.pop(name, None)
        if name in old.env_orig:
            os.environ[name] = old.env_orig[name]
    server.app.reload()
    cfg = server.app.cfg
    # Then gunicorn makes all of them anew, while the old workers still listen on the old ones.
    if cfg.address != old.address:
        if server.systemd:  # it would leave that socket, and all who wait there
            raise ConfigError("bind: it changed, and the socket is systemd's: restart instead")
        with ExitStack() as bound:
            for address in cfg.address:
                try:
                    _bind(address, cfg, bound)
                except (OSError, ValueError) as error:
                    raise ConfigError(f"bind: {address!r}: {error}") from error


def _bind(address: Any, cfg: Any, bound: ExitStack) -> None:
    if isinstance(address, str) and not address.startswith("\0"):
        folder = os.path.dirname(address) or "."
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(f"no folder to write to: {folder!r}")
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.stat(address).st_mode):
                raise ValueError("it is there, and no socket")
    elif not isinstance(address, int):
        one = bound.enter_context(socket.socket(_family(address), socket.SOCK_STREAM))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if cfg.reuse_port and hasattr(socket, "SO_REUSEPORT"):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(address)


def _family(address: Any) -> socket.AddressFamily:
    if isinstance(address, str):
        return socket.AF_UNIX
    return socket.AF_INET6 if util.is_ipv6(address[0]) else socket.AF_INET


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
