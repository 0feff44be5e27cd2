"""
Give the servers a core, and who asks them the rest.

Everybody started in :func:`on` stays there, with all processes and threads that
it starts: a server with threads of its own gains nothing from taking the other's. On a machine
with one core all share it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager


def divided(count: int = 1) -> tuple[set[int], set[int]]:
    """Return the servers' cores, *count* or fewer, and the others'."""
    cores = sorted(os.sched_getaffinity(0))
    return set(cores[:count]), set(cores[count:]) or set(cores)


@contextmanager
def on(cores: set[int]) -> Iterator[None]:
    """Have what is started in this block run on *cores*, and this process too."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
