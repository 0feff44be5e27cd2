"""Run a suite of Flask's or of an extension's, in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.support import CHECKOUT, environ

RUNNER = CHECKOUT / "tests" / "flask_suite" / "run.py"
# What a suite needs of its sdist: the tests with their settings, and the package itself.
PARTS = ("tests", "src", "pyproject.toml", "setup.cfg")


@dataclass(frozen=True)
class Run:
    """What came of the suite: *adopted* has the classes of the applications that were used."""

    outcomes: dict[str, str]
    applications: int
    adopted: list[str]
    output: str

    def but_passed(self) -> set[str]:
        return {test for test, outcome in self.outcomes.items() if outcome != "passed"}


def copy(source: Path, suite: Path, parts: Sequence[str] = PARTS) -> None:
    """Copy *parts* of an sdist out of the checkout, whose .flaskenv some tests would find."""
    suite.mkdir()
    for each in parts:
        if (source / each).is_dir():
            shutil.copytree(source / each, suite / each)
        elif (source / each).is_file():
            shutil.copy(source / each, suite)


def run(
    whose: str,
    suite: Path,
    *arguments: str,
    path: Sequence[Path] = (),
    more: Mapping[str, str] | None = None,
    limit_s: float = 170,
) -> Run:
    """
    Run the suite in the folder *suite*.

    :param whose: as of run.py.
    :param arguments: pytest's.
    :param path: folders of modules that the tests import.
    :param more: variables of the environment.
    """
    result = suite / f"{whose}.json"
    python_path = os.pathsep.join(map(str, path))
    done = subprocess.run(
        [sys.executable, str(RUNNER), str(CHECKOUT), whose, str(result), *arguments],
        cwd=suite,
        env=environ({"PYTHONPATH": python_path, **(more or {})}),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=limit_s,
    )
    assert result.exists(), done.stdout
    return Run(**json.loads(result.read_text()), output=done.stdout)
