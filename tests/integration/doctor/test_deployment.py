"""greenline.doctor.deployment: the checks of check-deploy, as findings of the doctor."""

from pathlib import Path

import pytest

from greenline.deploy.findings import Level
from greenline.doctor import deployment
from greenline.doctor.project import Project

GUNICORN = """
worker_class = "gthread"
worker_tmp_dir = "/dev/shm"
raw_env = ["REQUEST_TIMEOUT=10"]
keepalive = 5
graceful_timeout = 30
"""
NGINX = """
http {
    upstream shop { server 127.0.0.1:8000; keepalive 8; }
    server { location / { proxy_pass http://shop; } }
}
"""


def found(folder: Path, gunicorn: str, nginx: str = "") -> list[deployment.Finding]:
    (folder / "gunicorn.conf.py").write_text(gunicorn)
    if nginx:
        (folder / "deploy").mkdir()
        (folder / "deploy/nginx.conf").write_text(nginx)
    return list(deployment.findings(Project(folder)))


def test_without_a_configuration_the_environment_is_checked_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is said of gunicorn's defaults, nor of what is not set."""
    monkeypatch.delenv("REQUEST_TIMEOUT", raising=False)
    monkeypatch.delenv("GUNICORN_CMD_ARGS", raising=False)
    assert list(deployment.findings(Project(tmp_path))) == []
    monkeypatch.setenv("GUNICORN_CMD_ARGS", "--timeout 300")
    (each,) = deployment.findings(Project(tmp_path))
    assert each[1:4] == ("", 0, "GUNICORN_CMD_ARGS (timeout): timeout is 300 s [heartbeat]")
    monkeypatch.setenv("REQUEST_TIMEOUT", "soon")
    (each,) = deployment.findings(Project(tmp_path))
    assert (each.code.code, each.path) == ("GL307", "")
    assert "REQUEST_TIMEOUT" in each.what


def test_a_configuration_that_an_option_names(tmp_path: Path) -> None:
    """It is checked in place of gunicorn.conf.py; a missing one is named."""
    (tmp_path / "shop.py").write_text("workers = 0\nbind = 1 / 0\n")
    project = Project(tmp_path, configuration="shop.py")
    assert [each[1:4] for each in deployment.findings(project)] == [
        ("shop.py", 0, "ZeroDivisionError: division by zero")
    ]
    (each,) = deployment.findings(Project(tmp_path, configuration="absent.py"))
    assert (each.code.code, each.path) == ("GL307", "absent.py")
    assert "'absent.py' does not exist" in each.what


def test_a_good_one_has_none(tmp_path: Path) -> None:
    """The worker class is not checked: an application may come from any."""
    assert found(tmp_path, GUNICORN) == []


def test_without_nginx_gunicorn_is_checked_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its line; what is about the environment has none. What is not set is a remark."""
    monkeypatch.delenv("REQUEST_TIMEOUT", raising=False)
    (each,) = found(tmp_path, 'worker_tmp_dir = "/dev/shm"\n')
    assert each[1:4] == ("gunicorn.conf.py", 0, "REQUEST_TIMEOUT is not set [no-deadline]")
    assert (each.code.code, each.level) == ("GL306", Level.REMARK)
    assert each.code.why.startswith("Gunicorn's timeout is a heartbeat")
    assert each.code.fix == "Set REQUEST_TIMEOUT=30 in the environment of the service."


def test_nginx_and_gunicorn_are_checked_against_each_other(tmp_path: Path) -> None:
    """In the file of nginx, with its line."""
    everything = found(tmp_path, GUNICORN, NGINX)
    assert {each.code.code for each in everything} == {"GL306"}
    (each,) = (each for each in everything if "[keepalive-order]" in each.what)
    assert (each.path, each.line, each.level) == ("deploy/nginx.conf", 3, Level.ERROR)


def test_a_header_that_nginx_does_not_set_is_no_remark(tmp_path: Path) -> None:
    """It has check-deploy's level: the application believes the client's."""
    everything = found(tmp_path, GUNICORN, NGINX)
    headers = [each for each in everything if "X-Forwarded-" in each.what]
    assert headers
    assert all("is not set" in each.what for each in headers)
    assert all(each.level != Level.REMARK for each in headers)


def test_preload_app_is_found_by_its_value(tmp_path: Path) -> None:
    """At its line, with the code that the constant has."""
    (each,) = found(tmp_path, f"{GUNICORN}preload_app = bool(keepalive)\n")
    assert (each.code.code, each.path, each.line) == ("GL206", "gunicorn.conf.py", 7)


@pytest.mark.parametrize(
    ("gunicorn", "reason"),
    [
        ("import os\nos.environ['NO_SUCH']", "KeyError: 'NO_SUCH'"),
        ("import os\nos._exit(7)", "status 7"),
        ("import sys\nsys.stdin.read(1) or exit('no input')", "no input"),
    ],
    ids=["variable", "exit", "stdin"],
)
def test_one_that_cannot_be_checked(tmp_path: Path, gunicorn: str, reason: str) -> None:
    """One line says why."""
    (each,) = found(tmp_path, gunicorn)
    assert (each.code.code, each.path, each.what) == ("GL307", "gunicorn.conf.py", reason)


def test_one_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended at the limit."""
    monkeypatch.setattr(deployment, "LIMIT_S", 2.0)
    (each,) = found(tmp_path, "import time\ntime.sleep(1000)")
    assert (each.code.code, each.what) == ("GL307", "gunicorn.conf.py did not end in 2 s")
