"""tests.side_by_side: the outcome of each test is reported, and no test is lost."""

import re
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest

from tests.helpers.support import CHECKOUT, environ

ENDS_WELL = """
import pytest

def test_passes(): pass

def test_fails(): assert 1 == 2

@pytest.mark.skip(reason="not asked for")
def test_is_skipped(): pass
"""
DIES = """
import os

def test_dies(): os.kill(os.getpid(), 9)

def test_is_not_run(): pass
"""
BUSY = "import os; os.getloadavg = lambda: (9999.0, 0.0, 0.0)"
CORES = "os.sched_getaffinity = lambda _: set(range({}))"
FIXTURES = """
import pathlib, pytest

def ended(what):
    with (pathlib.Path(__file__).parent / "ends").open("a") as file:
        file.write(what + " ")

@pytest.fixture(scope="session")
def all_of_them():
    yield
    ended("all")

@pytest.fixture(scope="module")
def each():
    yield
    ended("each")
"""
OF_FOLDER = """
import pytest

@pytest.fixture(params=[1, 2])
def of_folder(request):
    return request.param
"""
TAKES = """
import time

def test_takes_a_while():
    with open({!r}, "a") as file:
        file.write("begins ")
        file.flush()
        time.sleep(0.5)
        file.write("ends ")
"""


def run(folder: Path, *more: str, **files: str) -> subprocess.CompletedProcess[str]:
    """Run the tests in *files* side by side."""
    (folder / "pytest.ini").touch()
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.side_by_side", "-c"]
    options = ["-ra", "--durations=2", "--durations-min=0"]
    return subprocess.run(
        [*command, folder / "pytest.ini", *options, *more, folder], cwd=CHECKOUT, env=environ({}),
        text=True, capture_output=True, timeout=120,
    )  # fmt: skip


def test_all_tests_are_reported_as_by_one_process(tmp_path: Path) -> None:
    """Who passes, fails and is skipped is counted, and the status is that of a failure."""
    done = run(tmp_path, test_ends_well=ENDS_WELL)
    assert "1 failed, 1 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "assert 1 == 2" in done.stdout
    assert "not asked for" in done.stdout
    assert re.search(
        r"slowest 2 durations =+\n(\d+\.\d\ds .*test_ends_well.py.*\n){2}", done.stdout
    )
    assert done.returncode == 1


@pytest.mark.parametrize("cores", [1, 2])
def test_a_busy_machine_runs_a_file_for_each_core(tmp_path: Path, cores: int) -> None:
    """None is lost, and no other one begins before the end of one of them."""
    (tmp_path / "conftest.py").write_text(f"{BUSY}; {CORES.format(cores)}")
    takes = TAKES.format(str(tmp_path / "times"))
    names = [f"test_{number}" for number in range(5)]
    done = run(tmp_path, **dict.fromkeys(names, takes))
    assert "5 passed" in done.stdout, done.stdout + done.stderr
    times = (tmp_path / "times").read_text().split()
    together = list(accumulate(1 if each == "begins" else -1 for each in times))
    assert len(together) == 10
    assert max(together) == cores
    assert "The machine was busy for" in done.stdout


def test_a_process_that_dies_on_a_busy_machine_ends_the_run_too(tmp_path: Path) -> None:
    """The others go on, and none waits for it."""
    (tmp_path / "conftest.py").write_text(BUSY)
    done = run(tmp_path, test_dies=DIES, test_passes="def test_passes(): pass")
    assert "Interrupted: no word of test_dies.py" in done.stdout, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_what_a_file_needs_ends_with_its_last_test(tmp_path: Path) -> None:
    """Also where the next file is in another folder; what the session needs stays."""
    (tmp_path / "conftest.py").write_text(f"{BUSY}\n{FIXTURES}")
    for folder in "one", "two":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "conftest.py").write_text(OF_FOLDER)
        (tmp_path / folder / f"test_{folder}.py").write_text(
            "def test_it(each, all_of_them, of_folder): pass"
        )
    done = run(tmp_path)
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    ends = (tmp_path / "ends").read_text().split()
    assert ends.count("each") == 2  # by one process or by two
    assert ends[-1] == "all"


def test_a_process_that_dies_fails_the_run_and_names_the_file(tmp_path: Path) -> None:
    """The tests without a result are not taken for passed."""
    done = run(tmp_path, test_dies=DIES, test_passes="def test_passes(): pass")
    assert "ended with -9" in done.stdout, done.stdout + done.stderr
    assert "Interrupted: no word of test_dies.py" in done.stdout
    assert "1 passed" in done.stdout
    assert done.returncode == 2


def test_a_file_without_a_test_that_is_asked_for_fails_nothing(tmp_path: Path) -> None:
    """Nor does a run without any, in pytest's own way."""
    files = {"test_one": "def test_one(): pass", "test_two": "def test_two(): pass"}
    done = run(tmp_path, "-k", "one", **files)
    assert "1 passed, 1 deselected" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
    done = run(tmp_path, "-k", "three")
    assert "2 deselected" in done.stdout, done.stdout + done.stderr
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_file_that_cannot_be_imported_ends_the_run(tmp_path: Path) -> None:
    """At once: the others end with it."""
    done = run(tmp_path, test_broken="import nothing_of_this_name", test_takes="def test_it(): 1")
    assert "No module named 'nothing_of_this_name'" in done.stdout, done.stdout + done.stderr
    assert done.returncode == pytest.ExitCode.INTERRUPTED
