"""``--reload``, as ``make dev`` uses it, on a copy of the code."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.support import CHECKOUT, Databases, Service, service, wait_until

CODE = ("app", "config", "greenline", "gunicorn.conf.py")
HEALTHZ = '{"status": "ok"}'


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code in a folder where it may be edited."""
    folder = tmp_path_factory.mktemp("copy")
    for name in CODE:
        source = CHECKOUT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    return folder


@pytest.fixture(scope="module")
def reloading(databases: Databases, copy: Path) -> Iterator[Service]:
    """One worker that reloads."""
    environ = {**databases.environ, "PYTHONPATH": str(copy)}
    with service(environ, "--workers", "1", "--reload", cwd=copy) as running:
        yield running


def status_of(running: Service) -> object:
    """Return what /healthz says; nothing while the worker changes."""
    try:
        answer = running.get("/healthz")
    except OSError:
        return None
    return answer.json["status"] if answer.status == 200 else answer.status


def test_code_and_sql_are_loaded_anew_and_an_error_is_waited_out(
    reloading: Service, copy: Path
) -> None:
    """A good edit is served, a broken one leaves the server waiting for the next."""
    ops, document = copy / "app/api/ops.py", copy / "app/store/sql/books/document.sql"
    good = ops.read_text()
    ops.write_text(good.replace(HEALTHZ, '{"status": "edited"}'))
    wait_until(lambda: status_of(reloading) == "edited", "the edited code")
    ops.write_text("def (")
    wait_until(lambda: status_of(reloading) == 500, "the error to be reported")
    assert reloading.process.poll() is None
    ops.write_text(good)
    wait_until(lambda: status_of(reloading) == "ok", "the mended code")
    wait_until(reloading.is_ready, "the databases")
    document.write_text(f"{document.read_text()} where false\n")
    wait_until(lambda: reloading.get("/books/1").status == 404, "the edited statement")
    assert "AttributeError" not in reloading.log
