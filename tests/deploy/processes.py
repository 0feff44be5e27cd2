"""Processes that the tests have not started: an arbiter's successor, nginx's workers."""

from pathlib import Path


def pid_in(path: Path) -> int | None:
    """Return the process id in the file, if there is one."""
    try:
        return int(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def children(pid: int) -> set[int]:
    """Return the process's children."""
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def lives(pid: int) -> bool:
    """Return whether there is such a process, and no zombie."""
    return state(pid) not in ("", "Z")


def state(pid: int) -> str:
    """Return the letter of the process's state (see proc_pid_stat.txt), "" without one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return ""
