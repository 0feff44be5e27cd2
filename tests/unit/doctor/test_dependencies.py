"""greenline.doctor.dependencies: the imports of an application are held against the table."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from msgspec.structs import replace

from greenline.deploy.findings import Level
from greenline.doctor import dependencies, requirements
from greenline.doctor.codes import BLOCKING_DEPENDENCY
from greenline.doctor.examine import Examined, examine
from greenline.doctor.findings import Facts, Finding
from greenline.doctor.project import load
from greenline.hub.compatibility import BLOCKS, BREAKS, YIELDS, Record, records

CONF = "gunicorn.conf.py"
IN_THREADS = ("pycurl", "pylibmc", "pyodbc", "python-ldap")


def examined(folder: Path, **files: str) -> Examined:
    for name, text in files.items():
        (folder / f"{name.replace('_conf', '.conf')}.py").write_text(text)
    result = examine(load(folder), Facts())
    # GL105 of a library that is installed here, and older than the one that was tried.
    result.findings = [
        each
        for each in result.findings
        if each.code.code != "GL105" or not each.what.startswith("redis ")
    ]
    return result


def found(folder: Path, **files: str) -> list[tuple[str, str, int]]:
    findings = examined(folder, **files).findings
    return [(each.code.code, each.path, each.line) for each in findings]


def install(folder: Path, name: str, *requires: str, files: tuple[str, ...] = ()) -> None:
    """Put a distribution into *folder*, with a module of the same name."""
    info = folder / f"{name.replace('-', '_')}-99.0.dist-info"
    info.mkdir(parents=True)
    lines = [f"Name: {name}", "Version: 99.0", *(f"Requires-Dist: {each}" for each in requires)]
    (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")
    module = f"{name.replace('-', '_')}.py"
    for each in (module, *files):
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / each).touch()  # from Python 3.12 on a file that is missing is not listed
    (info / "RECORD").write_text("".join(f"{each},,\n" for each in (module, *files)))


def forget_installed() -> None:
    """Let the distributions be read again."""
    requirements.installed.cache_clear()
    requirements.installed_packages.cache_clear()


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let four libraries block that the worker has in threads: no other ones have been tried."""
    table = tuple(
        replace(each, verdict=BLOCKS, why="a call of 1.0 s blocks", instead="another library")
        if each.name in IN_THREADS
        else each
        for each in records()
    )
    monkeypatch.setattr(dependencies, "records", lambda: table)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed distributions, which is not the application's."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "pyvenv.cfg").touch()
    monkeypatch.syspath_prepend(str(folder))
    forget_installed()
    return folder


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import pyodbc\n", "GL101"),
        ("from pyodbc import Cursor\n", "GL101"),
        ("def view():\n    import pylibmc\n", "GL101"),
        ("import oracledb\noracledb.init_oracle_client()\n", "GL101"),
        ("import httpx\nclient = httpx.Client()\n", "GL102"),
        ("import ddtrace.auto\n", "GL103"),
        ("from ddtrace import auto\n", "GL103"),
        ("engine = create_engine('mssql+pyodbc://')\n", "GL101"),
        ("url = URL.create('mssql+pyodbc')\n", "GL101"),
        ("C = {'BACKEND': 'django.core.cache.backends.memcached.PyLibMCCache'}\n", "GL101"),
        ("import environ\nENV = environ.Env(URL=(str, 'mssql://h/d'))\n", "GL101"),
        ("import sqlalchemy\nurl = f'mssql://{user}@h/d'\n", "GL101"),
        ("D = {'ENGINE': env('ENGINE', 'mssql')}\n", "GL101"),
    ],
)
def test_an_import_is_found(tmp_path: Path, source: str, code: str) -> None:
    """Or the name of a driver in a string; whether the library is installed here or not."""
    assert [each for each, *_ in found(tmp_path, app=source)] == [code]


