"""A package's sdist, which holds its tests: downloaded once, checked by pip, kept in ``var``."""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.helpers.support import CHECKOUT


def folder(name: str, version: str, pinned: Path, path: str = os.environ["PATH"]) -> Path:
    """
    Return the unpacked sdist of *name*.

    :param pinned: a requirements file with its hash.
    :param path: where pip finds programs that the sdist's metadata needs.
    """
    target = CHECKOUT / "var" / f"{name}-{version}"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=target.parent) as scratch:
            _download(name, pinned, Path(scratch), path)
            unpacked = _unpack(Path(scratch, f"{target.name}.tar.gz"), Path(scratch))
            if not target.exists():  # Another run may have been faster.
                os.replace(unpacked, target)
    return target


def _download(name: str, pinned: Path, scratch: Path, path: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary", name, "--require-hashes"]
    command += ["--requirement", str(pinned), "--dest", str(scratch)]
    done = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr


def _unpack(archive: Path, scratch: Path) -> Path:
    with tarfile.open(archive) as tar:
        # Python 3.11.2 has no filters; the archive is the one that was pinned.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        tar.extractall(scratch)  # noqa: S202
    return scratch / archive.name.removesuffix(".tar.gz")
