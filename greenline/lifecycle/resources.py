"""
What a worker opens: created, checked and closed from one list.

1. Each resource is added in one call with its close and its check.
2. Nothing is opened before ``start()``, which is after the fork.
3. They close in reverse order, each even when another one failed to.
4. A trial of the application opens none of them: it calls ``on_dry_run()``, which may refuse a
   start.
"""

import logging
from collections.abc import Callable

import gevent

from greenline.lifecycle.health import Check, Health

START_RETRY_S = 1.0

log = logging.getLogger(__name__)


class Resources:
    """The resources of one worker, and their health."""

    def __init__(self) -> None:
        self.health = Health()
        self.on_dry_run: Callable[[], object] = bool  # raises ConfigError for what stops a start
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
        """Start and close with the others, in reverse order; be unready while *check* raises."""
        self._closers.append((name, close))
        if start is not None:
            self._starters.append(start)
        if check is not None:
            self.health.add(name, check)

    def start(self) -> None:
        """Start all, and ask until they are ready, in the background: it never fails."""
        for start in self._starters:
            start()
        self._starting = gevent.spawn(self._until_ready)

    def close(self) -> None:
        """Close everything, the last added first."""
        if self._starting is not None:
            self._starting.kill(block=False)
        while self._closers:
            name, close = self._closers.pop()
            try:
                close()
            except Exception:
                # The others must be closed all the same.
                log.exception("closing %s failed", name)

    def _until_ready(self) -> None:
        while not self.health.report().ready:
            gevent.sleep(START_RETRY_S)
