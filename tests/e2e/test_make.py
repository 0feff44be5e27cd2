"""What make sets up and cleans, in a copy of the checkout."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.support import CHECKOUT, environ

IGNORED = shutil.ignore_patterns(
    ".venv*", "var", ".git", ".hypothesis", "*_cache", "__pycache__", "results"
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The checkout without what was made in it, in a folder with a blank in its name."""
    return Path(shutil.copytree(CHECKOUT, tmp_path / "a copy", ignore=IGNORED))


def make(target: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", target], cwd=folder, env=environ({}), capture_output=True, text=True, timeout=60
    )


def test_clean_removes_what_was_made_and_nothing_else(copy: Path) -> None:
    """Data, binaries, environment and caches go; the code stays."""
    before = {path.relative_to(copy) for path in copy.rglob("*")}
    for made in ("var/postgres", "var/bin", ".venv/lib", ".pytest_cache", "app/__pycache__"):
        (copy / made).mkdir(parents=True)
        (copy / made / "file").touch()
    done = make("clean", copy)
    assert done.returncode == 0, done.stderr
    assert {path.relative_to(copy) for path in copy.rglob("*")} == before


def test_setting_up_again_does_nothing() -> None:
    """The stamp in .venv says that all is there: no pip, no output."""
    done = make("setup-dev", CHECKOUT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
