"""
Find the files of an application, and what its pyproject.toml says about findings.

First-party is what lies in the project's folder: not what is installed, not tests, not migrations
and not the scripts of packaging.
"""

import ast
import fnmatch
import os
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from gunicorn.config import Config

from greenline.doctor.codes import BY_CODE
from greenline.doctor.reader import parse
from greenline.errors import ConfigError

SECTION = "tool.greenline.doctor"
PYPROJECT = "pyproject.toml"
GUNICORN = "gunicorn.conf.py"
# Folders with code that no server runs.
LEFT_OUT = {
    "__pycache__", "node_modules", "site-packages", "build", "dist", "docs", "doc", "test", "tests",
    "testing", "test_utils", "testutils", "migrations", "alembic", "examples", "samples",
    "fixtures", "devtools", "bench", "benchmark", "benchmarks", "notebooks",
}  # fmt: skip
# With commands: what only these import no request runs either.
COMMAND_FOLDERS = {"cli", "scripts"}
COMMAND_FILES = ("cli.py", "manage.py")
DJANGOS_COMMANDS = "management", "commands"
FILES_LEFT_OUT = (
    "test_*.py", "*_test.py", "test.py", "tests.py", "testing.py", "testutil.py", "testutils.py",
    "conftest.py", "setup.py", "noxfile.py", "fabfile.py",
)  # fmt: skip


@dataclass(frozen=True)
class Project:
    """
    The folder of an application.

    :param folder: the folder in which gunicorn is started.
    :param ignored: the reasons for which findings are ignored, by code and pattern of paths.
    :param excluded: patterns of paths in it that are not read.
    :param file: the only file of it that is read. Default: all.
    :param packages: folders and files of libraries that are read as well.
    :param configuration: the path of gunicorn's configuration, as it is shown; it may be missing.
    """

    folder: Path
    ignored: dict[tuple[str, str], str] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    file: Path | None = None
    packages: tuple[Path, ...] = ()
    configuration: str = GUNICORN

    def reason(self, code: str, path: str) -> str | None:
        """Return why a finding is ignored, None if it is not."""
        for (ignored, pattern), reason in self.ignored.items():
            if ignored == code and fnmatch.fnmatch(path, pattern):
                return reason
        return None

    def files(self, loaded: Iterable[str] = ()) -> Iterator[Path]:
        """
        Yield the files to read in a stable order, the first-party ones first.

        :param loaded: the paths of those that the import of the application loads. Default: none.
        """
        found = set()
        for root in (self.file or self.folder, *self.packages):
            for path in self._below(root) if root.is_dir() else [root]:
                found.add(path)
                yield path
        # What the import loads is run, whatever its folder is called.
        shown = set(map(self.shown, found))
        for path in (self.folder / each for each in sorted(loaded) if each not in shown):
            is_set_aside = self._is_excluded(path) or _is_command(self.folder, path)
            if path.suffix == ".py" and not is_set_aside and path.is_file():
                found.add(path)
                yield path
        # One that is named may be outside of the folder, or where no code is looked for.
        configuration = self.folder / self.configuration
        is_named = self.file is None and self.configuration != GUNICORN
        if is_named and configuration not in found and configuration.is_file():
            yield configuration

    def commands(self) -> Iterator[Path]:
        """Yield the files of commands, which are not among those to read."""
        if self.file is None:
            yield from filter(partial(_is_command, self.folder), self._walk(self.folder))

    def _below(self, root: Path) -> Iterator[Path]:
        for path in self._walk(root):
            is_left_out = any(fnmatch.fnmatch(path.name, each) for each in FILES_LEFT_OUT)
            if not is_left_out and not _is_command(root, path):
                yield path

    def _walk(self, root: Path) -> Iterator[Path]:
        """Yield the first-party files below *root*, and those of commands."""
        for folder, folders, names in os.walk(root):
            here = Path(folder)
            folders[:] = sorted(name for name in folders if _is_first_party(here / name))
            for path in (here / name for name in sorted(names) if name.endswith(".py")):
                if not self._is_excluded(path):
                    yield path

    def _is_excluded(self, path: Path) -> bool:
        return any(fnmatch.fnmatch(self.shown(path), each) for each in self.excluded)

    def preloads(self) -> bool:
        """Return whether gunicorn's configuration sets preload_app."""
        try:
            tree = parse((self.folder / self.configuration).read_bytes())
        except (OSError, SyntaxError):
            return False
        return preload_app(tree) is not None

    def shown(self, path: Path) -> str:
        """Return *path* as findings show it: relative to the folder, or to where a library is."""
        for root in (self.folder, *(each.parent for each in self.packages)):
            if path.is_relative_to(root):
                return path.relative_to(root).as_posix()
        return str(path)


