"""
Find what a project declares that it needs, in the files that pip, uv, Poetry and Pipenv read, and
what of it is installed where the doctor runs. setup.py is read and not run: what it computes is not
known.

Groups and optional dependencies count, since which of them are installed is not known. A file
that cannot be read declares nothing: the tools that install from it say what is wrong with it.
"""

import ast
import csv
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from contextlib import suppress
from functools import cache
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    distribution,
    distributions,
)
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from greenline.doctor.project import PYPROJECT
from greenline.doctor.reader import parse

REQUIREMENTS = ("requirements*.txt", "requirements/*.txt")
# Words of the names of those that no service is installed from.
NOT_SERVING = {
    "ci", "constraints", "dev", "devel", "develop", "development", "doc", "docs", "lint", "local",
    "test", "testing", "tests",
}  # fmt: skip
SETUP, SCRIPT, PIPFILE = "setup.cfg", "setup.py", "Pipfile"
# Comments, options such as --hash, and the backslash of a continued line.
NOT_THE_REQUIREMENT = re.compile(r"(?:^|\s)#|\s--|\s*\\$")
INCLUDE = re.compile(r"(?:-r|--requirement)[\s=]*(\S.*)")


def declared(folder: Path, *, with_groups: bool = True) -> Iterator[str]:
    """
    Yield the requirements of a project, as PEP 508 writes them, and maybe lines that are none.

    :param folder: where its pyproject.toml, setup.cfg, setup.py and files of requirements are.
    :param with_groups: those of groups and optional dependencies, too, bool. Default True.
    """
    with suppress(OSError, ValueError):
        document = tomllib.loads((folder / PYPROJECT).read_text(encoding="utf-8"))
        yield from _of_project(document, with_groups)
        yield from _of_poetry(document, with_groups)
    with suppress(OSError, ValueError):
        document = tomllib.loads((folder / PIPFILE).read_text(encoding="utf-8"))
        yield from _of_table(_table(document, "packages"))
    with suppress(OSError, ValueError, ConfigParserError):
        parser = ConfigParser(interpolation=None)
        parser.read_string((folder / SETUP).read_text(encoding="utf-8"))
        yield from parser.get("options", "install_requires", fallback="").splitlines()
    with suppress(OSError, SyntaxError):
        yield from _of_script(parse((folder / SCRIPT).read_bytes()))
    read = set[Path]()
    for path in sorted(each for pattern in REQUIREMENTS for each in folder.glob(pattern)):
        if NOT_SERVING.isdisjoint(re.split(r"\W|_", path.stem.lower())):
            yield from _of_file(path, read)


def parsed(text: str, extras: Iterable[str] = ()) -> Requirement | None:
    """
    Return the requirement that *text* is; None for a path, an option of pip or another platform's.

    :param extras: those of the library that requires it. Default: none.
    """
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    marker = requirement.marker
    is_needed = marker is None or any(marker.evaluate({"extra": each}) for each in ("", *extras))
    return requirement if is_needed else None


@cache
def installed(name: str) -> Distribution | None:
    """Return the installed distribution of this name, None if there is none."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


@cache
def installed_packages() -> Mapping[str, list[Distribution]]:
    """Return the distributions by package; this reads the list of files of each."""
    # importlib.metadata's packages_distributions() takes six times as long: it reads the metadata
    # of each as well, and makes an object of each file.
    found: dict[str, list[Distribution]] = {}
    for each in distributions():
        for package in set(_packages(each)):
            found.setdefault(package, []).append(each)
    return found


def _packages(there: Distribution) -> list[str]:
    if declared := (there.read_text("top_level.txt") or "").split():
        return declared
    rows = csv.reader((there.read_text("RECORD") or "").splitlines())
    files = [row[0] for row in rows if row] or map(str, there.files or ())
    return [each.partition("/")[0].removesuffix(".py") for each in files if each.endswith(".py")]


def _of_project(document: Any, with_groups: bool) -> Iterator[str]:
    project = _table(document, "project")
    groups = [project.get("dependencies", [])]
    if with_groups:
        groups += _table(project, "optional-dependencies").values()
        groups += _table(document, "dependency-groups").values()
    for group in (each for each in groups if isinstance(each, list)):
        # A group that another one includes is a table here, and is read by itself.
        yield from (each for each in group if isinstance(each, str))


def _of_poetry(document: Any, with_groups: bool) -> Iterator[str]:
    poetry = _table(document, "tool", "poetry")
    groups = _table(poetry, "group").values() if with_groups else ()
    for group in (poetry, *groups):
        yield from _of_table(_table(group, "dependencies"))


def _of_table(dependencies: dict[str, Any]) -> Iterator[str]:
    """Yield the requirements of a table of Poetry or Pipenv, whose keys are the names."""
    for name, given in dependencies.items():
        if name == "python":
            continue
        # Versions such as ^1.2 and * are not those of PEP 508, and do not matter here.
        extras = ",".join(given.get("extras", ())) if isinstance(given, dict) else ""
        markers = given.get("markers") if isinstance(given, dict) else None
        yield f"{name}[{extras}]" + (f"; {markers}" if markers else "")


def _of_script(tree: ast.Module) -> Iterator[str]:
    """Yield the strings of install_requires, which is a list there or the name of one."""
    lists = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "install_requires":
            value = lists.get(node.value.id) if isinstance(node.value, ast.Name) else node.value
            for each in value.elts if isinstance(value, ast.List | ast.Tuple) else ():
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield each.value


def _of_file(path: Path, read: set[Path]) -> Iterator[str]:
    """Yield the requirements of a file of pip, and of those that it includes."""
    path = path.resolve()
    if path in read:
        return
    read.add(path)
    with suppress(OSError, ValueError):
        for line in path.read_text(encoding="utf-8").splitlines():
            text = NOT_THE_REQUIREMENT.split(line)[0].strip()
            if found := INCLUDE.fullmatch(text):
                yield from _of_file(path.parent / found[1], read)
            # A constraint (-c) says which version to install if something else requires it.
            elif text and not text.startswith("-"):
                yield text


def _table(document: Any, *names: str) -> dict[str, Any]:
    """Return the table of these names, an empty one if there is none."""
    for name in names:
        document = document.get(name)
        if not isinstance(document, dict):
            return {}
    return dict(document)
