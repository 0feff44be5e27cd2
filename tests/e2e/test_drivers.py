"""The database drivers are the application's own: without them the runtime works."""

import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from tests.e2e.hosting import hosting
from tests.helpers.support import CHECKOUT, IS_LONG, environ

# Python imports it before everything else.
WITHOUT_DRIVERS = """
import sys
from importlib.machinery import PathFinder

class NoDrivers(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in ("psycopg2", "pymongo", "bson"):
            return None
        return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = NoDrivers
"""


@pytest.fixture
def without_drivers(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python that has no drivers."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_DRIVERS)
    return {"PYTHONPATH": str(tmp_path)}


def greenline(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run the console script."""
    return subprocess.run(
        [sys.executable, "-m", "greenline", *arguments],
        cwd=CHECKOUT, env=environ(more), capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_an_application_without_a_driver_is_hosted(
    without_drivers: dict[str, str], tmp_path: Path
) -> None:
    """The worker boots, and there is no callback to set."""
    more = {**without_drivers, "COUNTING": str(tmp_path / "requests")}
    with hosting("tests.e2e.counting:app", **more) as running:
        assert running.get("/count?1").status == 200
        assert "psycopg2" not in running.log
        assert "Traceback" not in running.log


def test_the_console_script_asks_for_a_driver_only_where_it_needs_one(
    without_drivers: dict[str, str],
) -> None:
    """A sum of what is supposed needs none, and a deployment is checked without one."""
    done = greenline("budget", "--max-connections", "100", **without_drivers)
    assert (done.returncode, done.stderr) == (0, "")
    done = greenline("budget", DATABASE_URL="postgresql://h/d", **without_drivers)
    assert done.returncode == 2
    needed = "DATABASE_URL: greenline.postgres needs psycopg2: pip install 'greenline[postgres]'"
    assert needed in done.stderr
    done = greenline("check-deploy", "--nginx", "deploy/nginx.conf", "--gunicorn",
                     "gunicorn.conf.py", DATABASE_URL="postgresql://h/d",
                     MONGODB_URI="mongodb://h/d", **without_drivers)  # fmt: skip
    assert "ModuleNotFoundError" not in done.stderr


def test_the_package_asks_for_no_driver() -> None:
    """Only its extras do."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    names = " ".join(project["dependencies"])
    assert "psycopg2" not in names
    assert "pymongo" not in names
    assert {"postgres", "mongo"} <= project["optional-dependencies"].keys()


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 installs it, from the index")
def test_an_install_leaves_the_applications_driver_alone(tmp_path: Path) -> None:
    """Beside psycopg2-binary no other psycopg2 is installed."""
    source, target = tmp_path / "source", tmp_path / "venv"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, source / name)
    shutil.copytree(CHECKOUT / "greenline", source / "greenline")
    venv.create(target, with_pip=True)
    pip = [str(target / "bin/pip"), "--quiet", "--disable-pip-version-check"]
    pinned = [line for line in (CHECKOUT / "requirements.txt").read_text().splitlines()
              if line.startswith("psycopg2-binary")]  # fmt: skip
    subprocess.run([*pip, "install", *pinned, str(source)], check=True)
    listed = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout
    assert [line for line in listed.splitlines() if line.startswith(("psycopg2", "pymongo"))] == (
        pinned
    )
    code = "import greenline.worker.worker, psycopg2; from greenline.patch import hook_psycopg2; "
    code += "hook_psycopg2(); print(psycopg2.extensions.get_wait_callback() is not None)"
    done = subprocess.run(
        [str(target / "bin/python"), "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