@pytest.mark.parametrize(
    "source",
    [
        "import pymysql, redis, pymongo, psycopg2\n",
        "if __name__ == '__main__':\n    import pyodbc\n",
        "import pyodbc  # greenline: ignore[GL101]\n",
        "import oracledb\n",
        "import grpc\nchannel = grpc.insecure_channel('h:1')\n",
        "import zmq\n",
        "import psycopg\n",
        "import httpx\nclient = httpx.AsyncClient()\n",
        "import sentry_sdk\nsentry_sdk.init('https://key@h/1')\n",
        "from opentelemetry.sdk.trace import TracerProvider\n",
        "import newrelic.agent\nfrom ddtrace.trace import tracer\n",
        "import MySQLdb\n",
        "import sqlalchemy\nis_ours = url.startswith('mssql://')\n",
        "engine = create_engine('mysql+pymssql://h/d')\n",
        "NAMES = {'MySQL': 'mssql'}\n",
        "if __name__ == '__main__':\n    D = {'ENGINE': 'mssql'}\n",
        "import sqlalchemy\nif __name__ == '__main__':\n    D = {'URL': 'mssql://h/d'}\n",
        "import tortoise\nurl = 'mssql://h/d'\n",
    ],
)
def test_an_import_is_not_found_where_it_yields_or_no_request_runs_it(
    tmp_path: Path, source: str
) -> None:
    """Nor where a comment ignores it."""
    assert found(tmp_path, app=source) == []


def test_a_finding_has_the_line_and_what_to_do(tmp_path: Path, packages: Path) -> None:
    """The first import; it is an error where the library is installed, and not optional."""
    source = "import os\nimport pyodbc\npool = PooledDB(pyodbc)\n"
    (finding,) = examined(tmp_path, app=source).findings
    assert (finding.path, finding.line, finding.level) == ("app.py", 2, Level.WARNING)
    assert finding.what.startswith("pyodbc is not installed here, and version 5.")
    assert "another library" in finding.what
    install(packages, "pyodbc")
    forget_installed()
    (finding,) = examined(tmp_path, app=source).findings
    assert finding.what.startswith("pyodbc: a call of ")
    assert (finding.code.code, finding.level) == ("GL101", Level.ERROR)
    (tmp_path / "requirements.txt").write_text("flask\n")
    (finding,) = examined(tmp_path, app=source).findings
    assert (finding.code.code, finding.level) == ("GL101", Level.WARNING)


@pytest.mark.parametrize("job", ["tasks", "plugin"])
def test_a_library_of_which_no_request_is_known(tmp_path: Path, packages: Path, job: str) -> None:
    """It is a remark: nobody has installed an optional one, or only jobs and plugins import it."""
    source, lines = "import pyodbc\npool = PooledDB(pyodbc)\n", "flask\npyodbc\n"
    (finding,) = examined(tmp_path, app=source).findings
    assert finding.level == Level.WARNING
    (tmp_path / "requirements.txt").write_text("flask\n")
    (finding,) = examined(tmp_path).findings
    assert finding.level == Level.REMARK
    install(packages, "pyodbc")
    forget_installed()
    (tmp_path / "requirements.txt").write_text(lines)
    (finding,) = examined(tmp_path, app="import flask\n", **{job: source}).findings
    assert (finding.path, finding.level) == (f"{job}.py", Level.REMARK)
    (finding,) = examined(tmp_path, web=f"import flask\n{source}").findings
    assert (finding.path, finding.level) == ("web.py", Level.ERROR)


def test_what_the_application_does_without_is_a_remark(tmp_path: Path, packages: Path) -> None:
    """It is not installed, and the application has been imported."""
    source = "try:\n    import pyodbc\nexcept ImportError:\n    pyodbc = None\n"
    (tmp_path / "app.py").write_text(source)
    imported = Facts(loaded=frozenset(["app.py"]), target="app.py")
    for facts, level in ((Facts(), Level.WARNING), (imported, Level.REMARK)):
        (finding,) = examine(load(tmp_path), facts).findings
        assert (finding.code.code, finding.level) == ("GL101", level)


@pytest.mark.parametrize(
    ("loaded", "level"), [(["app.py", "more.py"], Level.ERROR), (["app.py"], Level.WARNING)]
)
def test_what_the_import_has_not_loaded_is_no_error(
    loaded: list[str], level: Level, tmp_path: Path, packages: Path
) -> None:
    """A request may import it later, or never."""
    install(packages, "pyodbc")
    (tmp_path / "app.py").write_text("import flask\n\n\ndef view():\n    import more\n")
    (tmp_path / "more.py").write_text("import pyodbc\npool = PooledDB(pyodbc)\n")
    facts = Facts(loaded=frozenset(loaded), target="app.py")
    (finding,) = examine(load(tmp_path), facts).findings
    assert (finding.code.code, finding.path, finding.level) == ("GL101", "more.py", level)


