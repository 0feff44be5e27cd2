"""greenline.doctor.requirements: what a project's files declare."""

from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from greenline.doctor.requirements import declared, installed_packages

PROJECT = """
[project]
name = "shop"
dependencies = ["one>=1"]
optional-dependencies = { mail = ["two[tls]"] }
[dependency-groups]
test = ["three", { include-group = "more" }]
more = ["four"]
"""
POETRY = """
[tool.poetry.dependencies]
python = "^3.11"
one = "^1.2"
two = { version = "*", extras = ["tls", "http2"], markers = "python_version < '4'" }
three = [{ version = "1", python = "<3.12" }, { version = "2" }]
[tool.poetry.group.test.dependencies]
four = "*"
"""
SETUP = """
[options]
install_requires =
    one>=1
    two ; python_version < "4"
"""
SCRIPT = """
from setuptools import setup

setup(name="shop", install_requires=["one>=1", "two ; python_version < '4'", *more()])
"""
BY_NAME = """
import setuptools

needed = ("one>=1", "two")
setuptools.setup(name="shop", install_requires=needed)
"""
PIPFILE = """
[packages]
one = "*"
two = { version = ">=1", extras = ["tls"] }
[dev-packages]
three = "*"
"""


def names(folder: Path) -> list[str]:
    return [Requirement(each).name for each in declared(folder) if each]


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("pyproject.toml", PROJECT, ["one", "two", "three", "four"]),
        ("pyproject.toml", POETRY, ["one", "two", "three", "four"]),
        ("setup.cfg", SETUP, ["one", "two"]),
        ("setup.py", SCRIPT, ["one", "two"]),
        ("setup.py", BY_NAME, ["one", "two"]),
        ("Pipfile", PIPFILE, ["one", "two"]),
    ],
    ids=["project", "poetry", "setup.cfg", "setup.py", "setup.py by name", "Pipfile"],
)
def test_what_each_tool_reads(tmp_path: Path, file: str, text: str, expected: list[str]) -> None:
    """All groups and extras, and nothing that is not a requirement."""
    (tmp_path / file).write_text(text)
    assert names(tmp_path) == expected


def test_extras_and_markers_of_poetry(tmp_path: Path) -> None:
    """As PEP 508 writes them."""
    (tmp_path / "pyproject.toml").write_text(POETRY)
    requirement = next(Requirement(each) for each in declared(tmp_path) if each.startswith("two"))
    assert requirement.extras == {"tls", "http2"}
    assert str(requirement.marker) == 'python_version < "4"'


def test_a_file_of_pip_includes_others(tmp_path: Path) -> None:
    """Each once, relative to the file that includes it; a constraint declares nothing."""
    (tmp_path / "more").mkdir()
    (tmp_path / "requirements.txt").write_text(
        "# all\n-r more/web.txt\n--requirement=more/last.txt\n-c pins.txt\n-e ./here\n"
        "one==1.0 \\\n    --hash=sha256:00\ntwo  # via one\n-r absent.txt\n"
    )
    (tmp_path / "more" / "web.txt").write_text("-r ../requirements.txt\n-rlast.txt\nthree\n")
    (tmp_path / "more" / "last.txt").write_text("four\n")
    (tmp_path / "pins.txt").write_text("five==1\n")
    assert names(tmp_path) == ["four", "three", "one", "two"]


def test_files_of_pip_by_their_names(tmp_path: Path) -> None:
    """Of each deployment, each once; none of tests, documentation or development."""
    (tmp_path / "requirements").mkdir()
    for name in ("", "-prod", "_test", "-dev", "/base", "/docs", "/local", "/pg.prod"):
        (tmp_path / f"requirements{name}.txt").write_text(f"of{name.replace('/', '-')}-file\n")
    with (tmp_path / "requirements.txt").open("a") as file:
        file.write("-r requirements/base.txt\n")
    assert sorted(names(tmp_path)) == ["of-base-file", "of-file", "of-pg.prod-file", "of-prod-file"]


@pytest.mark.parametrize("text", ["[", "[project]\ndependencies = 1\n", "project = 1\n", "\xff"])
def test_what_cannot_be_read_declares_nothing(tmp_path: Path, text: str) -> None:
    """In any of the files."""
    for name in ("pyproject.toml", "setup.cfg", "setup.py"):
        (tmp_path / name).write_text(text, "latin-1")
    assert names(tmp_path) == []


def test_packages_are_those_of_the_standard_library() -> None:
    """By top_level.txt, by the list of files, and by that of an egg."""
    installed_packages.cache_clear()  # another test's packages
    found = installed_packages()
    assert {name: sorted(each.name for each in found[name]) for name in found} == {
        name: sorted(names)
        for name, names in packages_distributions().items()
        if name != "__pycache__"  # Python 3.13 takes a folder of compiled modules for a package
    }
