"""
Restrict ``signal.signal`` and ``set_wakeup_fd`` to the main greenlet, as Python does to the main
thread.

All greenlets run in the main thread, so any request could set a handler. One that raises would
interrupt an arbitrary greenlet, or the hub, which ends the worker; one for SIGTERM would replace
gunicorn's.

A handler that the application sets while it is loaded may wait, for its threads for instance, and
may raise SystemExit. The signal may have interrupted the hub, which must not wait, or a request,
which would be lost: so the handler has a greenlet of its own.
"""

import logging
import os
import signal
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import gevent
from gevent.hub import Hub
from greenlet import getcurrent

from greenline.lifecycle.drain import TICK_S

log = logging.getLogger(__name__)

_in_progress: "set[gevent.Greenlet[Any, Any]]" = set()
_is_ending = False  # the worker: a SystemExit would interrupt what it still has to do
set_handler = signal.signal  # for the worker's own handlers, which any greenlet may run


def keep_to_main_greenlet() -> None:
    """Let both raise ValueError in other greenlets; call it in a worker, after gevent's patches."""
    signal.signal = _kept(partial(_set, signal.signal), "signal")
    signal.getsignal = partial(_get, signal.getsignal)
    # asyncio calls this first. Signal numbers would be written to the descriptor even after it was
    # closed and its number reused.
    signal.set_wakeup_fd = _kept(signal.set_wakeup_fd, "set_wakeup_fd")


def ignore_exits() -> None:
    """Ignore SystemExit of handlers from now on: the worker ends."""
    global _is_ending
    _is_ending = True


def finish(beat: Callable[[], object]) -> None:
    """
    Wait for the end of the handlers in progress, as the main thread does.

    :param beat: is called every ``TICK_S``.
    """
    while _in_progress:
        beat()
        gevent.joinall(list(_in_progress), timeout=TICK_S)


class _Handler:
    """
    Call a signal handler; in a greenlet of its own, unless the main one is interrupted.

    :param handler: the handler, as in :func:`signal.signal`.
    """

    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: Any) -> None:
        # SIGABRT says that the hub may be stuck.
        if getcurrent().parent is not None and number != signal.SIGABRT:
            handling = gevent.spawn(self._run, number, frame)
            _in_progress.add(handling)
            handling.rawlink(_in_progress.discard)
        else:
            self.handler(number, frame)

    def _run(self, number: int, frame: Any) -> None:
        try:
            self.handler(number, frame)
        except SystemExit:
            if not _is_ending:
                ignore_exits()  # of others at the same time
                raise
        except Exception:
            log.exception("a signal handler raised an exception")


def _set(patched: Any, number: Any, handler: Any) -> Any:
    before = patched(number, _Handler(handler) if callable(handler) else handler)
    return before.handler if isinstance(before, _Handler) else before


def _get(patched: Any, number: Any) -> Any:
    handler = patched(number)
    return handler.handler if isinstance(handler, _Handler) else handler


def _kept(patched: Any, name: str) -> Any:
    pid = os.getpid()

    # The error is Python's own: libraries that set handlers catch it outside of the main thread.
    @wraps(patched)
    def kept(*args: Any, **kwargs: Any) -> Any:
        current = getcurrent()
        is_main = current.parent is None or isinstance(current, Hub)
        # In a child the forking greenlet is the main one: subprocess restores signals there.
        if not is_main and os.getpid() == pid:
            raise ValueError(f"{name} only works in main thread of the main interpreter")
        return patched(*args, **kwargs)

    return kept
