"""greenline.doctor.environment: whether the doctor runs where the application does."""

import sys
from pathlib import Path

import pytest

from greenline.doctor.environment import note
from greenline.doctor.project import Project


def test_an_environment_beside_the_code_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the doctor runs in it, by a link too."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/pyvenv.cfg").touch()
    (tmp_path / ".venv").symlink_to("kept")
    assert note(Project(tmp_path)) == (
        f".venv/ is the environment of the application, and the doctor runs in {sys.prefix}: "
        "start it by .venv/bin/python -m greenline doctor"
    )
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert note(Project(tmp_path)) == ""


def test_what_is_declared_and_not_installed_is_named(tmp_path: Path) -> None:
    """The first five; neither a line for pip, nor what another platform needs."""
    wanted = "gunicorn\n-r more.txt\n./a/path\nno-such-0; sys_platform == 'none'\n"
    (tmp_path / "requirements.txt").write_text(wanted)
    assert note(Project(tmp_path)) == ""
    missing = "".join(f"no-such-{number}>=1\n" for number in range(1, 8))
    (tmp_path / "requirements.txt").write_text(wanted + missing)
    assert note(Project(tmp_path)) == (
        f"declared, and not installed in {sys.prefix}, where the doctor runs: "
        "no-such-1, no-such-2, no-such-3, no-such-4, no-such-5 and 2 more"
    )
