"""Flask's sdist, which holds its tests: downloaded once, checked by pip, unpacked under ``var``."""

import os
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

from tests.support import CHECKOUT

PINNED = Path(__file__).with_name("sdist.txt")
NAME = f"flask-{version('flask')}"


def folder() -> Path:
    """Return the unpacked sdist of the Flask that is installed."""
    target = CHECKOUT / "var" / NAME
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="flask-", dir=target.parent) as scratch:
            unpacked = _unpack(_download(Path(scratch)), Path(scratch))
            if not target.exists():  # Another run may have been faster.
                os.replace(unpacked, target)
    return target


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary", "flask", "--require-hashes"]
    command += ["--requirement", str(PINNED), "--dest", str(scratch)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return scratch / f"{NAME}.tar.gz"


def _unpack(archive: Path, scratch: Path) -> Path:
    with tarfile.open(archive) as tar:
        # Python 3.11.2 has no filters; the archive is the one that was pinned.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        tar.extractall(scratch)  # noqa: S202
    return scratch / NAME
