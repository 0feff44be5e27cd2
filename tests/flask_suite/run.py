"""
Run Flask's tests: run.py CHECKOUT ours|stock RESULT, in a copy of the sdist.

A process of its own: Flask's class is replaced before any test imports it, and the checkout must
not be importable, as the tests have modules named ``app``.
"""

# ruff: noqa: E402  (patching comes first)

import json
import sys
from pathlib import Path
from typing import Any

CHECKOUT, WHOSE, RESULT = sys.argv[1:]
sys.path[0] = CHECKOUT

if WHOSE == "ours":
    from greenline import patch
    from greenline.hub import coroutines

    patch.patch_all()

    import flask
    import flask.app

    from greenline.flask import Flask

    assert coroutines  # imported here: later there is no way to it
    flask.Flask = flask.app.Flask = Flask  # type: ignore[misc]

del sys.path[0]

import _pytest.compat
import _pytest.monkeypatch
import flask
import pytest

# Flask's conftest.py takes it under the name that it had up to pytest 9.0.
_pytest.monkeypatch.notset = _pytest.compat.NOTSET  # type: ignore[attr-defined]


class Recorder:
    """Keeps each test's outcome, and counts the applications they made."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.applications = 0
        make = flask.Flask.__init__

        def counting(app: Any, *args: Any, **kwargs: Any) -> None:
            self.applications += 1
            make(app, *args, **kwargs)

        flask.Flask.__init__ = counting  # type: ignore[method-assign]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome


recorder = Recorder()
pytest.main(["-q", "-p", "no:cacheprovider", "--tb=short", "tests"], plugins=[recorder])
result = {"outcomes": recorder.outcomes, "applications": recorder.applications}
Path(RESULT).write_text(json.dumps(result))
