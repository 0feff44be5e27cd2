"""Processes that the tests have not started: an arbiter's successor, nginx's workers.

Each function answers for a process that ends while it is asked, too: reading the files of one that
has just ended fails with ESRCH where the file was opened before, with ENOENT otherwise.
"""

from collections.abc import Iterable
from pathlib import Path


def pid_in(path: Path) -> int | None:
    """Return the process id in the file, if there is one."""
    try:
        return int(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def children(pid: int) -> list[int]:
    """Return the process's children, the oldest first; none when it is gone."""
    return list(map(int, _read(f"{pid}/task/{pid}/children").split()))


def ops_process(arbiter: int) -> int | None:
    """Return the child of *arbiter* that serves /metrics and the page, None if there is none."""
    for pid in children(arbiter):
        if "greenline.ops" in _read(f"{pid}/cmdline"):
            return pid
    return None


def lives(pid: int) -> bool:
    """Return whether there is such a process, and no zombie."""
    return state(pid) not in ("", "Z")


def state(pid: int) -> str:
    """Return the letter of the process's state, "" without one."""
    return "".join(stat(pid)[:1])


def stat(pid: int) -> list[str]:
    """Return the fields of the process from its state on (see proc_pid_stat.txt), [] when gone."""
    return _read(f"{pid}/stat").rpartition(")")[2].split()


def processor_wait_s(pids: Iterable[int]) -> float:
    """Return for how long the processes' threads were ready to run and had no processor, in all."""
    fields = (
        _read(f"{pid}/task/{thread.name}/schedstat").split()
        for pid in pids
        for thread in Path("/proc", str(pid), "task").iterdir()
    )
    return sum(int(each[1]) for each in fields if each) / 1e9  # of Linux: sched-stats.rst


def _read(name: str) -> str:
    try:
        return Path("/proc", name).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
