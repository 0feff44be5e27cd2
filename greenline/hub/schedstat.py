"""Read what the kernel counts of a thread: its CPU time, and its wait for a processor."""

import os
from contextlib import suppress

from gevent.monkey import get_original

SIZE = 128  # bytes, enough for the three numbers
OUTER_NUMBERS = b"0123456789\n"  # the bytes of the first and the last one


def open_of(thread: int) -> int:
    """
    Return a descriptor from which ``os.pread(fd, SIZE, 0)`` reads the numbers.

    They are the nanoseconds on a processor, those of waiting for one, and the time slices; the
    second one grows when the wait ends. Source: sched-stats.rst of Linux.

    :param thread: its native identity, int.
    :raises OSError: the kernel has none.
    """
    return os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)


class QueuedTime:
    """For how long the thread that makes this has waited for a processor."""

    def __init__(self) -> None:
        self._fd = -1
        with suppress(OSError):  # a kernel without it
            self._fd = open_of(get_original("_thread", "get_native_id")())

    def seconds(self) -> float:
        """
        Return the seconds so far, float; 0 where the kernel does not count them.

        Any thread may call this: it makes no object that the garbage collector tracks.
        """
        if self._fd < 0:
            return 0.0
        # The second of three numbers, between blanks; a list of them would be tracked.
        return int(os.pread(self._fd, SIZE, 0).strip(OUTER_NUMBERS)) / 1e9

    def close(self) -> None:
        """Close the kernel's file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
