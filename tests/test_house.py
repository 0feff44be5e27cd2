"""The house itself: settings, errors, hooks and the pages say the same thing."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import app.errors
import greenline
from app.api.problems import STATUS
from config import load
from embedded.settings import VARIABLES
from greenline import errors
from greenline.budget.cgroup import WORKERS_WITHOUT_LIMIT
from greenline.settings import VARIABLES as RUNTIME
from tests.helpers.pages import PAGES, read
from tests.helpers.support import BIN, CHECKOUT

MAKEFILE = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
TESTS = [CHECKOUT / "tests", CHECKOUT / "bench" / "tests"]
# Of what stands in a package itself, not in a module of it.
OF_A_PACKAGE = {"tests/unit/offload/test_advice.py"}
URLS = {"DATABASE_URL": "postgresql://h/d", "MONGODB_URI": "mongodb://h"}


class Recorder(dict[str, str]):
    """An environment that remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__(URLS)
        self.asked: set[str] = set()

    def get(self, name: str, default: str = "") -> str:  # type: ignore[override]
        self.asked.add(name)
        return super().get(name, default)


def settings_on_page() -> dict[str, str]:
    """Return name and default of each row of docs/settings.md."""
    rows = re.findall(r"^\| `([A-Z_]+)` \|([^|]*)\|", read("docs/settings.md"), re.MULTILINE)
    return {name: default.strip().strip("`") for name, default in rows}


def leaves(root: type[errors.GreenlineError]) -> Iterator[type[errors.GreenlineError]]:
    below = root.__subclasses__()
    if not below:
        yield root
    for child in below:
        yield from leaves(child)


def test_every_setting_is_on_its_page_and_every_row_is_a_setting() -> None:
    """The table is the environment that the code reads, no more and no less."""
    environ = Recorder()
    load(environ)
    known = environ.asked | {variable.name for variable in (*VARIABLES, *RUNTIME)}
    assert set(settings_on_page()) == known


DEFAULTS = {variable.name: variable.default for variable in (*VARIABLES, *RUNTIME)} | {
    # The service has defaults of its own for some that the runtime reads.
    "PORT": str(load(URLS).port),
    "WEB_CONCURRENCY": str(WORKERS_WITHOUT_LIMIT),
    "REQUEST_TIMEOUT": f"{load(URLS).request_timeout_s:g}",
    "POOL_MAX_WAITING": str(load(URLS).pool_max_waiting),
    "LOG_LEVEL": load(URLS).log_level,
}


@pytest.mark.parametrize(("name", "value"), DEFAULTS.items())
def test_the_defaults_on_the_page_are_the_codes(name: str, value: str) -> None:
    """A default changed in the code alone is noticed."""
    assert settings_on_page()[name] == value


def test_every_error_leaf_has_a_status() -> None:
    """An error without a row in the table would be a 500 by accident."""
    assert app.errors.NotFound in set(leaves(errors.GreenlineError))
    missing = [leaf for leaf in leaves(errors.GreenlineError) if leaf not in STATUS]
    assert missing == []


def test_every_error_leaf_has_a_code_of_its_own() -> None:
    """Programs tell errors apart by their code."""
    codes = [leaf.code for leaf in leaves(errors.GreenlineError)]
    assert len(codes) == len(set(codes))


def test_gunicorns_hooks_have_three_lines_at_most() -> None:
    """The configuration only hands over to the code."""
    tree = ast.parse((CHECKOUT / "gunicorn.conf.py").read_text(encoding="utf-8"))
    hooks = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert hooks
    for hook in hooks:
        statements = hook.body[1:]  # the docstring comes first
        assert (statements[-1].end_lineno or 0) - statements[0].lineno < 3, hook.name


