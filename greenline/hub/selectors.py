"""
Let gevent's selectors leave the hub alone between two looks.

1. They go on watching a file that has had an event. While the greenlet does something else, such as
   wait for its turn, the hub heard of the event in each round, with the highest priority: it was
   never idle, and called no idle watcher, by which turns end.
2. libev begins to watch a file in the hub's next round, and ends the process where the file was
   closed before. A select() for zero seconds, or of a greenlet that is killed, can end before that
   round.
"""

from functools import wraps
from typing import Any

from gevent.selectors import GeventSelector


def install() -> None:
    """Replace what the class does; call it once in a process."""
    selector: Any = GeventSelector
    note, select = selector._GeventSelector__callback, selector.select

    def note_and_stop(self: Any, events: int, fd: int) -> None:
        note(self, events, fd)
        self._active_watchers[fd].stop()  # select() starts it again

    @wraps(select)
    def select_and_stop(self: Any, timeout: float | None = None) -> Any:
        if not self._inactive_watchers:
            return select(self, timeout)
        started, loop = dict(self._inactive_watchers), self.hub.loop
        iteration = loop.iteration
        try:
            return select(self, timeout)
        finally:  # its greenlet may have been killed
            if loop.iteration == iteration and self._active_watchers:  # None: it is closed
                for fd, watcher in started.items():
                    if self._active_watchers.get(fd) is watcher:
                        watcher.stop()  # select() starts it again
                        self._inactive_watchers[fd] = self._active_watchers.pop(fd)

    selector._GeventSelector__callback = note_and_stop
    selector.select = select_and_stop
