"""The doctor reads a large application in time, and shows how far it is."""

import pty
import re
import select
import subprocess
import sys
from os import close, read
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.forms import in_the_long_form
from tests.helpers.support import CHECKOUT, IS_LONG, environ

LIBRARY, MIN_LINES = ("django", 100_000) if IS_LONG else ("pymongo", 30_000)
A_LARGE_ONE = 100_000  # lines
MAX_CPU_S = 20.0  # for so many lines; it takes about 5
MAX_SMALL_CPU_S = 4.0  # of a small one; it takes about 0.5
CHAINED = ".b()" * 2_000  # calls, each of the result of the one before
COMMAND = """
import atexit, resource
atexit.register(lambda: print(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])))
from greenline.cli import main
main()
"""
# A fast machine reads pymongo in less than the moment after which there is a progress bar.
SOON = "from greenline.doctor import command; command.PROGRESS_S = 0.1\n"


class Reading(NamedTuple):
    """
    One run of the doctor.

    :param printed: its output, str.
    :param terminal: what it has written to its terminal, bytes.
    :param cpu_s: the processor time that it took, float seconds.
    """

    printed: str
    terminal: bytes
    cpu_s: float


def doctor(folder: Path, *options: str, before: str = "") -> Reading:
    """Run the doctor in *folder*, after the code *before*, with a terminal as its stderr."""
    ours, its = pty.openpty()
    terminal = b""
    with (folder / "printed").open("w+") as printed:
        child = subprocess.Popen(
            [sys.executable, "-c", before + COMMAND, "doctor", ".", *options],
            cwd=folder, env=environ({"TERM": "xterm", "PYTHONPATH": str(CHECKOUT)}),
            stdin=subprocess.DEVNULL, stdout=printed, stderr=its,
        )  # fmt: skip
        try:
            # What is not read fills the terminal up, and stops the child.
            while child.poll() is None or select.select([ours], [], [], 0)[0]:
                if select.select([ours], [], [], 0.1)[0]:
                    terminal += read(ours, 65536)
        finally:
            child.kill()
            child.wait()
            close(its)
            close(ours)
        printed.seek(0)
        *lines, cpu_s = printed.read().splitlines()
    return Reading("\n".join(lines), terminal, float(cpu_s))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Reading:
    """The run on a large library."""
    return doctor(tmp_path_factory.mktemp("large"), "--package", LIBRARY, before=SOON)


@in_the_long_form
def test_a_large_library_is_read_in_time(large: Reading) -> None:
    """In processor time, which does not depend on what else the machine does."""
    ((count,),) = (re.findall(r", in ([\d,]+) lines$", large.printed, re.MULTILINE),)
    lines = int(count.replace(",", ""))
    assert lines >= MIN_LINES
    assert large.cpu_s * A_LARGE_ONE / lines < MAX_CPU_S


def test_what_takes_longer_than_a_moment_has_a_progress_bar(large: Reading) -> None:
    """On the terminal, and not in the output."""
    assert b"reading" in large.terminal
    assert "%" not in large.printed


def test_a_small_one_has_none_and_says_where_it_should_run(tmp_path: Path) -> None:
    """The one line about the environment is in the output; a chain of calls is a small one too."""
    (tmp_path / "app.py").write_text(
        f"def f(g):\n    try:\n        g{CHAINED}.read()\n"
        f"    except BaseException as error:\n        print(g{CHAINED})\n        raise\n"
    )
    (tmp_path / "requirements.txt").write_text("no-such-distribution\n")
    small = doctor(tmp_path)
    assert small.terminal == b""
    assert small.cpu_s < MAX_SMALL_CPU_S
    note, numbers, _ = small.printed.splitlines()
    assert note.endswith("where the doctor runs: no-such-distribution")
    assert numbers == "nothing found, in 6 lines"
