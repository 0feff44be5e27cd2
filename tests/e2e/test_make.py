"""What make sets up and cleans, in a copy of the checkout."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from embedded import clean
from tests.helpers.pages import PAGES, commands
from tests.helpers.support import CHECKOUT, IS_LONG, environ

TARGETS = {line[5:] for page in PAGES for line in commands(page) if line.startswith("make ")}
IGNORED = shutil.ignore_patterns(
    ".venv*", "var", ".git", ".hypothesis", "*_cache", "__pycache__", "results", "*.so",
    "build", "dist", "*.egg-info",
)  # fmt: skip


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The checkout without what was made in it, in a folder with a blank in its name."""
    return Path(shutil.copytree(CHECKOUT, tmp_path / "a copy", ignore=IGNORED))


def make(*words: str, folder: Path, timeout_s: int = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *words],
        cwd=folder,
        env=environ({}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def test_clean_removes_what_was_made_and_nothing_else(copy: Path) -> None:
    """Data, binaries, environment and caches go; the code stays."""
    before = {path.relative_to(copy) for path in copy.rglob("*")}
    for made in ("var/postgres", "var/bin", ".venv/lib", ".pytest_cache", "app/__pycache__"):
        (copy / made).mkdir(parents=True)
        (copy / made / "file").touch()
    (copy / clean.COMPILED).touch()
    done = make("clean", folder=copy)
    assert done.returncode == 0, done.stderr
    assert {path.relative_to(copy) for path in copy.rglob("*")} == before


def test_setting_up_again_does_nothing() -> None:
    """The stamp in .venv says that all is there: no pip, no output."""
    done = make("setup-dev", folder=CHECKOUT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_target_on_a_page_starts_programs_that_exist(target: str) -> None:
    """Of what make would run: modules of the checkout have a file and a main part."""
    done = make("-n", *target.split(), folder=CHECKOUT)
    assert done.returncode == 0, done.stderr
    ours = re.findall(r"-m ((?:bench|embedded|tests)[\w.]+)", done.stdout)
    if target.startswith("bench-"):
        assert f"bench.{target[6:].replace('-', '_')}" in ours
    for module in ours:
        path = CHECKOUT.joinpath(*module.split(".")).with_suffix(".py")
        assert '__name__ == "__main__"' in path.read_text(encoding="utf-8"), module


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 installs from the network")
def test_the_site_of_the_pages_is_built(copy: Path) -> None:
    """``make docs`` in a copy; a broken link would end it."""
    done = make("docs", folder=copy, timeout_s=600)
    assert done.returncode == 0, done.stderr
    assert (copy / "var" / "site" / "index.html").is_file()