@pytest.mark.parametrize(
    ("code", "level"),
    [
        ("def view():\n    return pyodbc.connect()\n", Level.ERROR),
        ("pool = PooledDB(creator=pyodbc)\n", Level.ERROR),
        ("def is_late(error):\n    return isinstance(error, pyodbc.Error)\n", Level.WARNING),
        ("def unmentioned():\n    return pyodbc.connect()\n", Level.WARNING),
        ("@app.cli.command()\ndef load():\n    pyodbc.connect()\n", Level.WARNING),
        ("def load():\n    pyodbc.connect()\n\nThread(target=load)\n", Level.WARNING),
    ],
)
def test_what_no_request_is_known_to_call_is_no_error(
    code: str, level: Level, tmp_path: Path, packages: Path
) -> None:
    """Another library may call it all the same."""
    install(packages, "pyodbc")
    (tmp_path / "app.py").write_text("import flask\nimport more\nmore.view, more.is_late\n")
    (tmp_path / "more.py").write_text(f"import pyodbc\n{code}")
    facts = Facts(loaded=frozenset(["app.py", "more.py"]), target="app.py")
    (finding,) = examine(load(tmp_path), facts).findings
    assert (finding.code.code, finding.path, finding.level) == ("GL101", "more.py", level)


@pytest.mark.parametrize(
    ("name", "blocking", "level"),
    [
        ("local", {"pyodbc"}, Level.WARNING),
        ("local", set(), Level.REMARK),
        ("tasks", {"pyodbc"}, Level.REMARK),
    ],
    ids=["settings", "not loaded", "a job"],
)
def test_what_the_import_has_loaded_for_other_files(
    name: str, blocking: set[str], level: Level, tmp_path: Path, packages: Path
) -> None:
    """Settings that are included by their path, for instance; not for jobs."""
    install(packages, "pyodbc")
    (tmp_path / "app.py").write_text("import flask\n")
    (tmp_path / f"{name}.py").write_text("D = {'ENGINE': 'mssql'}\n")
    by_import = {each: Finding(BLOCKING_DEPENDENCY, "", 0, each) for each in blocking}
    facts = Facts(loaded=frozenset(["app.py"]), target="app.py", blocking=by_import)
    (finding,) = examine(load(tmp_path), facts).findings
    assert (finding.code.code, finding.path, finding.level) == ("GL101", f"{name}.py", level)


@pytest.mark.parametrize(
    ("loaded", "level"),
    [(["app.py", "plugins/login.py"], Level.ERROR), (["app.py"], Level.REMARK)],
)
def test_what_the_configuration_has_the_import_load(
    loaded: list[str], level: Level, tmp_path: Path, packages: Path
) -> None:
    """By importlib, for instance: no file imports it, and requests call it."""
    install(packages, "python-ldap")
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/login.py").write_text(
        "import ldap\n@known\ndef login():\n    ldap.initialize('ldap://h')\n"
    )
    (tmp_path / "app.py").write_text("import flask\n")
    facts = Facts(loaded=frozenset(loaded), target="app.py")
    (finding,) = examine(load(tmp_path), facts).findings
    assert (finding.code.code, finding.path) == ("GL101", "plugins/login.py")
    assert finding.level == level


def test_what_the_import_has_loaded_is_not_optional(tmp_path: Path, packages: Path) -> None:
    """Although the project does not declare it."""
    install(packages, "pyodbc")
    (tmp_path / "requirements.txt").write_text("flask\n")
    (tmp_path / "app.py").write_text("D = {'ENGINE': 'mssql'}\n")
    for blocking, level in ((set(), Level.WARNING), ({"pyodbc"}, Level.ERROR)):
        by_import = {each: Finding(BLOCKING_DEPENDENCY, "", 0, each) for each in blocking}
        facts = Facts(loaded=frozenset(["app.py"]), target="app.py", blocking=by_import)
        (finding,) = examine(load(tmp_path), facts).findings
        assert (finding.code.code, finding.level) == ("GL101", level)


def test_modules_that_do_not_wait_in_c_are_not_found(tmp_path: Path, packages: Path) -> None:
    """Of a library that does."""
    install(packages, "python-ldap")
    source = "from ldap.filter import escape_filter_chars\nescape_filter_chars('x')\n"
    assert found(tmp_path, app=source) == []
    assert found(tmp_path, app=f"import ldap\n{source}") == [("GL101", "app.py", 1)]