def preload_app(tree: ast.Module) -> ast.stmt | None:
    """Return the statement of gunicorn's configuration that sets preload_app, None without one."""
    for node in tree.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id="preload_app"), *_], value=ast.Constant(value=True)
            ):
                return node
    return None


def _is_first_party(folder: Path) -> bool:
    name = folder.name
    if name.startswith(".") or name in LEFT_OUT or name.endswith(".egg-info"):
        return False
    return not (folder / "pyvenv.cfg").exists()


def _is_command(root: Path, path: Path) -> bool:
    *folders, name = path.relative_to(root).parts
    is_djangos = DJANGOS_COMMANDS in pairwise(folders)
    return is_djangos or name in COMMAND_FILES or not COMMAND_FOLDERS.isdisjoint(folders)


def load(path: Path, packages: Iterable[str] = ()) -> Project:
    """
    Return the project in the folder *path*, or of the file *path* alone.

    :param packages: names of installed libraries to read as well. Default: none.
    :raises ConfigError: its pyproject.toml cannot be read, or names an unknown code; a library is
        not installed.
    """
    folder, file = (path.parent, path) if path.is_file() else (path, None)
    more = tuple(map(_installed, packages))
    configuration = Project(folder).shown(folder / _configuration())
    path = folder / PYPROJECT
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Project(folder, file=file, packages=more, configuration=configuration)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    section: Any = document
    for name in SECTION.split("."):
        section = section.get(name, {})
        if not isinstance(section, dict):
            raise ConfigError(f"{path}: {name} of [{SECTION}] is no table")
    unknown = set(section) - {"exclude", "ignore"}
    if unknown:
        raise ConfigError(f"{path}: [{SECTION}] has no {', '.join(sorted(unknown))}")
    excluded = section.get("exclude", [])
    if not isinstance(excluded, list) or not all(isinstance(each, str) for each in excluded):
        raise ConfigError(f'{path}: [{SECTION}] exclude is a list of patterns: ["jobs/*"]')
    ignored = dict(_ignored(path, section.get("ignore", [])))
    return Project(folder, ignored, tuple(excluded), file, more, configuration)


def gunicorn_options() -> Any:
    """
    Return gunicorn's options in GUNICORN_CMD_ARGS, by its own parser; None: not given.

    :raises ConfigError: it is not what a shell would take.
    """
    config = Config()
    try:
        given = config.get_cmd_args_from_env()
    except ValueError as error:  # a quote has no end
        raise ConfigError(f"GUNICORN_CMD_ARGS: {error}") from error
    return config.parser().parse_known_args(given)[0]


def _configuration() -> str:
    """Return the path that ``-c`` gives: of a file, ``file:`` and a file, or ``python:module``."""
    given: str = gunicorn_options().config or GUNICORN
    if given.startswith("python:"):
        return given.removeprefix("python:").replace(".", "/") + ".py"
    return given.removeprefix("file:")


def _installed(name: str) -> Path:
    """Return the folder or the file of the library that is imported as *name*."""
    spec = find_spec(name) if name.isidentifier() else None
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ConfigError(f"--package {name}: there is no Python source to import by this name")
    return Path(spec.origin)


def _ignored(path: Path, entries: Any) -> Iterator[tuple[tuple[str, str], str]]:
    for entry in entries if isinstance(entries, list) else [None]:
        if not isinstance(entry, dict) or set(entry) - {"code", "reason", "path"}:
            raise ConfigError(
                f"{path}: [[{SECTION}.ignore]] is a code, a reason and maybe a path: "
                'code = "GL213", reason = "...", path = "shop/*.py"'
            )
        code, reason, pattern = entry.get("code"), entry.get("reason"), entry.get("path", "*")
        if not isinstance(code, str) or code not in BY_CODE:
            raise ConfigError(f"{path}: [[{SECTION}.ignore]]: {code!r} is not a code of the doctor")
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError(f"{path}: [[{SECTION}.ignore]]: {code} is ignored without a reason")
        if not isinstance(pattern, str):
            raise ConfigError(f"{path}: [[{SECTION}.ignore]]: path is a pattern, not {pattern!r}")
        yield (code, pattern), reason
