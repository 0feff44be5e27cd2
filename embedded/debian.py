"""
Fetch a program that Debian packages and unpack it under ``var``: the system is left as it is.

1. Its package is downloaded by the lists of packages that the system has; where these are missing
   or too old, by lists of our own.
2. Libraries that it depends on and that are not installed are unpacked with it.
3. It appears whole or not at all, and two runs at once fetch it once.
"""

import os
import re
import shutil
from pathlib import Path

from embedded.lock import FolderLock
from embedded.process import run
from embedded.settings import VAR
from greenline.errors import ConfigError

FOLDER = VAR / "debian"
TOOLS = ("apt-get", "dpkg-deb", "dpkg-query")
LIMIT_S = 60  # for one call of apt-get
# What an update sets off is for the system's own lists.
SETTINGS = """
Dir::Cache "{folder}/cache";
Acquire::Retries "0";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""


class Failed(Exception):
    """A tool says why it did not do it."""


def unpacked(package: str) -> Path:
    """
    Return the folder in which *package* lies unpacked, as if it were ``/``.

    Raises:
        ConfigError: it cannot be had here; says why.
    """
    target = FOLDER / package
    if target.exists():
        return target
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise ConfigError(f"{package} is not installed, and there is no {missing[0]} to fetch it")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FolderLock(FOLDER):
        try:
            if not target.exists():  # Another run may have fetched it while we waited.
                _unpack(package, target)
        except Failed as error:
            what = f"{package} is not installed, and cannot be fetched: {error}"
            raise ConfigError(what) from error
    return target


def program(name: str) -> tuple[Path, dict[str, str]]:
    """
    Return the path of the program *name*, installed or unpacked, and the environment it runs in.

    Raises:
        ConfigError: it cannot be had here; says why.
    """
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is not None:
        return Path(found), dict(os.environ)
    folder = unpacked(name)
    place = "usr/sbin" if (folder / "usr/sbin" / name).exists() else "usr/bin"
    return folder / place / name, environment(folder)


def environment(folder: Path) -> dict[str, str]:
    """Return our environment, in which what is unpacked in *folder* finds its libraries."""
    places = sorted({str(library.parent) for library in folder.rglob("lib*.so*")})
    told = os.environ.get("LD_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": ":".join([*places, *([told] if told else [])])}


def _unpack(package: str, target: Path) -> None:
    new = target.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        wanted, fetched = [package], set[str]()
        while wanted:
            name = wanted.pop()
            fetched.add(name)
            archive = _downloaded(name)
            _run(["dpkg-deb", "--extract", archive, new])
            wanted += [each for each in _libraries(archive) if each not in fetched]
        _link_installed(new)
        os.replace(new, target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        for archive in FOLDER.glob("*.deb"):
            archive.unlink()


def _link_installed(folder: Path) -> None:
    """Let links in *folder* to libraries that are installed, and so not unpacked, lead to them."""
    for link in folder.rglob("lib*.so"):
        if link.is_symlink() and not link.exists():
            installed = Path("/", link.relative_to(folder).parent, os.readlink(link))
            if installed.exists():
                link.unlink()
                link.symlink_to(installed)


def _downloaded(package: str) -> Path:
    lists = FOLDER / "lists"
    ours = [f"-oDir::State::lists={lists}"]
    try:
        _apt([*(ours if lists.exists() else []), "download", package])
    except Failed:
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        _apt([*ours, "update"])
        _apt([*ours, "download", package])
    (archive,) = FOLDER.glob(f"{package}_*.deb")
    return archive


def _apt(arguments: list[str]) -> None:
    (FOLDER / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    settings = FOLDER / "apt.conf"
    settings.write_text(SETTINGS.format(folder=FOLDER))
    # As root it would fetch as a user of its own, who may not come here.
    as_root = ["-oAPT::Sandbox::User=root"] if os.geteuid() == 0 else []
    _run(["timeout", str(LIMIT_S), "apt-get", "-qq", "-c", settings, *as_root, *arguments])


def _run(command: list[str | Path]) -> str:
    done = run(command, cwd=FOLDER, env={**os.environ, "LC_ALL": "C"})
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Failed(f"{' '.join(map(str, command[-2:]))}: {said[-1]}")
    return done.stdout


def _libraries(archive: Path) -> list[str]:
    """Return the names of the libraries that *archive* depends on and that are not installed."""
    depends = _run(["dpkg-deb", "--field", archive, "Pre-Depends", "Depends"])
    names = re.findall(r"(?:^|,|:)\s*(lib[a-z0-9.+-]+)", depends, re.MULTILINE)
    # libc-dev is no package but what libc6-dev provides, which comes with a compiler.
    return [name for name in names if name != "libc-dev" and not _is_installed(name)]


def _is_installed(package: str) -> bool:
    done = run(["dpkg-query", "--show", "--showformat=${db:Status-Status}", package])
    return done.returncode == 0 and done.stdout == "installed"
