"""
Run tests of Flask or of an extension: run.py CHECKOUT WHOSE RESULT ARGUMENT..., in their folder.

WHOSE is ``stock`` for Flask as it is; ``patched`` for that in a process patched by gevent; ``ours``
for our class in place of Flask's; ``adopted`` for Flask's objects, adopted at their first use. A
process of its own: patching and the class come before any test imports Flask, and the checkout must
not be importable, as the tests have modules named ``app`` and ``tests``. ARGUMENTs are pytest's.
"""

# ruff: noqa: E402  (patching comes first)

import json
import sys
from pathlib import Path
from typing import Any

CHECKOUT, WHOSE, RESULT, *ARGUMENTS = sys.argv[1:]
sys.path[0] = CHECKOUT

if WHOSE != "stock":
    from greenline import patch
    from greenline.hub import coroutines

    patch.patch_all()
    assert coroutines  # imported here: later there is no way to it

import flask
import flask.app

adopted: set[str] = set()


def adopt_at_first_use(name: str) -> None:
    """Let Flask's method *name* adopt the application before it does what it does."""
    from greenline.flask import Flask, adopt

    stock = getattr(flask.Flask, name)
    ours = vars(Flask).get(name, stock)

    def first(app: Any, *args: Any, **kwargs: Any) -> Any:
        adopt(app)
        is_ours = isinstance(app, Flask)
        adopted.add(f"{'' if is_ours else 'not '}{type(app).__qualname__}")
        return (ours if is_ours else stock)(app, *args, **kwargs)

    setattr(flask.Flask, name, first)


if WHOSE == "ours":
    from greenline.flask import Flask

    flask.Flask = flask.app.Flask = Flask  # type: ignore[misc]
elif WHOSE == "adopted":
    from greenline.flask import adoption

    # The methods below are not Flask's own any more, which would be a reason not to adopt.
    adoption.replaced_method = lambda: ""
    for name in ("__call__", "app_context", "request_context", "test_cli_runner", "test_client"):
        adopt_at_first_use(name)

del sys.path[0]

import _pytest.compat
import _pytest.monkeypatch
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
pytest.main(["-q", "-p", "no:cacheprovider", "--tb=short", *ARGUMENTS], plugins=[recorder])
result = {
    "outcomes": recorder.outcomes,
    "applications": recorder.applications,
    "adopted": sorted(adopted),
}
Path(RESULT).write_text(json.dumps(result))
