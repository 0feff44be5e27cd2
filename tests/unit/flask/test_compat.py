"""On an unknown Flask greenline.flask serves as Flask does, with one warning."""

import tomllib

import pytest

from greenline.flask import compat
from tests.helpers.support import CHECKOUT, run

NAME_GONE = "import flask.globals; del flask.globals._cv_request\n"
# Flask 3.2 passes the context to these methods.
WITH_CONTEXT = (
    "import flask\n"
    "inner = flask.Flask.dispatch_request\n"
    "flask.Flask.dispatch_request = lambda self, ctx=None: inner(self)\n"
)
# A Werkzeug that calls the root of its matcher otherwise, and works.
WERKZEUG_NAME_GONE = """
import inspect
import werkzeug.routing.map, werkzeug.routing.matcher as matcher
text = inspect.getsource(matcher.StateMachineMatcher).replace("_root", "root")
exec("from __future__ import annotations\\n" + text, vars(matcher))
werkzeug.routing.map.StateMachineMatcher = matcher.StateMachineMatcher
"""
WERKZEUG_WITH_MORE = (
    "from werkzeug.routing import MapAdapter\n"
    "MapAdapter.__init__ = lambda self, map, *, query_args='', **more: None\n"
)
# Before Flask 3.1.3.
SESSION_IS_NO_PROPERTY = "from flask.ctx import RequestContext; RequestContext.session = None\n"
SERVE = """
import logging
logging.basicConfig(format="%(levelname)s %(message)s")
from greenline.flask import Flask, environ, json_response
app = Flask(__name__)

@app.get("/path/<name>")
async def path(name):
    body = b'"' + environ()["PATH_INFO"].encode() + b'"'
    return json_response(body, 201, [("X-Module", Flask.__module__)])

answer = app.test_client().get("/path/x")
print(answer.status, answer.json, answer.headers["X-Module"])
"""
IMPORT = SERVE.partition("app = ")[0] + "print('201 CREATED /path/x', Flask.__module__)"


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        pytest.param(WITH_CONTEXT, "Flask.dispatch_request(self, ctx)", id="other parameters"),
        pytest.param(NAME_GONE, "_cv_request", id="a name is gone"),
        pytest.param(SESSION_IS_NO_PROPERTY, "RequestContext.session", id="an older session"),
    ],
)
def test_an_unknown_flask_serves_with_one_warning(before: str, reason: str) -> None:
    """The warning names the reason and the supported versions."""
    serve = SERVE
    if before is NAME_GONE:  # without it this Flask cannot serve: only the import is tried
        serve = IMPORT
    done = run(["python", "-c", before + serve], {})
    assert done.stdout == "201 CREATED /path/x greenline.flask.plain\n"
    assert done.stderr.count("WARNING") == 1
    assert reason in done.stderr
    assert "Flask>=3.1.3,<3.2" in done.stderr


@pytest.mark.parametrize(
    ("before", "serve", "reason"),
    [
        pytest.param(WERKZEUG_NAME_GONE, SERVE, "has no attribute '_root'", id="a name is gone"),
        pytest.param(
            WERKZEUG_WITH_MORE, IMPORT, "MapAdapter.__init__(self, map, ", id="other parameters"
        ),
    ],
)
def test_an_unknown_werkzeug_serves_with_one_warning(before: str, serve: str, reason: str) -> None:
    """Its routes are matched by Werkzeug alone; the warning names the supported versions."""
    done = run(["python", "-c", before + serve], {})
    assert done.stdout == "201 CREATED /path/x greenline.flask.plain\n"
    assert done.stderr.count("WARNING") == 1
    assert reason in done.stderr
    assert f"Werkzeug{compat.WERKZEUG_SUPPORTED}" in done.stderr


def test_on_an_unknown_flask_nothing_is_adopted() -> None:
    """The application is returned as it is; the one warning is that of the import."""
    adopt = (
        "import logging, flask\n"
        "logging.basicConfig(format='%(levelname)s %(message)s')\n"
        "from greenline.flask import adopt, adopt_loaded\n"
        "app = flask.Flask('shop')\n"
        "assert adopt(adopt(app)) is app\n"
        "print(adopt_loaded(app), type(app))\n"
    )
    done = run(["python", "-c", WITH_CONTEXT + adopt], {})
    said = "adopted no Flask application, as the warning says <class 'flask.app.Flask'>\n"
    assert done.stdout == said
    assert done.stderr.count("WARNING") == 1


def test_this_flask_is_built_on() -> None:
    """No warning, and the fast application class."""
    done = run(["python", "-c", SERVE], {})
    assert (done.stdout, done.stderr) == ("201 CREATED /path/x greenline.flask.app\n", "")


def test_the_supported_range_is_the_extras_own() -> None:
    """pip refuses what would not be built on."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert f"Flask{compat.FLASK_SUPPORTED}" in project["optional-dependencies"]["flask"]
    assert f"Werkzeug{compat.WERKZEUG_SUPPORTED}" in project["optional-dependencies"]["flask"]
