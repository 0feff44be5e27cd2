"""The tests of the hot path pass with its modules compiled, as a wheel has them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from bench.compiled import copy_sources
from tests.helpers.support import BIN, CHECKOUT, environ

IS_LONG = os.environ.get("GREENLINE_LONG_TESTS") == "1"
TESTS = (
    "tests/unit/flask", "tests/unit/http", "tests/unit/worker",
    "tests/contract/test_flask_alike.py",
    "tests/contract/test_flask_request.py", "tests/contract/test_flask_suite.py",
    "tests/contract/test_routing.py", "tests/contract/test_same_answers.py",
    "tests/e2e/test_error_log.py", "tests/e2e/test_fast_flask.py", "tests/e2e/test_like_threads.py",
    "tests/e2e/test_slow_clients.py", "tests/e2e/test_stacks.py", "tests/e2e/test_worker.py",
)  # fmt: skip


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 compiles them")
@pytest.mark.timeout(1_200)
def test_compiled_modules_pass_the_tests_of_their_sources(tmp_path: Path) -> None:
    """In a copy of the checkout: the compiled modules would hide sources that are edited."""
    sources, copy = tmp_path / "sources", tmp_path / "checkout"
    copy_sources(sources)
    # pip's way: Cython comes from the index, as pyproject.toml says.
    build = [str(BIN / "uv"), "build", "--wheel", "--out-dir", str(tmp_path), str(sources)]
    subprocess.run([*build, "--python", sys.executable], check=True, capture_output=True)
    shutil.copytree(
        CHECKOUT,
        copy,
        ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "var"),
    )
    (copy / ".venv").symlink_to(CHECKOUT / ".venv")
    (built,) = tmp_path.glob("*.whl")
    with ZipFile(built) as archive:
        modules = [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(copy, modules)
    assert len([name for name in modules if "/flask/" in name or "/http/" in name]) == 8
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        cwd=copy, env=environ({"PYTHONPATH": str(copy)}), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5_000:]
