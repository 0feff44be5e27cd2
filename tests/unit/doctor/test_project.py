"""greenline.doctor.project: which files are first-party, and what pyproject.toml ignores."""

from pathlib import Path

import pytest

from greenline.doctor.examine import examine
from greenline.doctor.findings import Facts
from greenline.doctor.project import Project, load
from greenline.errors import ConfigError
from tests.helpers.pages import blocks, read
from tests.helpers.support import CHECKOUT

BAD = "import requests\n\n\ndef fetch(url):\n    return requests.get(url)\n"
IGNORE = '[[tool.greenline.doctor.ignore]]\ncode = "GL213"\n'


def found(folder: Path, *packages: str) -> list[str]:
    return [each.path for each in examine(load(folder, packages), Facts()).findings]


def test_first_party_is_what_a_server_runs(tmp_path: Path) -> None:
    """Neither what is installed, nor tests, nor migrations, nor the scripts of packaging."""
    (tmp_path / "env with a blank").mkdir()
    (tmp_path / "env with a blank" / "pyvenv.cfg").touch()
    for name in (
        "shop/views.py", "env with a blank/lib.py", "tests/client.py",
        "shop/bench/load.py", "shop/migrations/0001.py",
        "setup.py", "shop/test_views.py", "manage.py", "shop/cli.py", "shop/cli/run.py",
        "shop/management/commands/load.py", "shop/test_utils/client.py", "shop/testing.py",
        "shop/tests.py", ".hidden/a.py", "shop.egg-info/a.py", "shop/notes.txt",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(BAD)
    assert found(tmp_path) == ["shop/views.py"]
    # By the rules for requests alone, those of commands would not be seen either.
    assert list(load(tmp_path).files()) == [tmp_path / "shop/views.py"]


def test_a_code_is_ignored_with_a_reason_and_in_some_files(tmp_path: Path) -> None:
    """The others count; an ignored one keeps its reason."""
    for name in ("old.py", "new.py"):
        (tmp_path / name).write_text(BAD)
    (tmp_path / "pyproject.toml").write_text(f'{IGNORE}reason = "on loopback"\npath = "old*"\n')
    examined = examine(load(tmp_path), Facts())
    assert [each.path for each in examined.findings] == ["new.py"]
    assert [(each.path, reason) for each, reason in examined.ignored] == [("old.py", "on loopback")]


def test_the_examples_of_the_page_are_read(tmp_path: Path) -> None:
    """The blocks about pyproject.toml."""
    ignored, excluded = blocks(read("docs/doctor.md"), "toml")
    (tmp_path / "pyproject.toml").write_text(ignored)
    assert load(tmp_path).reason("GL213", "shop/jobs/sync.py") == "started by hand"
    assert load(tmp_path).reason("GL213", "shop/views.py") is None
    (tmp_path / "pyproject.toml").write_text(excluded)
    assert load(tmp_path).excluded == load(CHECKOUT / "examples").excluded == ("broken/*",)


def test_what_the_import_loads_is_read_wherever_it_lies(tmp_path: Path) -> None:
    """A part of the application may be called docs; commands and what is excluded stay so."""
    (tmp_path / "docs").mkdir()
    for name in ("app.py", "cli.py", "docs/views.py", "docs/conf.py", "docs/made.py"):
        (tmp_path / name).write_text("")
    project = Project(tmp_path, excluded=("docs/made.py",))
    loaded = frozenset({"app.py", "cli.py", "docs/views.py", "docs/made.py"})
    assert [*examine(project, Facts(loaded=loaded)).comments] == ["app.py", "docs/views.py"]


def test_an_excluded_file_is_not_read(tmp_path: Path) -> None:
    """By a pattern of its path; the others are."""
    (tmp_path / "jobs").mkdir()
    for name in ("jobs/a.py", "b.py"):
        (tmp_path / name).write_text(BAD)
    (tmp_path / "pyproject.toml").write_text('[tool.greenline.doctor]\nexclude = ["jobs/*"]\n')
    assert found(tmp_path) == ["b.py"]


def test_a_file_is_read_alone(tmp_path: Path) -> None:
    """With the pyproject.toml beside it."""
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(BAD)
    assert found(tmp_path / "b.py") == ["b.py"]
    (tmp_path / "pyproject.toml").write_text(f'{IGNORE}reason = "on loopback"\n')
    assert found(tmp_path / "b.py") == []


@pytest.mark.parametrize("layout", ["shop_library/client.py", "shop_library.py"])
def test_a_library_is_read_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """A package or a single file; shown as it is imported."""
    library = tmp_path / "site-packages" / layout
    library.parent.mkdir(parents=True)
    library.write_text(BAD)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "app.py").write_text(BAD)
    assert found(tmp_path / "shop") == ["app.py"]
    assert found(tmp_path / "shop", "shop_library") == ["app.py", layout]


@pytest.mark.parametrize("name", ["no_such_package", "math", "a.b", "-x"])
def test_a_library_without_source_is_named(tmp_path: Path, name: str) -> None:
    """It is not installed, is written in C, or is no name."""
    with pytest.raises(ConfigError, match=f"--package {name}: there is no Python source"):
        load(tmp_path, [name])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (IGNORE, "GL213 is ignored without a reason"),
        (f'{IGNORE}reason = " "', "GL213 is ignored without a reason"),
        (IGNORE.replace("GL213", "GL999") + 'reason = "x"', "'GL999' is not a code"),
        (f'{IGNORE}reason = "x"\nfile = "a"', "is a code, a reason and maybe a path"),
        ("[tool.greenline.doctor]\nignore = 5", "is a code, a reason and maybe a path"),
        ("[tool.greenline.doctor]\nskip = []", "has no skip"),
        ('[tool.greenline.doctor]\nexclude = "a"', "exclude is a list of patterns"),
        ("[tool", "pyproject.toml"),
        ("[tool]\ngreenline = 3", "greenline of .tool.greenline.doctor. is no table"),
        ("[tool.greenline]\ndoctor = 3", "doctor of .tool.greenline.doctor. is no table"),
        (IGNORE.replace('"GL213"', '["GL213"]') + 'reason = "x"', "'GL213'. is not a code"),
        (f'{IGNORE}reason = "x"\npath = 3', "path is a pattern, not 3"),
    ],
    ids=[
        "no reason",
        "empty reason",
        "no such code",
        "no such key",
        "no list",
        "setting",
        "no patterns",
        "TOML",
        "no table above",
        "no table",
        "list of codes",
        "path",
    ],
)
def test_a_wrong_pyproject_is_named(tmp_path: Path, text: str, reason: str) -> None:
    """In one line."""
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=reason) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
