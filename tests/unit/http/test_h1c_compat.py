"""A gunicorn_h1c that splits a head otherwise is not used, and the reason is known."""

import re
import tomllib
from pathlib import Path

import pytest

from greenline.http import h1c_compat
from tests.helpers.support import CHECKOUT, run

SHOW = "from greenline.http.h1c_compat import MISFIT, split_head; print(split_head, MISFIT)"
HEAD = """
class Head:
    method, path, minor_version, consumed = b"POST", b"/a?b", 1, 39
    headers = [(b"Host", b"c"), (b"A", b"d")]

def parse_request_fast(data):
    if b"body" in data:
        return Head
    raise ValueError
"""


def imported(path: Path, source: str) -> str:
    """Return what a process shows that imports *source* as gunicorn_h1c."""
    (path / "gunicorn_h1c.py").write_text(source)
    return run(["python", "-c", SHOW], {"PYTHONPATH": str(path)}).stdout


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        pytest.param("", "no attribute 'parse_request_fast'", id="the function is gone"),
        pytest.param("1 / 0", "division by zero", id="the import fails"),
        pytest.param(HEAD.replace("path", "target"), "no attribute 'path'", id="other names"),
        pytest.param(HEAD.replace("39", "40"), "splits a sample into", id="another length"),
        pytest.param(HEAD.replace('b"/a?b"', '"/a?b"'), "splits a sample into", id="other types"),
        pytest.param(HEAD.replace("(data)", "(data, cfg)"), "argument: 'cfg'", id="parameters"),
        pytest.param(HEAD.replace("raise ValueError", "return None"), "raises no error", id="None"),
    ],
)
def test_one_that_splits_otherwise_is_not_used(tmp_path: Path, source: str, reason: str) -> None:
    """The reason names the version, the difference and the versions that are supported."""
    said = imported(tmp_path, source)
    assert re.fullmatch(r"None gunicorn_h1c [0-9.]+ is not supported \(.*\): install .*\n", said)
    assert reason in said
    assert h1c_compat.H1C_SUPPORTED in said


def test_one_that_splits_alike_is_used(tmp_path: Path) -> None:
    """Only what it does counts."""
    assert imported(tmp_path, HEAD).startswith("<function parse_request_fast")


def test_the_supported_range_is_the_packages_own() -> None:
    """pip refuses what the check would refuse."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert f"gunicorn_h1c{h1c_compat.H1C_SUPPORTED}" in project["dependencies"]
