"""
The machine: its size, and which processors the load generator and the workers have.
"""

import math
import os
import platform
import sys
from collections.abc import Sequence

from greenline.budget.cgroup import cpu_limit, memory_limit
from greenline.tune.results import CORES_FOR_TWO, Machine

MIB = 2**20


def machine() -> Machine:
    """Return what this process may use, and how busy it is."""
    limit = cpu_limit()
    number = len(cores()) if limit is None else max(1, min(len(cores()), math.floor(limit)))
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cores=number,
        memory_mib=min(memory_bytes, memory_limit() or memory_bytes) // MIB,
        python=platform.python_version(),
        was_busy=round(os.getloadavg()[0] / number, 2),
    )


def cores() -> list[int]:
    """Return the numbers of the processors that this process may use."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


def pin(pid: int, numbers: Sequence[int]) -> None:
    """Let a process, and what it starts, run on some processors only, where that can be set."""
    if sys.platform == "linux":
        os.sched_setaffinity(pid, numbers)


def cores_of_workers() -> list[int]:
    """Return those that the workers have: all but one where there are enough."""
    found = cores()
    return found[:-1] if len(found) >= CORES_FOR_TWO else found
