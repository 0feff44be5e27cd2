"""
Read the limits of the process's cgroup, and derive the number of workers from that of the CPU.

The number of cores is not used: a container with a CPU limit sees all cores of its host.
"""

from collections.abc import Iterator
from pathlib import Path

WORKERS_WITHOUT_LIMIT = 2
FILESYSTEM_ROOT = Path("/")
NO_MEMORY_LIMIT = 2**60


def default_workers(root: Path = FILESYSTEM_ROOT) -> int:
    """Return the CPU limit rounded down, at least 1; 2 if there is no limit."""
    limit = cpu_limit(root)
    return WORKERS_WITHOUT_LIMIT if limit is None else max(1, int(limit))


def cpu_limit(root: Path = FILESYSTEM_ROOT) -> float | None:
    """Return the limit in CPUs, None if there is none; *root* is the folder of proc and sys."""
    # Each cgroup is limited by those above it as well.
    return min(_cpu_limits(root), default=None)


def memory_limit(root: Path = FILESYSTEM_ROOT) -> int | None:
    """Return the limit in bytes, None if there is none; *root* is the folder of proc and sys."""
    texts = (
        _read(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        for version, folder in _folders(root, "memory")
    )
    # Without a limit v2 says "max", and v1 the largest number of pages.
    limits = (int(text) for text in texts if text.strip().isdecimal())
    return min((limit for limit in limits if limit < NO_MEMORY_LIMIT), default=None)


def _cpu_limits(root: Path) -> Iterator[float]:
    for version, folder in _folders(root, "cpu"):
        if version == 2:
            yield from _limit(_read(folder / "cpu.max"))
        else:
            quota, period = (_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
            yield from _limit(f"{quota} {period}")


def _folders(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """Yield the version of cgroups and the folder of each cgroup that limits this process."""
    groups = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            # Where both versions are in use, v2 may be mounted in a folder of its own.
            for mounted in (groups, groups / "unified"):
                yield from ((2, folder) for folder in _upwards(mounted, path))
        elif controller in controllers.split(","):
            yield from ((1, folder) for folder in _upwards(groups / controller, path))


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
