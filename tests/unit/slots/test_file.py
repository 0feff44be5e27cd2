"""The file of a slot table: what is trusted, made anew, or refused and left as it is."""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from greenline import slots
from greenline.errors import ConfigError
from greenline.slots import SlotTable, location
from greenline.slots.file import RANGE, ROW_LOCKS, ROWS, SIZE, SlotFile
from greenline.slots.table import FILE_CHECK_S
from tests.helpers.clock import Clock
from tests.helpers.support import CHECKOUT, environ
from tests.unit.slots.slot_tables import Open, taken

NOBODY = 65_534


def raw_lock(path: Path, start: int, length: int) -> int:
    """Lock bytes of the file as another process would, and return the descriptor."""
    fd = os.open(path, os.O_RDWR)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, RANGE.pack(fcntl.F_WRLCK, 0, start, length, 0))
    return fd


def test_a_file_is_named_by_user_and_server(tmp_path: Path) -> None:
    """Two servers have two slot tables, in shared memory where there is any."""
    one, other = slots.path("a:5432"), slots.path("b:5432")
    assert one != other
    assert one.name.startswith(f"greenline-{os.geteuid()}-")
    assert one.parent == (Path("/dev/shm") if os.path.isdir("/dev/shm") else tmp_path.parent)


def test_without_shared_memory_it_is_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have none."""
    monkeypatch.setattr(location, "SHARED_MEMORY", tmp_path / "none")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert slots.path("a:5432").parent == tmp_path


def test_only_its_user_may_open_it(opened: Open, path: Path) -> None:
    """It is private from the first moment, and nothing else is left in the folder."""
    opened()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == SIZE
    assert list(path.parent.iterdir()) == [path]


def damage(path: Path, how: str) -> None:
    """Make the file one that is not to be trusted."""
    with path.open("r+b") as file:
        if how == "truncated":
            file.truncate(100)
        elif how == "empty":
            file.truncate(0)
        elif how == "too long":
            file.truncate(SIZE + 1)
        elif how == "of another version":
            file.seek(8)
            file.write(b"\2")
        else:
            file.write(b"something else")


DAMAGES = ["truncated", "empty", "too long", "of another version", "not a slot table"]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_that_is_not_in_use_is_made_anew(opened: Open, path: Path, how: str) -> None:
    """Nothing in it is believed, the slots that it says are held least of all."""
    before = opened(2)
    taken(before, 2)
    before.close()
    damage(path, how)
    number = path.stat().st_ino
    one = opened(2)
    assert len(taken(one, 2)) == 2
    assert path.stat().st_ino == number
    assert path.stat().st_size == SIZE


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_in_use_is_refused_and_left_as_it_is(path: Path, how: str) -> None:
    """Another version may be at work with it: the error names the file."""
    SlotFile(path).close()
    damage(path, how)
    before = path.read_bytes()
    other = raw_lock(path, ROW_LOCKS, 1)
    with pytest.raises(ConfigError, match=rf"{path}: it is damaged.*in use"):
        SlotFile(path, patience_s=0)
    assert path.read_bytes() == before
    os.close(other)


def make_foreign(path: Path, how: str) -> None:
    """Put something at *path* that cannot be a slot table of ours."""
    if how == "a folder":
        path.mkdir()
    elif how == "a pipe":
        os.mkfifo(path, 0o600)
    elif how == "a link":
        SlotTable(path.with_name("another")).close()
        path.symlink_to(path.with_name("another"))
    elif how == "open to others":
        SlotFile(path).close()
        path.chmod(0o666)
    elif how == "in no folder":
        path.parent.rmdir()


@pytest.mark.parametrize(
    ("how", "trouble"),
    [
        ("a folder", "directory"),
        ("a pipe", "no regular file"),
        ("a link", "symbolic"),
        ("open to others", "0666"),
        ("in no folder", "No such file"),
    ],
)
def test_what_cannot_be_ours_is_refused_by_name(tmp_path: Path, how: str, trouble: str) -> None:
    """Whatever lies there is neither trusted nor changed."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = slots.path("a:5432", folder)
    make_foreign(path, how)
    with pytest.raises(ConfigError, match=rf"{path}: it .*{trouble}"):
        SlotTable(path)