def test_a_distribution_with_a_malformed_requirement(tmp_path: Path, packages: Path) -> None:
    """What else it needs is read all the same: pip has installed it."""
    install(packages, "shop-base", "toml (<1pytz>=2015.4)", "pyodbc")
    install(packages, "pyodbc")
    found_ = examined(tmp_path, app="import shop_base\n").findings
    assert [each.code.code for each in found_] == ["GL101"]


def test_what_only_computes_is_a_remark(tmp_path: Path) -> None:
    """It ends by itself."""
    (finding,) = examined(tmp_path, app="import numpy\n").findings
    assert (finding.code.code, finding.level) == ("GL101", Level.REMARK)


def test_what_runs_in_threads_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a function of it."""
    source = "import pyodbc\nimport pycurl\n"
    monkeypatch.setenv("GREENLINE_OFFLOAD", "pyodbc:connect")
    assert found(tmp_path, app=source) == [("GL101", "app.py", 2)]
    monkeypatch.setenv("GREENLINE_OFFLOAD", "pyodbc:connect,pycurl:Curl.perform")
    assert found(tmp_path, app=source) == []


def test_what_gunicorns_configuration_imports_is_too_early(tmp_path: Path) -> None:
    """Through first-party files, too; the application imports it late enough."""
    assert found(tmp_path, gunicorn_conf="import argon2\n") == [("GL103", CONF, 1)]
    files = {"gunicorn_conf": "import early\n", "early": "import argon2\n"}
    assert found(tmp_path, **files) == [("GL103", "early.py", 1)]
    files["gunicorn_conf"] = "def on_starting(server):\n    import early\n"
    assert found(tmp_path, **files) == [("GL103", "early.py", 1)]
    files["early"] = "def pre_fork():\n    import argon2\n"
    assert found(tmp_path, **files) == []
    files = {"gunicorn_conf": "", "early": "import argon2\n"}
    assert found(tmp_path, **files) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import sentry_sdk\n", []),
        ("from opentelemetry import trace\nfrom opentelemetry.sdk.trace import export\n", []),
        ("def post_fork(server, worker):\n    import sentry_sdk, argon2\n", []),
        ("def when_ready(server):\n    import sentry_sdk, argon2\n", [2]),
        ("import newrelic.agent\nnewrelic.agent.initialize()\n", []),
        ("import ddtrace.auto\n", []),
    ],
    ids=["sentry", "opentelemetry", "post_fork", "when_ready", "newrelic", "ddtrace"],
)
def test_an_agent_in_gunicorns_configuration(tmp_path: Path, source: str, lines: list[int]) -> None:
    """Before the patching, where some may start and another has to be imported."""
    assert found(tmp_path, gunicorn_conf=source) == [("GL103", CONF, each) for each in lines]


def test_what_has_to_come_before_the_patching_may_come_again(tmp_path: Path) -> None:
    """The second import does nothing; in a hook, which runs after the patching, it is too late."""
    source = "import ddtrace.auto\n"
    assert found(tmp_path, gunicorn_conf=source, app=source) == []
    hook = "def post_fork(server, worker):\n    import ddtrace.auto\n"
    assert found(tmp_path, gunicorn_conf=hook, app="") == [("GL103", CONF, 2)]


def test_what_breaks_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a table of the test's own: no library in ours breaks for ever."""
    record = Record(
        name="fragile", modules=("fragile",), tried=True, version="1", date="2026-01-01",
        against="a server", verdict=BREAKS, why="a place is lost", source="https://x", instead="",
    )  # fmt: skip
    monkeypatch.setattr(dependencies, "records", lambda: (record,))
    (finding,) = examined(tmp_path, app="from fragile import Client\n").findings
    what = "fragile is not installed here, and version 1 was tried: a place is lost"
    assert finding[1:4] == ("app.py", 1, what)
    assert (finding.code.code, finding.level) == ("GL102", Level.WARNING)


def test_what_runs_in_threads_does_not_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls are not interrupted; by a table of the test's own."""
    record = Record(
        name="fragile", modules=("fragile",), tried=True, version="1", date="2026-01-01",
        against="a server", verdict=BREAKS, why="a place is lost", source="https://x", instead="",
    )  # fmt: skip
    monkeypatch.setattr(dependencies, "records", lambda: (record,))
    assert found(tmp_path, app="import fragile\n") == [("GL102", "app.py", 1)]
    monkeypatch.setenv("GREENLINE_OFFLOAD", "fragile:Client.get")
    assert found(tmp_path, app="import fragile\n") == []


