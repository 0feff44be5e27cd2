"""Processes that are nobody's child here: a master that another one started, nginx's workers."""

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
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
