"""
Look at processes through Linux's ``/proc``.

A process may end at any moment: one that is gone has no children and no memory.
"""

import os
import time
from pathlib import Path

MB = 1024 * 1024
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Return the children that *pid* has now."""
    found = (_read(task / "children") for task in Path(f"/proc/{pid}/task").glob("*"))
    return [int(child) for text in found for child in text.split()]


def tree(pid: int) -> list[int]:
    """Return *pid* and all below it."""
    return [pid, *(each for child in children(pid) for each in tree(child))]


def rss_mb(pid: int) -> float:
    """Return the resident memory of *pid* and all below it; shared pages count in each."""
    pages = (_read(Path(f"/proc/{each}/statm")).split() for each in tree(pid))
    return round(sum(int(page[1]) for page in pages if page) * os.sysconf("SC_PAGE_SIZE") / MB, 1)


def pss_bytes(pid: int) -> int:
    """Return the memory of *pid* and all below it; a page that n processes have is 1/n in each."""
    found = (_read(Path(f"/proc/{each}/smaps_rollup")) for each in tree(pid))
    texts = (text.partition("\nPss:")[2] for text in found)
    return sum(int(text.split()[0]) * 1024 for text in texts if text)


def peak_mb(pid: int) -> float:
    """Return the most resident memory that *pid* has had; 0 when it is gone."""
    _, _, rest = _read(Path(f"/proc/{pid}/status")).partition("VmHWM:")
    return round(int(rest.split()[0]) / 1024, 1) if rest else 0.0


def cpu_ticks(pid: int) -> int:
    """Return the processor time that *pid* and all below it have used, in the kernel's ticks."""
    return sum(int(stat[11]) + int(stat[12]) for stat in _stats(pid))


def cpu_ns(pid: int) -> int:
    """Return the processor time that *pid* and all below it have used, in nanoseconds."""
    return sum(_cpu_clock_ns(each) for each in tree(pid))


def _cpu_clock_ns(pid: int) -> int:
    try:
        # What clock_getcpuclockid() of the C library makes of a process id.
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return 0


def is_runnable(pid: int) -> bool:
    """Return whether *pid* or one below it runs, or waits for a processor or a disk."""
    return any(stat[0] in "RD" for stat in _stats(pid))


def _stats(pid: int) -> list[list[str]]:
    """Return the fields of ``/proc/PID/stat`` from the state on, of *pid* and all below it."""
    # The name, field 2, may hold spaces; it ends at the last bracket.
    stats = (_read(Path(f"/proc/{each}/stat")).rpartition(")")[2].split() for each in tree(pid))
    return [stat for stat in stats if stat]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
