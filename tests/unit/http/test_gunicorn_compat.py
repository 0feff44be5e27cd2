"""A gunicorn that is not as we know it is refused in one line."""

import os
import re
import subprocess
import tomllib
from types import SimpleNamespace

import pytest

from greenline.errors import ConfigError
from greenline.http import gunicorn_compat
from tests.helpers.support import CHECKOUT, run

REMOVED = "import gunicorn.http.message as message; del message.MAX_HEADERS\n"
OTHER = "import gunicorn.http.wsgi as wsgi; wsgi.create = lambda request, sock: None\n"
WRAPPED = (
    "import gunicorn.http.wsgi as wsgi\n"
    "inner = wsgi.create\n"
    "wsgi.create = lambda *args, **kwargs: inner(*args, **kwargs)\n"
)
IMPORT = "from greenline.worker import GreenWorker; print('imported')"


def imported(before: str) -> tuple[int, str]:
    """Return the status and the last output of a process that imports the worker after *before*."""
    done = run(["python", "-W", "ignore", "-c", before + IMPORT], {}, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        pytest.param(REMOVED, "cannot import name 'MAX_HEADERS'", id="a name is gone"),
        pytest.param(OTHER, "(request, sock)", id="other parameters"),
    ],
)
def test_an_unknown_gunicorn_is_refused_in_one_line(before: str, reason: str) -> None:
    """The line names the version, the reason and the versions that are supported."""
    status, output = imported(before)
    assert status == 1
    assert re.fullmatch(r"greenline: gunicorn [0-9.]+ is not supported \(.*\): install .*", output)
    assert reason in output
    assert gunicorn_compat.SUPPORTED in output


@pytest.mark.parametrize(
    "before",
    [
        pytest.param("", id="as it is"),
        pytest.param(WRAPPED, id="wrapped by a monitoring agent"),
    ],
)
def test_a_known_gunicorn_is_taken(before: str) -> None:
    """What may differ without harm does not stop the worker."""
    assert imported(before) == (0, "imported")


def test_the_supported_range_is_the_packages_own() -> None:
    """pip refuses what the check would refuse."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert f"gunicorn{gunicorn_compat.SUPPORTED}" in project["dependencies"]


def test_http2_is_refused_where_gunicorn_would_serve_it_without_our_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The line names the setting and the version that is needed; HTTP/1 alone is taken."""
    monkeypatch.setattr(gunicorn_compat, "VERSION", (26, 2))
    gunicorn_compat.check_settings(SimpleNamespace(http_protocols=["h1"]))
    gunicorn_compat.check_settings(SimpleNamespace())  # gunicorn 23 has no such setting
    with pytest.raises(ConfigError, match="http_protocols: HTTP/2 needs gunicorn 27"):
        gunicorn_compat.check_settings(SimpleNamespace(http_protocols=["h2", "h1"]))
    with pytest.raises(ConfigError, match="http2_cleartext: HTTP/2 needs gunicorn 27"):
        gunicorn_compat.check_settings(SimpleNamespace(http2_cleartext="upgrade"))


def test_an_older_gunicorn_is_refused_by_its_version() -> None:
    """Even if it has all the names."""
    status, output = imported("import gunicorn; gunicorn.version_info = (22, 0, 0)\n")
    assert (status, "(too old): install gunicorn" in output) == (1, True)


def test_the_list_of_signals_of_gunicorn_23_is_read_as_a_queue() -> None:
    """The worker asks both alike."""
    queue = gunicorn_compat.signal_queue(SimpleNamespace(SIG_QUEUE=[15]))
    assert (queue.empty(), queue.get_nowait(), queue.empty()) == (False, 15, True)


def test_a_worker_that_could_not_boot_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """gunicorn before 26.1 keeps it, and would start no other one; one that runs is kept."""
    monkeypatch.setattr(gunicorn_compat, "VERSION", (26, 0))
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    closed: list[str] = []
    worker = SimpleNamespace(tmp=SimpleNamespace(close=lambda: closed.append("tmp")))
    cfg = SimpleNamespace(child_exit=lambda server, worker: closed.append("child_exit"))
    arbiter = SimpleNamespace(WORKERS={ended.pid: worker, os.getpid(): worker}, cfg=cfg)
    gunicorn_compat.forget_dead_workers(arbiter)
    assert list(arbiter.WORKERS) == [os.getpid()]
    assert closed == ["tmp", "child_exit"]
