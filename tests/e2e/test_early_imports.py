"""Modules that gunicorn's configuration imports, before the worker is patched."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.early import THREADS
from tests.e2e.hosting import hosting

LOGGING = """
[loggers]
keys = root
[handlers]
keys = console
[formatters]
keys = own
[logger_root]
handlers = console
level = INFO
[handler_console]
class = StreamHandler
formatter = own
args = (sys.stderr,)
[formatter_own]
class = tests.e2e.early.Formatter
"""


def test_without_such_modules_nothing_is_said() -> None:
    """What greenline itself keeps per thread is none of them."""
    with hosting("tests.e2e.early:app") as running:
        answers = [running.get(f"/remember?{n}").json["found"] for n in range(3)]
        assert "imported by gunicorn's configuration" not in running.log
    assert answers == [[str(n)] * 2 for n in range(3)]


def test_their_thread_locals_belong_to_requests(tmp_path: Path) -> None:
    """A formatter of the application, and fifty requests at once; the log names the module."""
    conf = tmp_path / "logging.ini"
    conf.write_text(LOGGING)
    with hosting("tests.e2e.early:app", "--log-config", str(conf)) as running:
        with ThreadPoolExecutor(50) as clients:
            answers = list(clients.map(lambda n: running.get(f"/remember?{n}").json, range(50)))
        assert "tests.e2e.early: imported by gunicorn's" in running.log
    assert [answer["found"] for answer in answers] == [[str(n)] * 2 for n in range(50)]


@pytest.mark.parametrize("early", [[], ["--log-config", "logging.ini"], ["--preload"]])
def test_their_threads_end(tmp_path: Path, early: list[str]) -> None:
    """Threads of classes that were imported before or after the patching; a dead proxy is there."""
    options = [each.replace("logging.ini", str(tmp_path / "logging.ini")) for each in early]
    (tmp_path / "logging.ini").write_text(LOGGING)
    with hosting("tests.e2e.early:app", *options) as running:
        found = {kind: running.get(f"/join/{kind}").json["alive"] for kind in THREADS}
    assert found == {kind: [True, False] for kind in THREADS}
