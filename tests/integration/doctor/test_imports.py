"""greenline.doctor.imports: an application is imported in a child, whatever it does there."""

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from greenline.cli import main
from greenline.deploy.findings import Level
from greenline.doctor import imports
from greenline.doctor.project import Project, load
from tests.helpers.forms import in_the_long_form

APP = "def application(environ, start_response):\n    return []\n"


def probed(folder: Path, source: str, target: str = "app:application", **more: str) -> list[Any]:
    (folder / "app.py").write_text(f"{source}\n{APP}")
    for name, text in more.items():
        (folder / f"{name.replace('_conf', '.conf')}.py").write_text(text)
    project = load(folder)
    return found_in(project, target, imports.probe(project, target))


def found_in(project: Project, target: str, seen: dict[str, Any]) -> list[Any]:
    """Return the findings, but for the one of an import that takes long on a busy machine."""
    found = imports.findings(project, target, {**seen, "seconds": 0.0})
    return [(each.code.code, each.path, each.line, each.what) for each in found]


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ("import no_such_package", 1, "the package no_such_package is not installed"),
        ("x = (", 0, "SyntaxError: '(' was never closed"),
        ("import sys\nsys.exit(3)", 2, "it ends the process (sys.exit(3))"),
        ("import os\nos._exit(5)", 0, "it ended the process, with status 5"),
        (
            "import os, sys\nprint('no key', file=sys.stderr, flush=True)\nos._exit(1)",
            0,
            "it ended the process, with status 1: no key",
        ),
        ("import sys\nsys.stdin.readline() or input()", 2, "it reads from stdin"),
        ("raise ValueError('no\\nkey')", 1, "ValueError: no"),
        ("raise ValueError('because:\\n\\n no key')", 1, "ValueError: because: no key"),
        ("import os\nos.environ['NO_SUCH_VARIABLE']", 2, "KeyError: 'NO_SUCH_VARIABLE'"),
    ],
    ids=["package", "syntax", "exit", "_exit", "reason", "stdin", "error", "lines", "variable"],
)
def test_one_that_cannot_be_imported(tmp_path: Path, source: str, line: int, reason: str) -> None:
    """One line says why, and where."""
    ((code, path, where, what),) = probed(tmp_path, source)
    assert (code, what) == ("GL301", f"app:application: {reason}")
    if line:
        assert (path, where) == ("app.py", line)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("nowhere:app", "there is no module nowhere"),
        ("app:missing", "AppImportError: Failed to find attribute 'missing' in 'app'."),
        ("app:__name__", "AppImportError: Application object must be callable."),
    ],
    ids=["module", "attribute", "no callable"],
)
def test_a_target_that_is_none(tmp_path: Path, target: str, reason: str) -> None:
    """As gunicorn would say."""
    ((code, _, _, what),) = probed(tmp_path, "", target)
    assert (code, what) == ("GL301", f"{target}: {reason}")


COROUTINE = "async def served(scope, receive, send): ...\n"
CLASS = """
class Framework:
    async def __call__(self, scope, receive, send): ...
served = Framework()
"""


@pytest.mark.parametrize("source", [COROUTINE, CLASS], ids=["function", "object"])
def test_an_asgi_application_is_none(tmp_path: Path, source: str) -> None:
    """gunicorn finds out at each request only."""
    ((code, path, _, what),) = probed(tmp_path, source, "app:served")
    assert (code, path) == ("GL301", "app.py")
    assert what == (
        "app:served: it is an ASGI application, which no worker for WSGI can call: "
        "leave it on uvicorn"
    )


@in_the_long_form
def test_one_that_does_not_end(tmp_path: Path) -> None:
    """It is given up, with all that it has started; the last line is shown, and none is kept."""
    source = "import subprocess\nsubprocess.Popen(['sleep', '1000'])\n"
    (tmp_path / "app.py").write_text(f"{source}while True: print('no end ' * 9_000)\n")
    project, began = Project(tmp_path), time.monotonic()
    error = imports.probe(project, "app:application", limit_s=8)["error"]
    assert error.startswith("it did not end in 8 s: no")
    assert len(error) < imports.MAX_LINE + 30
    assert time.monotonic() - began < 20


def test_one_that_prints_megabytes(tmp_path: Path) -> None:
    """It fills no pipe, and hides no result."""
    assert probed(tmp_path, "print('x' * 20_000_000)") == []


def test_a_factory_in_a_folder_with_a_blank(tmp_path: Path) -> None:
    """It is called with the arguments that are given, as gunicorn does."""
    folder = tmp_path / "my shop"
    folder.mkdir()
    source = "def create_app(name):\n    return {'prod': application}[name]"
    assert probed(folder, source, "app:create_app('prod')") == []


