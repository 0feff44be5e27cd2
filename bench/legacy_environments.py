"""
Make a virtual environment for each application of ``bench.legacy``, once, in ``var/legacy``.

1. Everything is pinned, including what is asked for indirectly, and installed without looking at
   dependencies: an application whose metadata forbid our gunicorn or greenlet gets them all the
   same, and is not changed itself.
2. greenline is imported from the checkout, by PYTHONPATH.
3. The digest of the pins is written when an install is complete; without it the environment is
   made anew.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from bench.hey_build import VAR

PINS = Path(__file__).parent / "peers" / "legacy"
FOLDER = VAR / "legacy"


class InstallError(Exception):
    """An environment could not be made."""


def find(name: str) -> Path:
    """
    Return the folder of the environment of the application *name*, made first where there is none.

    :raises InstallError: pip failed.
    """
    pins = [PINS / f"{name}.txt", PINS / "greenline.txt"]
    target = FOLDER / name
    digest = _digest(target, pins)
    note = target / "installed"
    if note.exists() and note.read_text() == digest:
        return target
    print(f"installing {name} once into {target.relative_to(VAR.parent)}", file=sys.stderr)
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(target)])
    pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
    _run([*pip, *(word for each in pins for word in ("-r", str(each)))])
    note.write_text(digest)
    return target


def _digest(target: Path, pins: list[Path]) -> str:
    found = hashlib.sha256(f"{target} {sys.version}".encode())
    for each in pins:
        found.update(each.read_bytes())
    return found.hexdigest()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallError(f"{' '.join(command[:4])}: {done.stderr.strip()[-500:]}")
