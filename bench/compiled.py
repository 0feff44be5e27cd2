"""
Build the package as pip does, once, in ``var/compiled``: its hot path is compiled.

What is measured of single requests is what an installation has. The checkout is Python alone.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.hey_build import VAR, BuildError

ROOT = Path(__file__).resolve().parents[1]
FOLDER = VAR / "compiled"  # for PYTHONPATH
SOURCES = ("LICENSE", "README.md", "greenline", "pyproject.toml", "setup.py")
IGNORED = shutil.ignore_patterns("__pycache__", "*.so")


def env() -> dict[str, str]:
    """Return the environment of a server that is to have it; in ROOT, that one's would be first."""
    return {"PYTHONPATH": f"{FOLDER}{os.pathsep}{ROOT}"}


def build() -> None:
    """
    Have the package of the present sources in FOLDER.

    :raises BuildError: pip failed, or there is no C compiler.
    """
    note, digest = FOLDER / "digest", _digest()
    if note.exists() and note.read_text() == digest:
        return
    print(f"compiling greenline once into {FOLDER.relative_to(VAR.parent)}", file=sys.stderr)
    shutil.rmtree(FOLDER, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        copy_sources(Path(name))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        done = subprocess.run(
            [*pip, FOLDER, "--no-build-isolation", name],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise BuildError(f"greenline could not be built: {done.stderr.strip()[-500:]}")
    if not any((FOLDER / "greenline" / "http").glob("connection.*.so")):
        raise BuildError("greenline was not compiled: is there a C compiler, and Python's headers?")
    note.write_text(digest)


def copy_sources(target: Path) -> None:
    """Copy what a wheel is built from into the folder *target*, which is made if there is none."""
    target.mkdir(parents=True, exist_ok=True)
    for name in SOURCES:
        each = ROOT / name
        if each.is_dir():
            shutil.copytree(each, target / name, ignore=IGNORED)
        else:
            shutil.copy(each, target / name)


def _digest() -> str:
    found = hashlib.sha256(f"{FOLDER} {sys.version}".encode())
    for each in SOURCES:
        source = ROOT / each
        files = sorted(source.rglob("*.*")) if source.is_dir() else [source]
        for file in files:
            if file.is_file() and file.suffix not in (".pyc", ".so"):
                found.update(file.read_bytes())
    return found.hexdigest()