def test_what_an_import_does(tmp_path: Path) -> None:
    """A connection, a program, a thread: each with its line and the imports on the way there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = ":".join(map(str, server.getsockname()))
        work = (
            "import socket, subprocess, threading, time\n"
            f"socket.create_connection({tuple(server.getsockname())}, timeout=5)\n"
            "subprocess.run(['true'])\n"
            "threading.Thread(target=time.sleep, args=(9,), name='tick', daemon=True).start()\n"
        )
        found = probed(tmp_path, "import work", work=work)
    by = "(imported: app -> work)"
    assert ("GL303", "work.py", 2, f"connects to {address} {by}") in found
    assert ("GL304", "work.py", 4, f"starts the thread 'tick' {by}") in found
    assert ("GL304", "work.py", 3) in {each[:3] for each in found}


def test_a_connection_that_the_import_does_without(tmp_path: Path) -> None:
    """It is a remark where the server is away, and none where there need not be one; each once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = "{}:{}".format(*server.getsockname())
        app = (
            "import socket\n"
            "socket.socket(type=socket.SOCK_DGRAM).connect(('127.0.0.1', 9))\n"
            "for port in (9, 9):\n"
            "    try:\n"
            "        socket.create_connection(('127.0.0.1', port))\n"
            "    except OSError:\n"
            "        pass\n"
            f"socket.create_connection({server.getsockname()})\n"
        )
        (tmp_path / "app.py").write_text(f"{app}app = len\n")
        project = load(tmp_path)
        seen = imports.probe(project, "app:app")
    found = [
        (each.level, each.line, each.what, each.code.why == imports.GOES_ON)
        for each in imports.findings(project, "app:app", seen)
    ]
    away = (Level.REMARK, 5, "connects to 127.0.0.1:9, which is away (imported: app)", True)
    assert found == [away, (Level.WARNING, 8, f"connects to {there} (imported: app)", False)]


def test_a_file_that_the_import_leaves_open_for_writing(tmp_path: Path) -> None:
    """By its line; none that is closed, that is only read, or that has no name."""
    work = (
        "import logging, tempfile\n"
        "logging.basicConfig(filename='shop.log')\n"
        "read = open(__file__)\n"
        "open('closed.txt', 'w').close()\n"
        "unnamed = tempfile.TemporaryFile()\n"
    )
    (each,) = probed(tmp_path, "import work", work=work)
    assert each == ("GL304", "work.py", 2, "keeps open shop.log (imported: app -> work)")


def test_what_is_no_finding_of_an_import(tmp_path: Path) -> None:
    """A module that is patched in its place, and what ends with the import or begins later."""
    source = (
        "import socket, threading\n"
        "thread = threading.Thread(target=len, args=('',))\n"
        "thread.start()\n"
        "thread.join()\n"
        "open('closed.txt', 'w').close()\n"
        "socket.socket().close()\n"
        "def use():\n"
        "    threading.Timer(600, len).start()\n"
        "    return open('used.txt', 'w'), socket.create_connection(('127.0.0.1', 9))\n"
    )
    configuration = "import socket, threading, time\n\n\ndef wait():\n    time.sleep(1)\n"
    assert probed(tmp_path, source, gunicorn_conf=configuration) == []


def test_an_import_that_takes_long(tmp_path: Path) -> None:
    """Longer than the limit."""
    found = imports.findings(Project(tmp_path), "app", {"seconds": 5.1})
    assert [each.code.code for each in found] == ["GL305"]


def test_an_import_that_does_not_take_long(tmp_path: Path) -> None:
    """Shorter than the limit."""
    assert list(imports.findings(Project(tmp_path), "app", {"seconds": 4.9})) == []


def test_an_environment_in_the_folder_is_not_the_applications_code(tmp_path: Path) -> None:
    """The line is that of the application which imports the library."""
    library = tmp_path / ".venv/lib/site-packages"
    library.mkdir(parents=True)
    (library / "library.py").write_text("import subprocess\n\nsubprocess.run(['true'])\n")
    source = f"import sys\nsys.path.append({str(library)!r})\nimport library"
    assert probed(tmp_path, source)[0][:3] == ("GL304", "app.py", 3)


def test_what_the_platform_module_starts_is_no_finding(tmp_path: Path) -> None:
    """Its uname has ended when the import goes on; a program of the application's own is one."""
    source = "import platform, subprocess\nplatform.uname().processor\n"
    assert probed(tmp_path, source) == []
    found = probed(tmp_path, source + "subprocess.run(['uname'])\n")
    assert [(code, line) for code, _, line, _ in found] == [("GL304", 3)]


