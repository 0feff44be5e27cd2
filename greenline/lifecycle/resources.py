"""
Start, check and close the resources of a worker from one list.

A dry run of the application starts none of them; it calls ``on_dry_run()`` instead.
"""

import atexit
import logging
import os
from collections.abc import Callable
from contextlib import suppress

import gevent

from greenline.lifecycle.health import Check, Health

START_RETRY_S = 1.0

log = logging.getLogger(__name__)


class Resources:
    """The resources of one worker, and their health."""

    def __init__(self) -> None:
        self.health = Health()
        self.on_dry_run: Callable[[], object] = bool  # may raise ConfigError
        self._closers: list[tuple[str, Callable[[], object]]] = []
        self._starters: list[Callable[[], object]] = []
        self._starting: gevent.Greenlet[[], None] | None = None

    def add(
        self,
        name: str,
        *,
        close: Callable[[], object],
        check: Check | None = None,
        start: Callable[[], object] | None = None,
    ) -> None:
        """
        Register a resource.

        :param name: for logs and the health report, str.
        :param close: closes it.
        :param check: raises an error while it is not available; the service is then not ready.
        :param start: opens it. Called after the fork.
        """
        self._closers.append((name, close))
        if start is not None:
            self._starters.append(start)
        if check is not None:
            self.health.add(name, check)

    def start(self) -> None:
        """Start all resources, and check them in the background until they are ready."""
        # After the fork: connections must not be shared between processes.
        for start in self._starters:
            start()
        self._starting = gevent.spawn(self._until_ready)

    def close(self) -> None:
        """Close all resources, the last added first."""
        # In reverse order, because a later one may depend on an earlier one.
        if self._starting is not None:
            self._starting.kill(block=False)
        while self._closers:
            name, close = self._closers.pop()
            try:
                close()
            except Exception:
                # Continue: the others must be closed, too.
                log.exception("closing %s failed", name)

    def _until_ready(self) -> None:
        # The report logs each problem, and at last "ready", without a probe that asks.
        while not self.health.report().ready:
            gevent.sleep(START_RETRY_S)


def close_at_exit(close: Callable[[], object]) -> None:
    """
    Close a resource at the exit of this process, where no :class:`Resources` does.

    :param close: closes it.
    """
    atexit.register(_close, close, os.getpid())


def _close(close: Callable[[], object], pid: int) -> None:
    # A child of a fork has its parent's sockets: closing them would end the parent's sessions.
    if os.getpid() != pid:
        return
    with suppress(Exception):  # the process ends, and its end closes what is left
        close()