def test_what_a_library_needs_is_found(tmp_path: Path, packages: Path) -> None:
    """Declared in pyproject.toml or requirements.txt, or imported; with the extras asked for."""
    install(packages, "outer", "pylibmc>=1; extra == 'memory'", "absent")
    install(packages, "pylibmc")
    assert found(tmp_path, app="import outer\n") == []
    dependency = '[project]\nname = "shop"\ndependencies = ["outer[memory]"]\n'
    (tmp_path / "pyproject.toml").write_text(dependency)
    (finding,) = examined(tmp_path).findings
    assert (finding.code.code, finding.level, finding.path) == ("GL101", Level.WARNING, "")
    assert finding.what.startswith("pylibmc is required, and not imported here")
    (tmp_path / "pyproject.toml").unlink()
    lines = "# all\n-r more.txt\npylibmc==1.0 \\\n    --hash=sha256:00\n./a/path\n"
    (tmp_path / "requirements.txt").write_text(lines)
    assert found(tmp_path) == [("GL101", "", 0)]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("pylibmc", "pylibmc is required; it is not installed here, and version "),
        ("cx-Oracle[x]>=1", "cx_Oracle is required; it is not installed here: not tried; https://"),
        ("pylibmc; python_version < '3'", None),
        ("redis\nnumpy", None),
    ],
    ids=["tried", "not tried", "another Python", "harmless"],
)
def test_what_is_declared_and_not_installed_is_looked_up(
    tmp_path: Path, packages: Path, line: str, what: str | None
) -> None:
    """By its name: whether it is the version of the table is not known."""
    (tmp_path / "requirements.txt").write_text(line)
    found = examined(tmp_path).findings
    assert [each.level for each in found] == ([Level.WARNING] if what else [])
    assert all(each.what.startswith(what or "") for each in found)


@pytest.mark.parametrize(
    ("tried", "what"),
    [("100.1", "slow 99.0 (100.1 was tried)"), ("99.9", None), ("0.9", None), ("unknown", None)],
)
def test_an_older_version_than_was_tried_is_a_remark(
    tried: str, what: str | None, tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an earlier major one, GL105; by a table of the test's own."""
    install(packages, "slow")
    record = Record(
        name="slow", modules=("slow",), tried=True, version=tried, date="2026-01-01",
        against="a server", verdict=YIELDS, why="it waits in Python", source="https://x",
        instead="",
    )  # fmt: skip
    monkeypatch.setattr(dependencies, "records", lambda: (record,))
    findings = examined(tmp_path, app="import slow\n").findings
    remark = [("GL105", Level.REMARK, what)] if what else []
    assert [(each.code.code, each.level, each.what) for each in findings] == remark


def test_extensions_without_a_verdict_are_named_in_one_finding(
    tmp_path: Path, packages: Path
) -> None:
    """Those that the application uses or needs."""
    suffix = EXTENSION_SUFFIXES[0]
    install(packages, "outer-two", "fast-one")
    install(packages, "fast-one", files=(f"fast{suffix}",))
    install(packages, "fast-two", files=(f"fast2{suffix}",))
    (finding,) = examined(tmp_path, app="import outer_two, fast_two, os\n").findings
    assert (finding.code.code, finding.level) == ("GL104", Level.REMARK)
    assert finding.what == "fast-one, fast-two"


def test_no_extension_that_is_unused_or_has_a_verdict_is_named(
    tmp_path: Path, packages: Path
) -> None:
    """Nor what is written in Python, nor an extension that never waits."""
    suffix = EXTENSION_SUFFIXES[0]
    install(packages, "outer-three", "orjson", "pure-one", "RapidFuzz")
    install(packages, "fast-three", files=(f"fast3{suffix}",))
    install(packages, "pure-one")
    install(packages, "RapidFuzz", files=(f"rapidfuzz{suffix}",))
    assert found(tmp_path, app="import outer_three, os\n") == []


def test_a_finding_without_a_file_is_ignored_by_pyproject(tmp_path: Path, packages: Path) -> None:
    """With its reason."""
    install(packages, "fast-four", files=(f"fast{EXTENSION_SUFFIXES[0]}",))
    ignore = '[[tool.greenline.doctor.ignore]]\ncode = "GL104"\nreason = "watched"\n'
    (tmp_path / "pyproject.toml").write_text(ignore)
    result = examined(tmp_path, app="import fast_four\n")
    assert result.findings == []
    assert [reason for _, reason in result.ignored] == ["watched"]