@pytest.mark.parametrize("target", re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.MULTILINE))
def test_every_target_of_the_makefile_is_in_its_help(target: str) -> None:
    """make help lists what there is."""
    said = subprocess.run(
        ["make", "help"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout
    assert f"make {target}" in said


def test_no_unit_test_needs_a_database_server(request: pytest.FixtureRequest) -> None:
    """make test-fast runs them all."""
    servers = {"postgres", "mongo", "standalone_mongo"}
    unit = [one for one in request.session.items if CHECKOUT / "tests/unit" in one.path.parents]
    assert [one.nodeid for one in unit if servers & {*getattr(one, "fixturenames", ())}] == []


def test_the_help_is_grouped_and_aligned() -> None:
    """Each target is below the head of a group, and all descriptions begin in one column."""
    said = subprocess.run(
        ["make", "--no-print-directory"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout
    groups = [block.splitlines() for block in said.split("\n\n")]
    assert [head for head, *_ in groups] == re.findall(r"^##@ (\w+)$", MAKEFILE, re.MULTILINE)
    targets = [
        re.fullmatch(r"  make ([a-z-]+ +)(\S.+)", line) for _, *rows in groups for line in rows
    ]
    assert None not in targets
    assert len({len(target[1]) for target in targets if target}) == 1


def test_each_target_of_make_on_a_page_exists() -> None:
    """The README and docs/ name no other one."""
    defined = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    for page in PAGES:
        targets = set(re.findall(r"`?make ([a-z][a-z-]+)`", page.read_text(encoding="utf-8")))
        assert targets <= defined, page


def test_imports_run_one_way() -> None:
    """The contracts of pyproject.toml hold."""
    done = subprocess.run(
        [str(BIN / "lint-imports"), "--no-cache"], cwd=CHECKOUT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def imported(path: Path) -> Iterator[Path]:
    """Return where each name that *path* imports would be, were it a module of the checkout."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (CHECKOUT.joinpath(*alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            folder = path.parents[node.level - 1] if node.level else CHECKOUT
            module = folder.joinpath(*(node.module or "").split("."))
            yield from (module, *(module / alias.name for alias in node.names))


def test_nothing_is_imported_from_a_test_module() -> None:
    """What two tests use is in a module beside them, or in tests/helpers."""
    tests = {path.with_suffix("") for folder in TESTS for path in folder.rglob("test_*.py")}
    names = {each.name for each in tests}
    found = [
        f"{path.relative_to(CHECKOUT)}: {module.relative_to(CHECKOUT)}"
        for folder in TESTS
        for path in folder.rglob("*.py")
        # Few have such a word at all, and need to be parsed.
        if not names.isdisjoint(re.findall(r"\w+", path.read_text()))
        for module in imported(path)
        if module in tests
    ]
    assert tests
    assert found == []


def is_mirror(test: Path) -> bool:
    """Return whether a source has the name of *test*, or the first words of it, and its place."""
    if test.is_relative_to(CHECKOUT / "bench"):
        roots, place = ["bench"], test.relative_to(CHECKOUT / "bench" / "tests")
    else:
        roots, place = ["greenline", "", "tests"], test.relative_to(CHECKOUT / "tests" / "unit")
    words = test.stem.split("_")[1:]
    names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
    sources = [CHECKOUT / root / place.parent / name for root in roots for name in names]
    return any(each.is_dir() or each.with_suffix(".py").is_file() for each in sources)


def test_each_unit_test_mirrors_a_source() -> None:
    """tests/unit/<room>/test_<file>.py, or <file>_<words>, tests greenline/<room>/<file>.py."""
    tests = {
        path
        for folder in (CHECKOUT / "tests" / "unit", CHECKOUT / "bench" / "tests")
        for path in folder.rglob("test_*.py")
    }
    lost = {str(path.relative_to(CHECKOUT)) for path in tests if not is_mirror(path)}
    assert lost == OF_A_PACKAGE


def test_what_is_not_public_says_that_it_is_internal() -> None:
    """Each room of greenline that is not public; what a public one names can be imported."""
    rooms = {path.stem: path for path in (CHECKOUT / "greenline").glob("*.py")}
    rooms |= {path.parent.name: path for path in (CHECKOUT / "greenline").glob("*/__init__.py")}
    del rooms["__init__"]
    heads = {name: ast.get_docstring(ast.parse(path.read_text())) for name, path in rooms.items()}
    internal = {name for name, head in heads.items() if "\nInternal: " in (head or "")}
    # The star import leaves out the rooms that cannot be imported without a library.
    public = {*greenline.__all__, "cache", "django", "flask", "sqlalchemy"}
    assert set(rooms) == internal | public
    assert not internal & public
    for name in public:
        room = __import__(f"greenline.{name}", fromlist=["*"])
        assert [each for each in getattr(room, "__all__", ()) if not hasattr(room, each)] == []


def test_each_module_that_the_service_may_import_is_named_in_the_head_of_its_room() -> None:
    """pyproject.toml exempts no internal module from its contract that the head does not."""
    linter = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (one for one in linter["contracts"] if "exempt" in one["name"])
    exempted = {line.split(" -> greenline.")[1] for line in contract["ignore_imports"]}
    assert exempted
    unnamed = []
    for name in sorted(exempted):
        room, _, module = name.partition(".")
        path = CHECKOUT / "greenline" / room
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        head = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
        says = f"``{module}" if module else "The service "
        if says not in head:
            unnamed.append(name)
    assert unnamed == []
