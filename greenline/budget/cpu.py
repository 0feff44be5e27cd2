"""
How many workers suit the CPU time that this process may have; the standard library only.

1. What counts is the limit of the cgroup and of those above it, the smallest of all. The host's
   cores do not: a container with a limit sees all of them.
2. A container often sees its own cgroup where the host's root would be, under a path that is the
   host's. So each folder from that path up to the root is looked at, and a missing one is passed.
"""

from collections.abc import Iterator
from pathlib import Path

WORKERS_WITHOUT_LIMIT = 2
ROOT = Path("/")


def default_workers(root: Path = ROOT) -> int:
    """Return the limit rounded down, but 1 at least; where there is none, 2."""
    limit = cpu_limit(root)
    return WORKERS_WITHOUT_LIMIT if limit is None else max(1, int(limit))


def cpu_limit(root: Path = ROOT) -> float | None:
    """Return the limit in CPUs, None where there is none; *root* is the folder of proc and sys."""
    return min(_limits(root), default=None)


def _limits(root: Path) -> Iterator[float]:
    groups = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            # Where both versions are in use, the second may lie in a folder of its own.
            for mounted in (groups, groups / "unified"):
                for folder in _upwards(mounted, path):
                    yield from _limit(_read(folder / "cpu.max"))
        elif "cpu" in controllers.split(","):
            for folder in _upwards(groups / "cpu", path):
                quota, period = (
                    _read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")
                )
                yield from _limit(f"{quota} {period}")


def _upwards(mounted: Path, path: str) -> Iterator[Path]:
    folder = mounted / path.strip("/")
    yield folder
    for parent in folder.parents:
        if not parent.is_relative_to(mounted):
            return
        yield parent


def _limit(text: str) -> Iterator[float]:
    """Give the quotient of quota and period in *text*, unless there is no quota (max, or -1)."""
    match text.split():
        case [quota, period] if quota.isdecimal() and period.isdecimal() and int(period):
            yield int(quota) / int(period)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
