"""Open what the kernel counts of a thread: its CPU time, and its wait for a processor."""

import os

SIZE = 128  # bytes, enough for the three numbers


def open_of(thread: int) -> int:
    """
    Return a descriptor from which ``os.pread(fd, SIZE, 0)`` reads the numbers.

    They are the nanoseconds on a processor, those of waiting for one, and the time slices; the
    second one grows when the wait ends. Source: sched-stats.rst of Linux.

    :param thread: its native identity, int.
    :raises OSError: the kernel has none.
    """
    return os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
