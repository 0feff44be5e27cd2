"""
Let gevent's selectors leave the hub alone between two looks.

They go on watching a file that has had an event. While the greenlet does something else, such as
wait for its turn, the hub heard of the event in each round, with the highest priority: it was never
idle, and called no idle watcher, by which turns end.
"""

from typing import Any

from gevent.selectors import GeventSelector


def install() -> None:
    """Let each file be watched for one event; call it once in a process."""
    selector: Any = GeventSelector
    note = selector._GeventSelector__callback

    def note_and_stop(self: Any, events: int, fd: int) -> None:
        note(self, events, fd)
        self._active_watchers[fd].stop()  # select() starts it again

    selector._GeventSelector__callback = note_and_stop
