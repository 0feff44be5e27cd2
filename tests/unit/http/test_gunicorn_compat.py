"""A gunicorn that is not as we know it is refused in one line."""

import re
import tomllib

import pytest

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
