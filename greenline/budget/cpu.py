"""
Derive the number of workers from the CPU limit of the process's cgroup.

The number of cores is not used: a container with a CPU limit sees all cores of its host.
"""

from collections.abc import Iterator
from pathlib import Path

WORKERS_WITHOUT_LIMIT = 2
FILESYSTEM_ROOT = Path("/")


def default_workers(root: Path = FILESYSTEM_ROOT) -> int:
    """Return the CPU limit rounded down, at least 1; 2 if there is no limit."""
    limit = cpu_limit(root)
    return WORKERS_WITHOUT_LIMIT if limit is None else max(1, int(limit))


def cpu_limit(root: Path = FILESYSTEM_ROOT) -> float | None:
    """Return the limit in CPUs, None if there is none; *root* is the folder of proc and sys."""
    # Each cgroup is limited by those above it as well.
    return min(_limits(root), default=None)


def _limits(root: Path) -> Iterator[float]:
    groups = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # cgroup v2
            # Where both versions are in use, v2 may be mounted in a folder of its own.
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
    # The path is the host's, but a container often has its own cgroup mounted at the root. So
    # each folder from the path up to the root is tried, and a missing one reads as empty.
    folder = mounted / path.strip("/")
    yield folder
    for parent in folder.parents:
        if not parent.is_relative_to(mounted):
            return
        yield parent


def _limit(text: str) -> Iterator[float]:
    """Yield quota / period of *text*, nothing if there is no quota ("max", or -1)."""
    match text.split():
        case [quota, period] if quota.isdecimal() and period.isdecimal() and int(period):
            yield int(quota) / int(period)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, ValueError):  # a system without cgroups, or without /proc, has no limit
        return ""
