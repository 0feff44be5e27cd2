"""The limits, read from trees of files as both versions of cgroups show them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from config import load
from greenline import settings
from greenline.budget import cgroup
from greenline.budget.cgroup import cpu_limit, default_workers, memory_limit

URLS = {"DATABASE_URL": "postgresql://h/d", "MONGODB_URI": "mongodb://h"}

# What /proc/self/cgroup says, then the files below /sys/fs/cgroup.
TREES: dict[str, tuple[str, dict[str, str], float | None]] = {
    "no cgroups": ("", {}, None),
    "v2 in a container": ("0::/", {"cpu.max": "150000 100000"}, 1.5),
    "v2 without a limit": ("0::/", {"cpu.max": "max 100000"}, None),
    "v2 of a unit": ("0::/a/b.service", {"a/b.service/cpu.max": "400000 100000"}, 4.0),
    "v2, the smallest wins below": (
        "0::/a/b", {"cpu.max": "900000 100000", "a/b/cpu.max": "300000 100000"}, 3.0,
    ),
    "v2, the smallest wins above": (
        "0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "300000 100000"}, 2.0,
    ),
    "v2, another's limit does not count": ("0::/a", {"b/cpu.max": "100000 100000"}, None),
    "v1 of a service": (
        "3:cpuset:/\n2:cpu,cpuacct:/a\n1:name=systemd:/",
        {"cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"}, 2.5,
    ),
    "v1 without a limit": (
        "1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None,
    ),
    "v1 in a container, by the host's path": (
        "1:cpu:/docker/0123",
        {"cpu/cpu.cfs_quota_us": "70000", "cpu/cpu.cfs_period_us": "50000"}, 1.4,
    ),
    "both, the limit in v1": (
        "1:cpu:/a\n0::/a",
        {"cpu/a/cpu.cfs_quota_us": "1000", "cpu/a/cpu.cfs_period_us": "1000",
         "unified/a/cgroup.procs": "1"}, 1.0,
    ),
    "both, the limit in v2": ("1:cpu:/\n0::/a", {"unified/a/cpu.max": "500 1000"}, 0.5),
    "something else in the file": ("0::/", {"cpu.max": "lots"}, None),
}  # fmt: skip


def tree(folder: Path, groups: str, files: dict[str, str]) -> Path:
    """Make proc and sys in *folder*."""
    written = {"proc/self/cgroup": groups}
    written.update({f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    for name, text in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n" if text else "")
    return folder


@pytest.mark.parametrize(("groups", "files", "limit"), TREES.values(), ids=TREES)
def test_the_limit(tmp_path: Path, groups: str, files: dict[str, str], limit: float | None) -> None:
    """The smallest quota on the way to the root counts; no file and no quota are no limit."""
    assert cpu_limit(tree(tmp_path, groups, files)) == limit


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/", {"memory.max": "1073741824"}, 2**30),
        ("0::/", {"memory.max": "max"}, None),
        ("0::/a/b", {"a/memory.max": "2000000", "a/b/memory.max": "max"}, 2_000_000),
        ("2:memory:/a\n1:cpu:/b", {"memory/a/memory.limit_in_bytes": "3000000"}, 3_000_000),
        ("2:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
    ids=["v2", "v2 without a limit", "v2, of the one above", "v1", "v1 without a limit"],
)
def test_the_limit_of_the_memory(
    tmp_path: Path, groups: str, files: dict[str, str], limit: int | None
) -> None:
    """As with the CPU's; v1 writes a number where there is no limit."""
    assert memory_limit(tree(tmp_path, groups, files)) == limit


def test_without_proc_there_is_no_limit(tmp_path: Path) -> None:
    """As on macOS."""
    assert (cpu_limit(tmp_path), memory_limit(tmp_path)) == (None, None)


@pytest.mark.parametrize(
    ("quota", "workers"),
    [("10000", 1), ("100000", 1), ("199999", 1), ("200000", 2), ("790000", 7), ("max", 2)],
)
def test_as_many_workers_as_whole_cpus(tmp_path: Path, quota: str, workers: int) -> None:
    """Rounded down, one at least; two where it is not set."""
    assert default_workers(tree(tmp_path, "0::/", {"cpu.max": f"{quota} 100000"})) == workers


def test_the_service_and_its_budget_have_the_same_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither counts with 2 where there are more, and WEB_CONCURRENCY wins in both."""
    monkeypatch.setattr(cgroup, "_read", _reader(tree(tmp_path, "0::/", {"cpu.max": "5 1"})))
    monkeypatch.delenv("WEB_CONCURRENCY", raising=False)
    assert (load(URLS).workers, settings.sizing().workers) == (5, 5)
    monkeypatch.setenv("WEB_CONCURRENCY", "3")
    assert (load({**URLS, "WEB_CONCURRENCY": "3"}).workers, settings.sizing().workers) == (3, 3)


def _reader(root: Path) -> Callable[[Path], str]:
    def read(file: Path) -> str:
        path = root / file.relative_to("/")
        return path.read_text() if path.exists() else ""

    return read
