"""tests.helpers.canary: what is installed, and which package a failure is put down to."""

from pathlib import Path

from tests.helpers.canary import (
    FAILED,
    PROJECT,
    RUNTIME,
    culprits,
    lower_bounds,
    without_bounds,
)
from tests.helpers.support import CHECKOUT

OUTPUT = """
FAILED tests/unit/test_a.py::test_a - assert 1 == 2
FAILED tests/unit/test_a.py::test_b[a - b] - assert 1 == 2
ERROR tests/unit/test_c.py
"""


def test_the_newest_versions_are_asked_for(tmp_path: Path) -> None:
    """Without bounds and comments, with markers, of all files; the rest comes with them."""
    (tmp_path / "one.txt").write_text("# What we use.\n-r other.txt\na.b-c==1.0b2 ; python < '4'\n")
    (tmp_path / "other.txt").write_text("d==1.2\n\n# Asked for by the above.\ne==1.3\n")
    assert without_bounds(tmp_path / "one.txt") == ["d", "a.b-c ; python < '4'"]


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    """They are the package's own."""
    assert lower_bounds(CHECKOUT / PROJECT) == [
        "gevent==25.5.1", "gunicorn==23", "pymongo==4.19",
    ]  # fmt: skip


def test_the_tests_of_the_runtime_exist() -> None:
    """pytest ends at once for a path that is gone, and runs none of the others."""
    assert [path for path in RUNTIME if not (CHECKOUT / path).exists()] == []


def test_the_failed_tests_are_read_from_the_summary() -> None:
    """Their ids may contain blanks."""
    assert FAILED.findall(OUTPUT) == [
        "tests/unit/test_a.py::test_a", "tests/unit/test_a.py::test_b[a - b]",
        "tests/unit/test_c.py",
    ]  # fmt: skip


def test_a_failure_is_put_down_to_the_package_whose_old_version_passes() -> None:
    """The others are tried only for tests that still have none."""
    passing = {"b": {"x", "y"}, "c": {"z"}}
    asked = []

    def fails_with(name: str, version: str) -> set[str]:
        asked.append((name, version))
        return {"x", "y", "z", "other"} - passing.get(name, set())

    changed = dict.fromkeys("abcd", ("1", "2"))
    found = culprits({"x", "y", "z"}, changed, fails_with)
    assert found == {"a": set(), "b": {"x", "y"}, "c": {"z"}}
    assert asked == [("a", "1"), ("b", "1"), ("c", "1")]
