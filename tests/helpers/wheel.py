"""
The wheel of this checkout, and environments that have it and what it requires. No network is used.

An environment has only the distributions that were asked for and what these require, as their
metadata says, so a requirement that pyproject.toml lacks is missing here too. They are links to
those that the tests themselves run with.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

from tests.helpers.support import BIN, CHECKOUT, environ

SOURCES = ("LICENSE", "README.md", "greenline", "pyproject.toml", "setup.py")
# Both are imported as psycopg2; the tests have the one that needs no compiler.
INSTEAD = {"psycopg2": "psycopg2-binary"}

# They name other packages and folders. Without bytecode each process would compile the wheel again.
NOT_PASSED_ON = {"PYTHONPATH", "VIRTUAL_ENV", "XDG_RUNTIME_DIR", "PYTHONDONTWRITEBYTECODE"}


def build(folder: Path) -> Path:
    """Build the wheel in *folder*, from a copy of the sources, and return its path."""
    source = folder / "source"
    copy_sources(source)
    # The backend that pyproject.toml names, at the version of requirements-dev.txt.
    command = [
        str(BIN / "uv"),
        "build",
        "--wheel",
        "--offline",
        "--no-cache",
        "--no-build-isolation",
    ]
    command += ["--python", sys.executable, "--out-dir", str(folder), str(source)]
    _run(command, folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def copy_sources(target: Path) -> None:
    """Copy what a wheel is built from into the folder *target*, which is made if there is none."""
    target.mkdir(parents=True, exist_ok=True)
    for name in SOURCES:
        each = CHECKOUT / name
        if each.is_dir():
            shutil.copytree(
                each, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
            )
        else:
            shutil.copy(each, target / name)


def activated(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a shell where the environment *folder* is active, and *more*."""
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # gunicorn's control socket is below the home folder.
    mine = {"PATH": path, "HOME": str(folder)}
    return {
        name: value
        for name, value in environ({**mine, **more}).items()
        if name not in NOT_PASSED_ON
    }


class Environment:
    """
    A virtual environment with the wheel and what was asked for.

    :param folder: where it is made.
    :param wheel: the path of the wheel.
    :param requirements: as after ``pip install``, such as ``greenline[mongo]`` and ``django``.
    """

    def __init__(self, folder: Path, wheel: Path, requirements: Sequence[str]) -> None:
        self.bin = folder / "bin"
        self.folder = folder
        venv.create(folder, symlinks=True)
        purelib = sysconfig.get_path("purelib", "venv", {"base": str(folder)})
        self.packages = Path(purelib)
        command = [str(BIN / "uv"), "pip", "install", "--offline", "--no-cache", "--no-deps"]
        _run([*command, "--python", str(self.bin / "python"), str(wheel)], folder)
        for dist in self._required(requirements):
            self._link(dist)

    def environ(self, more: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a shell in which this environment is active, and *more*."""
        return activated(self.folder, more)

    def run(
        self, line: str, more: Mapping[str, str], cwd: Path
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command *line* of a shell in the folder *cwd*."""
        return subprocess.run(  # noqa: S602 - as it is typed
            line,
            shell=True,
            cwd=cwd,
            env=self.environ(more),
            text=True,
            capture_output=True,
            timeout=120,
        )

    def _required(self, requirements: Sequence[str]) -> Iterator[Distribution]:
        """Yield the distributions that *requirements* ask for, directly or not, without ours."""
        left, done = [Requirement(text) for text in requirements], set()
        while left:
            wanted = left.pop()
            if str(wanted) in done:
                continue
            done.add(str(wanted))
            dist = self._find(INSTEAD.get(wanted.name, wanted.name))
            assert wanted.specifier.contains(dist.version), (str(wanted), dist.version)
            if wanted.name != "greenline":
                yield dist
            extras = [{"extra": name} for name in ("", *wanted.extras)]
            for more in map(Requirement, dist.requires or ()):
                if more.marker is None or any(map(more.marker.evaluate, extras)):
                    left.append(more)

    def _find(self, name: str) -> Distribution:
        """Return the distribution *name*: greenline of the wheel, others of the tests."""
        path = [str(self.packages)] if name == "greenline" else sys.path
        found = next(iter(distributions(name=name, path=path)), None)
        assert found is not None, f"{name} is required and not in requirements-dev.txt"
        return found

    def _link(self, dist: Distribution) -> None:
        """Link the modules and the metadata of *dist*, and write its commands."""
        for name in {file.parts[0] for file in dist.files or ()} - {"..", "__pycache__"}:
            link = self.packages / name
            if not link.exists():  # distributions may share a folder, such as zope
                link.symlink_to(str(dist.locate_file(name)))
        for command in dist.entry_points.select(group="console_scripts"):
            script = self.bin / command.name
            script.write_text(
                f"#!{self.bin / 'python'}\n"
                f"from {command.module} import {command.attr} as run\n"
                "raise SystemExit(run())\n"
            )
            script.chmod(0o755)


def _run(command: Sequence[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