def test_what_gunicorns_configuration_imports(tmp_path: Path) -> None:
    """Unpatched names in its modules; its errors are named."""
    early, client = "import socket\nclass Own(socket.socket): pass\n", "import os\n\nimport early\n"
    configuration = "import importlib\nimportlib.import_module('client')\n"
    found = probed(tmp_path, "", early=early, client=client, gunicorn_conf=configuration)
    by = "(imported: gunicorn.conf.py -> client -> early)"
    assert found == [("GL302", "client.py", 3, f"early (Own is built on an unpatched class) {by}")]
    # The worker gives each greenlet values of its own in these.
    early = "import threading\nclass Own(threading.local): pass\nkept = Own()\n"
    assert probed(tmp_path, "", early=early, client=client, gunicorn_conf=configuration) == []


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ("bind = 1 / 0", 2, "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit('no key')", 2, "it ends the process (sys.exit('no key'))"),
        ("try: bind = 1 / 0\nexcept Exception: exit(2)", 3, "it ends the process (sys.exit(2))"),
        ("import os; os._exit(3)", 0, "it ended the process, with status 3"),
        ("workers = -1", 0, "ValueError: Value must be positive: -1"),
    ],
    ids=["error", "exit", "exit after an error", "_exit", "value"],
)
def test_gunicorns_configuration_fails(tmp_path: Path, source: str, line: int, reason: str) -> None:
    """It is named, with its line; the application is imported if the process goes on."""
    found = probed(
        tmp_path, "import subprocess\nsubprocess.run(['true'])", gunicorn_conf=f"\n{source}"
    )
    assert found[0] == ("GL301", "gunicorn.conf.py", line, f"gunicorn.conf.py: {reason}")
    is_imported = "_exit" not in source
    assert [each[:3] for each in found[1:]] == [("GL304", "app.py", 2)] * is_imported


@pytest.mark.parametrize(
    ("configuration", "options"),
    [
        ("raw_env = ['SHOP=1']\npythonpath = 'lib'\nchdir = 'web'\n", ""),
        ("", "--env SHOP=1 --pythonpath lib --chdir web"),
    ],
    ids=["configuration", "options"],
)
def test_what_gunicorn_sets_for_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configuration: str, options: str
) -> None:
    """The folder, the environment and the path, by its configuration or GUNICORN_CMD_ARGS."""
    monkeypatch.setenv("GUNICORN_CMD_ARGS", options)
    (tmp_path / "web/lib").mkdir(parents=True)
    (tmp_path / "web/lib/library.py").write_text("")
    (tmp_path / "web/shop.py").write_text(f"import os, library\nos.environ['SHOP']\n{APP}")
    assert probed(tmp_path, "", "shop", gunicorn_conf=configuration) == []


@pytest.mark.parametrize(
    ("option", "shown"),
    [
        ("-c deploy/shop.py", "deploy/shop.py"),
        ("--config=file:deploy/shop.py", "deploy/shop.py"),
        ("-c python:deploy.shop", "deploy.shop"),
    ],
)
def test_the_configuration_that_an_option_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, shown: str
) -> None:
    """In GUNICORN_CMD_ARGS, as gunicorn reads it; then gunicorn.conf.py is not executed."""
    monkeypatch.setenv("GUNICORN_CMD_ARGS", f"--workers 2 {option}")
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy/shop.py").write_text("import early\n")
    early = "import socket\nclass Own(socket.socket): pass\n"
    (found,) = probed(tmp_path, "", early=early, gunicorn_conf="bind = 1 / 0\n")
    by = f"(imported: {shown} -> early)"
    assert found == (
        "GL302",
        "deploy/shop.py",
        1,
        f"early (Own is built on an unpatched class) {by}",
    )


