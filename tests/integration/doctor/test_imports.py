"""greenline.doctor.imports: an application is imported in a child, whatever it does there."""

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from greenline.doctor import imports
from greenline.doctor.project import Project

APP = "def application(environ, start_response):\n    return []\n"


def probed(folder: Path, source: str, target: str = "app:application", **more: str) -> list[Any]:
    (folder / "app.py").write_text(f"{source}\n{APP}")
    for name, text in more.items():
        (folder / f"{name.replace('_conf', '.conf')}.py").write_text(text)
    project = Project(folder)
    found = imports.findings(project, target, imports.probe(project, target, limit_s=20))
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
        ("app:missing", "AttributeError: module 'app' has no attribute 'missing'"),
        ("app:__name__", "TypeError: __name__ is no WSGI application: str"),
    ],
    ids=["module", "attribute", "no callable"],
)
def test_a_target_that_is_none(tmp_path: Path, target: str, reason: str) -> None:
    """As gunicorn would say."""
    ((code, _, _, what),) = probed(tmp_path, "", target)
    assert (code, what) == ("GL301", f"{target}: {reason}")


def test_one_that_does_not_end(tmp_path: Path) -> None:
    """It is given up, with all that it has started."""
    source = "import subprocess, time\nsubprocess.Popen(['sleep', '1000'])\ntime.sleep(1000)"
    (tmp_path / "app.py").write_text(source)
    project, began = Project(tmp_path), time.monotonic()
    seen = imports.probe(project, "app:application", limit_s=3)
    assert seen == {"error": "its import did not end in 3 s"}
    assert time.monotonic() - began < 13


def test_one_that_prints_megabytes(tmp_path: Path) -> None:
    """It fills no pipe, and hides no result."""
    assert probed(tmp_path, "print('x' * 20_000_000)") == []


def test_a_factory_in_a_folder_with_a_blank(tmp_path: Path) -> None:
    """``create_app()`` is called, as gunicorn does."""
    folder = tmp_path / "my shop"
    folder.mkdir()
    assert probed(folder, "def create_app():\n    return application", "app:create_app()") == []


def test_what_an_import_does(tmp_path: Path) -> None:
    """A connection, a program and a thread, each with its line and the imports on the way there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = ":".join(map(str, server.getsockname()))
        work = (
            "import socket, subprocess, threading, time\n"
            f"socket.create_connection({tuple(server.getsockname())}, timeout=5)\n"
            "subprocess.run(['true'])\n"
            "threading.Thread(target=time.sleep, args=(9,), name='tick', daemon=True).start()\n"
        )
        found = probed(tmp_path, "import work", work=work)
    assert ("GL304", "", 0, "starts the thread 'tick'") in found
    does = {(code, path, line) for code, path, line, _ in found}
    assert does >= {("GL303", "work.py", 2), ("GL304", "work.py", 3)}
    assert any(f"{address} (imported: work <- app)" in each[3] for each in found)


def test_what_gunicorns_configuration_imports(tmp_path: Path) -> None:
    """Unpatched names in its modules; its errors are named."""
    early = "from time import sleep\n"
    found = probed(tmp_path, "", early=early, gunicorn_conf="import early\n")
    assert found == [("GL302", "gunicorn.conf.py", 0, "early (sleep from time)")]
    ((code, _, _, what),) = probed(tmp_path, "", gunicorn_conf="bind = 1 / 0\n")
    assert (code, what) == ("GL301", "gunicorn.conf.py: ZeroDivisionError: division by zero")
