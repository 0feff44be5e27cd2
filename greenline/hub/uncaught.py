"""Log the exceptions that end a greenlet or a thread, which gevent and ``threading`` print."""

import logging
import threading
from typing import Any

import gevent

log = logging.getLogger(__name__)


def install() -> None:
    """Log them from now on; an application that has set ``threading.excepthook`` keeps it."""
    gevent.get_hub().print_exception = _log_greenlet  # type: ignore[method-assign, assignment]
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _log_thread


def _log_greenlet(context: Any, kind: Any, error: Any, trace: Any) -> None:
    name = getattr(context, "name", type(context).__name__)
    # In a greenlet: this may be the hub, which must not wait for the lock of a handler.
    gevent.spawn(log.error, "%s failed", name, exc_info=(kind, error, trace))


def _log_thread(args: Any) -> None:
    if args.exc_type is not SystemExit:
        name = args.thread.name if args.thread else "a thread"
        exc_info = args.exc_type, args.exc_value, args.exc_traceback
        log.error("%s failed", name, exc_info=exc_info)
