"""
Places outside the checkout, for what the Postgres user of root could not reach inside it.

A checkout may lie under a folder that only root enters (/root, a mktemp -d). Opening that folder
to others would expose everything in it, so its mode is left alone and only what Postgres needs
moves to ``/var/lib/greenline/<hash of its path>``.

1. ``data`` there is the data, which the original path is a symlink to, or the copied binaries.
2. ``origin`` there names the path it stands for; a place whose origin is gone is nobody's.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from embedded.lock import FolderLock

ROOT = Path("/var/lib/greenline")


def data_home(path: Path) -> Path:
    """Return where the data of *path* live outside the checkout; *path* becomes a link to it."""
    if path.is_symlink() and path.exists():
        target = path.resolve()
        _note(target.parent, path)  # The checkout may have moved since.
        return target
    _make(ROOT)
    with FolderLock(ROOT):
        target = place(path) / "data"
        if path.is_symlink():
            path.unlink()
        if target.exists():  # The folder it stood for was removed, and so is its data.
            shutil.rmtree(target)
        if path.exists():
            shutil.move(path, target)
        target.mkdir(exist_ok=True, mode=0o700)
        path.symlink_to(target)
    return target


def place(path: Path) -> Path:
    """Return the place that stands for *path*, made when it is missing."""
    digest = hashlib.sha256(bytes(_absolute(path))).hexdigest()[:12]
    found = ROOT / digest
    _make(ROOT)
    _make(found)
    _note(found, path)
    return found


def remove_under(*folders: Path) -> None:
    """Remove the places that stand for paths in *folders*."""
    within = [_absolute(folder) for folder in folders]
    _remove(lambda origin: any(origin.is_relative_to(folder) for folder in within))


def remove_orphans() -> None:
    """Remove the places whose origin is gone."""
    _remove(lambda origin: not os.path.lexists(origin))


def _remove(unwanted: Callable[[Path], bool]) -> None:
    # Only root has places there, and only root sees every origin.
    if not ROOT.exists() or os.geteuid() != 0:
        return
    with FolderLock(ROOT):  # No place is half made meanwhile.
        for note in ROOT.glob("*/origin"):
            if unwanted(Path(note.read_text())):
                shutil.rmtree(note.parent)


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # Our own folder, whatever the umask is.


def _note(found: Path, path: Path) -> None:
    (found / "origin").write_text(str(_absolute(path)))


def _absolute(path: Path) -> Path:
    # The last part stays as it is: it may be our own link.
    return path.parent.resolve() / path.name
