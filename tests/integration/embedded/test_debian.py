"""Programs that Debian packages, for tests that need them, with nothing installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from embedded import debian
from embedded.debian import environment, program, unpacked
from greenline.errors import ConfigError
from tests.helpers.support import IS_LONG

PACKAGE = "pgbouncer"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for what is unpacked, with a blank in its name."""
    monkeypatch.setattr(debian, "FOLDER", tmp_path / "of debian")
    return tmp_path / "of debian"


def test_what_is_unpacked_runs_where_it_lies(folder: Path) -> None:
    """With the libraries that it needs; nothing is left but the program and apt's own."""
    try:
        file = unpacked(PACKAGE) / "usr/sbin/pgbouncer"
    except ConfigError as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [file, "--version"], env=environment(folder / PACKAGE), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("PgBouncer ")
    assert {path.name for path in folder.iterdir()} <= {PACKAGE, "cache", "lists", "apt.conf"}
    before = file.stat()
    assert unpacked(PACKAGE) == folder / PACKAGE
    assert file.stat() == before


@pytest.mark.parametrize("place", ["usr/sbin", "usr/bin"])
def test_a_program_is_found_in_what_was_unpacked(folder: Path, place: str) -> None:
    """A server, or one for everybody."""
    unpacked_before = folder / "no-such-tool" / place / "no-such-tool"
    unpacked_before.parent.mkdir(parents=True)
    unpacked_before.touch()
    assert program("no-such-tool")[0] == unpacked_before


def test_what_cannot_be_fetched_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, by name; nothing half is left. By no lists of packages, and with no way out."""
    if shutil.which("apt-get") is None:
        pytest.skip("there is no apt-get here")
    configure(folder, monkeypatch, 'Acquire::http::Proxy "http://127.0.0.1:1";')
    with pytest.raises(ConfigError, match=r"^pgbouncer is not installed, and cannot be fetched: "):
        unpacked(PACKAGE)
    assert not list(folder.glob(f"{PACKAGE}*"))


@pytest.mark.skipif(not IS_LONG, reason="it loads the lists of all packages")
def test_without_lists_of_packages_it_fetches_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's stay as they are."""
    theirs = configure(folder, monkeypatch)
    try:
        assert (unpacked(PACKAGE) / "usr/sbin/pgbouncer").exists()
    except ConfigError as error:
        pytest.skip(str(error))
    assert list(theirs.iterdir()) == []


def configure(folder: Path, monkeypatch: pytest.MonkeyPatch, more: str = "") -> Path:
    """Let apt have no lists of packages, as in a container; return where they would be."""
    lists = folder.with_name("no lists")
    lists.mkdir()
    settings = folder.with_name("apt.conf")
    settings.write_text(f'Dir::State::lists "{lists}";\n{more}\n')
    monkeypatch.setenv("APT_CONFIG", str(settings))
    return lists


def test_without_the_tools_it_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another system has no packages of Debian's."""
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(ConfigError, match="there is no apt-get to fetch it"):
        unpacked(PACKAGE)
    assert not folder.exists()


def test_a_link_leads_to_a_library_that_is_installed(tmp_path: Path) -> None:
    """What is installed is not unpacked; other links that lead nowhere stay."""
    (installed, *_) = sorted(Path("/usr/lib").glob("*-linux-gnu*/libc.so.6"))
    folder = tmp_path / installed.parent.relative_to("/")
    folder.mkdir(parents=True)
    (folder / "libc.so").symlink_to(installed.name)
    (folder / "libnone.so").symlink_to("libnone.so.1")
    debian._link_installed(tmp_path)
    assert (folder / "libc.so").resolve() == installed.resolve()
    assert os.readlink(folder / "libnone.so") == "libnone.so.1"
