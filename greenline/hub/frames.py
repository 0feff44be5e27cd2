"""
Let ``sys._current_frames()`` have the frame of each thread that is a greenlet.

A profiler that runs in a thread, as those of Flask-MonitoringDashboard and of monitoring agents,
looks there for the frame of a request by the ``threading.get_ident()`` of it. The interpreter knows
native threads alone: the request was missing, and a profiler that saw it end there recorded nothing
of it, or a status and a duration that it did not have.
"""

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import WeakValueDictionary

import gevent
from greenlet import getcurrent, greenlet

from greenline.hub import callers

OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
GEVENT = os.path.join(os.path.dirname(gevent.__file__), "")

#: The interpreter's own: by the idents of native threads.
native: Callable[[], dict[int, FrameType]] = sys._current_frames
_threads: "WeakValueDictionary[int, greenlet]" = WeakValueDictionary()


def note(thread: greenlet) -> None:
    """
    Remember a greenlet that the application takes for a thread.

    :param thread: a handler, or a thread that the application has started.
    """
    _threads[id(thread)] = thread


def install() -> None:
    """Replace ``sys._current_frames``; call it after gevent's patches."""
    note(_main_of(getcurrent()))
    sys._current_frames = current_frames
    os.register_at_fork(after_in_child=_keep_mine)


def current_frames() -> dict[int, FrameType]:
    """
    Return the innermost frame of each thread, by the ident that ``threading.get_ident()`` returns.

    The native threads are there as well, by the idents that the system's threads have.
    """
    natives = native()
    natives[callers.native_ident()] = mine = sys._getframe(1)
    found = dict(natives)
    # A copy: a greenlet may be noted in another native thread meanwhile.
    for reference in _threads.valuerefs():
        thread = reference()
        # None: it has not begun, has ended, or runs now.
        if thread is not None and (frame := thread.gr_frame) is not None:
            found[id(thread)] = _where_it_waits(frame)
    for ident, thread, native_ident in callers.moved():
        # None where it waits for its thread's hub no more: the thread runs it.
        if (frame := thread.gr_frame or natives.get(native_ident)) is not None:
            found[ident] = _where_it_waits(frame)
    found[callers.get_ident()] = mine
    return found


def _where_it_waits(frame: FrameType) -> FrameType:
    """Return the frame that waits: a thread waits in C where a greenlet runs gevent's Python."""
    each: FrameType | None = frame
    while each is not None and each.f_code.co_filename.startswith((OURS, GEVENT)):
        each = each.f_back
    return each or frame  # a handler without work has no other ones


def _main_of(one: Any) -> greenlet:
    while one.parent is not None:
        one = one.parent
    return one  # type: ignore[no-any-return]


def _keep_mine() -> None:
    """Forget the other threads, which a forked child has not."""
    mine = _threads.get(id(getcurrent()))
    _threads.clear()
    if mine is not None:
        note(mine)
