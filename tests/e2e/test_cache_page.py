"""docs/cache.md: its programs and lines do what the page says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.e2e.hosting import hosting
from tests.helpers.pages import blocks, commands, read, write_example
from tests.helpers.support import CHECKOUT

PAGE = "docs/cache.md"
CURLS = [line for line in commands(CHECKOUT / PAGE) if line.startswith("curl ")]


def run(name: str, folder: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run a program of the page."""
    return subprocess.run(
        [sys.executable, str(write_example(PAGE, name, folder))],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(CHECKOUT), **environ},
    )


def test_the_program_prints_what_the_page_says(tmp_path: Path) -> None:
    """The block below it, to the letter."""
    done = run("stock.py", tmp_path)
    (printed,) = blocks(read(PAGE), "text")
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_each_line_answers_as_the_page_says(tmp_path: Path) -> None:
    """Stored, a hit with its age, and stored again after the write."""
    write_example(PAGE, "books.py", tmp_path)
    answers = []
    with hosting("books:app", PYTHONPATH=str(tmp_path)) as running:
        for line in CURLS:
            typed = line.replace("127.0.0.1:8000", f"127.0.0.1:{running.port}")
            done = subprocess.run(
                shlex.split(typed), capture_output=True, text=True, timeout=30, check=True
            )
            answers.append(done.stdout)
    stored, hit, changed, again = answers
    assert "Cache-Status: greenline; fwd=uri-miss; stored" in stored
    assert re.search(r"^Cache-Status: greenline; hit; ttl=5\d$", hit, re.MULTILINE)
    assert re.search(r"^Age: \d$", hit, re.MULTILINE)
    assert '"price":9' in hit.replace(" ", "")
    assert '"price":12' in changed.replace(" ", "")
    assert '"price":12' in again.replace(" ", "")
    assert "fwd=uri-miss; stored" in again


def test_the_program_with_postgres_sees_its_write(tmp_path: Path, empty_database: str) -> None:
    """It makes its table, loads, writes, and loads again, as often as it is run."""
    for _ in range(2):
        done = run("shelf.py", tmp_path, DATABASE_URL=empty_database)
        printed = "['Tehanu']\n['Tehanu', 'Lavinia']\n"
        assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
