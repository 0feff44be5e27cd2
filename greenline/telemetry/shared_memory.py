"""
The memory that the workers of an arbiter share: for each a row of counts, histograms and reports.

Each worker locks one row, and continues from what is in it. The memory has no name, so nothing has
to be removed after a crash; it lives as long as a process has it.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROWS = 256
# Three areas, each with a part of every row.
COUNTS_ROW_BYTES = 1024 * 256
HISTOGRAMS_ROW_BYTES = 512 * 2048
REPORTS_ROW_BYTES = 1024 * 1024
HISTOGRAMS_START = ROWS * COUNTS_ROW_BYTES
REPORTS_START = HISTOGRAMS_START + ROWS * HISTOGRAMS_ROW_BYTES
SIZE_BYTES = REPORTS_START + ROWS * REPORTS_ROW_BYTES
FORM = "2"  # of the contents; another version of Greenline may have another one
PREFIX = "greenline-counters"
NAME = f"{PREFIX}-{FORM}"
# Internal: the memory of the arbiter that has executed this one, and its form.
HANDED_OVER = "GREENLINE_COUNTERS"


class OtherForm(Exception):
    """The memory of another version of Greenline, which this one cannot read."""


def share() -> int:
    """
    Return a descriptor of shared memory; call it in the arbiter, before the fork.

    It is that of the arbiter before this one, if that has handed it over, otherwise it is new.
    """
    given, _, form = os.environ.pop(HANDED_OVER, "").partition(":")
    with suppress(OSError, ValueError):
        if form == FORM and os.fstat(int(given)).st_size == SIZE_BYTES:
            os.set_inheritable(int(given), False)
            return int(given)
        os.close(int(given))  # of another version, which this one cannot read
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(NAME)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, SIZE_BYTES)  # pages are allocated on the first write
    return fd


@contextmanager
def handed_over(fd: int, environ: dict[str, str]) -> Iterator[None]:
    """
    Let a program that is executed in the block get the memory; its ``share()`` returns it.

    :param fd: the descriptor of the memory, int.
    :param environ: the environment of that program, which is changed for the length of the block.
    """
    environ[HANDED_OVER] = f"{fd}:{FORM}"
    os.set_inheritable(fd, True)
    try:
        yield
    finally:
        os.set_inheritable(fd, False)
        del environ[HANDED_OVER]


def open_of(pid: int) -> int | None:
    """
    Return a new descriptor of the memory that a process has; None: it has none.

    :param pid: of a worker or its arbiter, int.
    :raises PermissionError: this user may not look at the process.
    :raises ProcessLookupError: there is no such process.
    :raises OtherForm: the process has the memory of another version.
    """
    folder = Path(f"/proc/{pid}/fd")
    try:
        links = list(folder.iterdir())
    except FileNotFoundError:
        raise ProcessLookupError(f"there is no process {pid}") from None
    is_other = False
    for link in links:
        with suppress(FileNotFoundError):  # closed meanwhile
            name = os.readlink(link).removeprefix("/memfd:").partition(" ")[0]
            if name == NAME:
                return os.open(link, os.O_RDWR | os.O_CLOEXEC)
            is_other |= name.startswith(PREFIX)
    if is_other:
        raise OtherForm
    return None


def all_of_host() -> list[int]:
    """Return a descriptor of each memory that processes of this user have; for root, all have."""
    found: dict[tuple[int, int], int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        fd = None
        with suppress(OSError, OtherForm):
            fd = open_of(int(folder.name))
        if fd is None:
            continue
        file = os.fstat(fd)
        if found.setdefault((file.st_dev, file.st_ino), fd) != fd:
            os.close(fd)
    return list(found.values())
