"""The worker is green, or refuses to start and says who is to blame."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.forms import in_the_long_form
from tests.helpers.support import CHECKOUT, Databases, Service, service
from tests.helpers.watch import listening_sockets, sockets

# What a module says that gunicorn.conf.py imports, and what is to blame then.
EARLY = {
    "a subclass": ("import socket\nclass Mine(socket.socket): ...", "early (Mine"),
    "a default": (
        "import time\ndef rest(sleep=time.sleep): ...",
        "early (rest's default from time)",
    ),
}
EXCHANGED = "from socket import socket\nfrom threading import Lock\nimport pymongo\nLOCK = Lock()"
THREE_WORKERS = {"WEB_CONCURRENCY": "3"}


def refused(running: Service) -> str:
    """Wait for gunicorn to give up, and return what it says."""
    status = running.process.wait(timeout=60)
    assert status != 0, running.log
    assert not running.is_alive()
    return running.log


@in_the_long_form
def test_serves_with_warnings_as_errors(databases: Databases) -> None:
    """Nothing warns, neither gevent of late patching nor anyone else."""
    with service(databases.environ, python=("-W", "error")) as greenline:
        assert greenline.get("/books").status == 200
        assert greenline.get("/states").status == 200
        assert greenline.stop() == 0
        assert "Warning" not in greenline.log
        assert "Traceback" not in greenline.log


def early(folder: Path, module: str) -> dict[str, Any]:
    """Return how a service is started whose gunicorn.conf.py imports *module*."""
    (folder / "early.py").write_text(module)
    config = folder / "early.conf.py"
    config.write_text(f"import early\n{(CHECKOUT / 'gunicorn.conf.py').read_text()}")
    return {"config": str(config), "more": {**THREE_WORKERS, "PYTHONPATH": str(folder)}}


def test_serves_with_what_the_worker_exchanges(databases: Databases, tmp_path: Path) -> None:
    """Names and locks from before the patching."""
    started = early(tmp_path, EXCHANGED)
    with service({**databases.environ, **started.pop("more")}, **started) as greenline:
        assert greenline.get("/states").status == 200


@pytest.mark.parametrize(("module", "culprit"), EARLY.values(), ids=EARLY)
def test_refuses_what_was_imported_before_patching(
    databases: Databases, tmp_path: Path, module: str, culprit: str
) -> None:
    """A gunicorn.conf.py that imports too early stops gunicorn, which names the module."""
    started = early(tmp_path, module)
    environ = {**databases.environ, **started.pop("more")}
    with service(environ, wait=False, **started) as greenline:
        log = refused(greenline)
    assert "imported before the standard library was patched" in log
    assert culprit in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--worker-class=sync"], id="sync"),
        pytest.param(["--worker-class=gthread"], id="gthread"),
        pytest.param(["--worker-class=sync", "--threads=4"], id="threads"),
        pytest.param(["--preload"], id="preload"),
    ],
)
def test_refuses_a_worker_that_is_not_green(databases: Databases, arguments: list[str]) -> None:
    """Another worker class, or an application loaded before the fork, is refused in one line."""
    with service({**databases.environ, **THREE_WORKERS}, *arguments, wait=False) as greenline:
        log = refused(greenline)
    assert "the standard library is not patched" in log
    assert "Traceback" not in log


def test_refuses_to_run_without_the_hook(databases: Databases, tmp_path: Path) -> None:
    """On gunicorn's own gevent worker, which hooks nothing, an entry that forgets it is refused."""
    source = (CHECKOUT / "app" / "wsgi.py").read_text()
    assert "    patch.hook_psycopg2()\n" in source
    (tmp_path / "unhooked.py").write_text(source.replace("    patch.hook_psycopg2()\n", ""))
    environ = {**databases.environ, **THREE_WORKERS, "PYTHONPATH": str(tmp_path)}
    with service(environ, "-k", "gevent", target="unhooked:app", wait=False) as greenline:
        log = refused(greenline)
    assert "psycopg2 has no wait callback" in log
    assert "Traceback" not in log


def test_the_arbiter_has_no_database_socket(databases: Databases) -> None:
    """The arbiter only listens; the workers, which have served, hold what is connected."""
    with service({**databases.environ, "WEB_CONCURRENCY": "2"}) as greenline:
        assert greenline.get("/books").status == 200
        assert greenline.get("/states").status == 200
        listening = listening_sockets()
        (ours,) = sockets(greenline.process.pid)
        assert ours in listening
        connected = set.union(*(sockets(pid) for pid in greenline.workers())) - listening
        assert len(connected) >= 2