def test_the_files_that_an_import_loads_are_those_of_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their names; a call of another program, which may serve too, is a remark."""
    call = "import requests\n\n\ndef send(url):\n    requests.post(url)\n"
    (tmp_path / "tasks.py").write_text(f"import mail\nSEND = mail.send\n{call}{APP}")
    (tmp_path / "mail.py").write_text(call)
    (tmp_path / "other.py").write_text(f"import flask\n{call}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(".")
    monkeypatch.setenv("PWD", str(tmp_path / "link"))  # as a shell has it
    output = CliRunner().invoke(main, ["doctor", "tasks:application", "--json"]).output
    assert [
        (each["path"], each["level"])
        for each in json.loads(output)["findings"]
        if each["code"] == "GL213"
    ] == [("mail.py", "warning"), ("tasks.py", "warning"), ("other.py", "remark")]


def test_a_connection_of_psycopg2_is_found(tmp_path: Path) -> None:
    """Which libpq makes in C, in a function that the import calls."""
    source = (
        "import psycopg2\n\ndef version():\n    try:\n"
        "        psycopg2.connect('host=127.0.0.1 port=1 connect_timeout=1')\n"
        "    except psycopg2.OperationalError:\n        return None\n\nVERSION = version()\n"
    )
    found = [each for each in probed(tmp_path, source) if each[0] == "GL303"]
    assert [(code, line) for code, _, line, _ in found] == [("GL303", 5)]
    assert found[0][3].startswith("connects to 127.0.0.1:1")


@pytest.mark.parametrize(
    ("call", "is_found"),
    [("create", True), ("create()", False), ("both", False), ("Made()", False), ("any", False)],
)
def test_a_factory_without_parentheses_is_no_application(
    tmp_path: Path, call: str, is_found: bool
) -> None:
    """What cannot take environ and start_response."""
    source = (
        "def create(debug=False):\n    return application\n"
        "def both(environ, start_response):\n    return []\n"
        "def any(*args):\n    return []\n"
        "class Made:\n    def __call__(self, environ, start_response):\n        return []\n"
        "made = Made()\n"
    )
    found = probed(tmp_path, source, f"app:{call.replace('Made()', 'made')}")
    reason = "create() does not take environ and start_response; a factory is create()"
    assert any(code == "GL301" and reason in what for code, _, _, what in found) == is_found


@pytest.mark.parametrize(
    ("checkout", "expected"),
    [("def pay(request): pass\n", []),
     ("import subprocess\nsubprocess.run(['true'])\n1 / 0\n",
      [("GL301", "checkout.py", 3, "app: its URLs: ZeroDivisionError: division by zero"),
       ("GL304", "checkout.py", 2, "starts true (imported: routes -> checkout)")])],
    ids=["loaded", "failing"],
)  # fmt: skip
def test_djangos_urls_are_loaded(tmp_path: Path, checkout: str, expected: list[Any]) -> None:
    """Which it does at the first request itself; an error there hides nothing else."""
    routes = "from django.urls import path\nimport checkout\n"
    routes += "urlpatterns = [path('', checkout.pay)]\n"
    source = (
        "from django.conf import settings\nfrom django.core.wsgi import get_wsgi_application\n"
        "settings.configure(ROOT_URLCONF='routes')\napplication = get_wsgi_application()\n"
    )
    for name, text in {"app": source, "routes": routes, "checkout": checkout}.items():
        (tmp_path / f"{name}.py").write_text(text)
    project = load(tmp_path)
    seen = imports.probe(project, "app")
    assert found_in(project, "app", seen) == expected
    loaded = {Path(each).name for each in seen["loaded"]}
    assert loaded == (set() if expected else {"app.py", "routes.py", "checkout.py"})


def test_the_files_of_a_package_that_is_read_count_as_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --package NAME; those of other libraries do not."""
    library, folder = tmp_path / "site-packages", tmp_path / "project"
    folder.mkdir()
    (library / "shop").mkdir(parents=True)
    (library / "shop/__init__.py").write_text("import other\n")
    (library / "shop/views.py").touch()
    (library / "shop/unused.py").touch()
    (library / "other.py").touch()
    monkeypatch.syspath_prepend(library)
    path = f"import sys\nsys.path.append({str(library)!r})\n"
    (folder / "app.py").write_text(f"{path}import shop.views\n{APP}")
    project = load(folder, ["shop"])
    seen = imports.probe(project, "app")
    loaded = sorted(project.shown(Path(each)) for each in seen["loaded"])
    assert loaded == ["app.py", "shop/__init__.py", "shop/views.py"]
    files = sorted(map(project.shown, project.files(loaded)))
    assert files == ["app.py", "shop/__init__.py", "shop/unused.py", "shop/views.py"]


@pytest.mark.parametrize("source", ["", "import cx_Oracle\n"], ids=["a library's", "its own"])
def test_what_the_worker_warns_of_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """Once: a driver that the application or a library of it loads."""
    library = tmp_path / ".venv/lib/site-packages"
    library.mkdir(parents=True)
    (library / "cx_Oracle.py").touch()
    (library / "library.py").write_text("import cx_Oracle, uvloop\nuvloop.install()\n")
    path = f"import sys\nsys.path.append({str(library)!r})\n"
    (tmp_path / "app.py").write_text(f"{path}import library\n{source}{APP}")
    (tmp_path / "requirements.txt").write_text("cx_Oracle\n")
    monkeypatch.chdir(tmp_path)
    output = CliRunner().invoke(main, ["doctor", "app", "--json"]).output
    found = [each for each in json.loads(output)["findings"] if each["code"] == "GL101"]
    (driver,) = found  # and no loop: uvloop's functions make asyncio's
    assert (driver["line"], driver["level"]) == (4 if source else 3, "warning")
    by = "(imported: app -> library -> cx_Oracle)"
    assert driver["what"].endswith(by) is not bool(source)
