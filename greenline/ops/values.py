"""What is read of one worker beside its counts: its process, its pools, and how late its hub is."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from greenline.telemetry.counters import OF_ONE, SLOTS, Key
from greenline.telemetry.reports import ReportReader

TICK_S = 0.1  # in which the hub runs its main loop, if it can
BLOCKED_S = 0.5  # a hub that has not run for longer is blocked
PARTS = {"limiter", "connections", "handlers", "psycopg2", OF_ONE}  # values of what is no pool


class Process(NamedTuple):
    """
    What the kernel says about a process.

    :param memory_bytes: its resident memory, int.
    :param cpu_s: the processor time that it has used, float.
    :param queued_s: for which its main thread, the hub's, has waited for a processor, float.
    """

    memory_bytes: int
    cpu_s: float
    queued_s: float


def process_of(pid: int) -> Process | None:
    """Return what the kernel says about a process; None where it says nothing."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])
    pages = int(fields[21])
    queued_s = 0.0
    with suppress(OSError, IndexError, ValueError):  # a kernel without it
        queued_s = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return Process(pages * os.sysconf("SC_PAGESIZE"), ticks / os.sysconf("SC_CLK_TCK"), queued_s)


def lag_s(reports: ReportReader, row: int, values: Mapping[Key, int]) -> float:
    """
    Return how late a worker's hub is, or was when it last ran, in seconds.

    :param reports: of the workers.
    :param row: of the worker, int.
    :param values: of the worker.
    """
    late_s = reports.late_s(row)
    if late_s > BLOCKED_S:
        return late_s
    return max(values.get((OF_ONE, "lag_us"), 0) / 1e6, late_s - TICK_S)


def pool_names(values: Iterable[Key]) -> list[str]:
    """Return the names of the pools that have *values*."""
    # Each pool has a size.
    return sorted({str(name) for name, *what in values if what == ["size"]} - PARTS)


def slot_names(values: Iterable[Key]) -> list[str]:
    """Return the names of the slot tables that have *values*."""
    return sorted({str(name) for name, *_ in values if str(name).startswith(SLOTS)})