AS_NOBODY = """
import os, sys
from pathlib import Path
from greenline.errors import ConfigError
from greenline.slots import SlotTable
if os.geteuid() == 0:
    os.seteuid({nobody})
try:
    SlotTable(Path(sys.argv[1]))
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize("what", ["file of another user", "folder"])
def test_what_may_not_be_written_is_refused_by_name(what: str) -> None:
    """Another user's slot table, or a folder where nothing may be made."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    path = folder / "slots"
    if what != "folder":
        SlotFile(path).close()
        path.chmod(0o400)
    folder.chmod(0o555)
    command = [sys.executable, "-c", AS_NOBODY.format(nobody=NOBODY), str(path)]
    done = subprocess.run(
        command, cwd=CHECKOUT, env=environ({}), capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith(f"{path}: it cannot be opened (Permission denied)"), done
    folder.chmod(0o755)
    path.unlink(missing_ok=True)
    folder.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(path: Path) -> None:
    """One who may open it all the same does not trust it: its owner could write what he likes."""
    SlotFile(path).close()
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match=rf"{path}: it belongs to user {NOBODY}, not to 0"):
        SlotTable(path)


def test_more_processes_than_rows_are_refused(path: Path) -> None:
    """The one too many hears why."""
    SlotFile(path).close()
    others = raw_lock(path, ROW_LOCKS, ROWS)
    with pytest.raises(ConfigError, match=rf"{path}: {ROWS} processes use it already"):
        SlotFile(path, patience_s=0)
    os.close(others)


def test_when_the_file_is_removed_all_move_to_the_next_one(
    opened: Open, path: Path, clock: Clock
) -> None:
    """What they hold they hold there too, the orphans included, and nothing is taken meanwhile."""
    victim, one, other = opened(5), opened(5), opened(5)
    taken(victim)[0].hold(77)
    (slot,) = taken(one)
    slot.hold(78)
    taken(other, 2)
    victim.close()
    path.unlink()
    clock.now += FILE_CHECK_S
    assert one.take() is None  # the others have not moved yet
    assert [orphan.pid for orphan in other.orphans()] == []
    clock.now += 2 * FILE_CHECK_S
    assert [orphan.pid for orphan in one.orphans()] == [77]
    assert slot.pid == 78
    assert not one.is_over(slot)
    taken(opened(5))
    assert one.take() is other.take() is None
    one.give(slot)
    taken(other)


def test_what_finds_no_place_after_a_move_is_over(opened: Open, path: Path, clock: Clock) -> None:
    """A newcomer took everything before the old ones had noticed: theirs are seen off."""
    old = opened(3)
    slots = taken(old, 3)
    path.unlink()
    new = opened(3)
    taken(new, 2)
    clock.now += FILE_CHECK_S
    assert old.take() is None
    assert sorted(old.is_over(slot) for slot in slots) == [False, True, True]
    for slot in slots:
        old.give(slot)
    clock.now += 2 * FILE_CHECK_S
    taken(old)
    assert new.take() is None


def test_when_the_path_is_taken_by_something_else_they_go_on_together(
    opened: Open, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once a minute, and the old file serves the processes that have it."""
    one, other = opened(2), opened(2)
    path.unlink()
    path.mkdir()
    clock.now += FILE_CHECK_S
    taken(one, 2)
    clock.now += FILE_CHECK_S
    one.orphans()
    assert other.take() is None
    assert [record.message.count(str(path)) for record in caplog.records] == [1, 1]


def test_the_last_one_removes_the_file(path: Path, opened: Open) -> None:
    """Not while another uses it, and not while a slot is held, by a dead one too."""
    first, second = opened(2, 0), opened(2, 0)
    second.close()
    assert path.exists()
    slot = first.take()
    assert slot is not None
    first.abandon(slot)
    first.close()
    assert path.exists()
    third = opened(2, 0)
    for orphan in third.orphans():
        third.give(orphan)
    third.close()
    assert not path.exists()
