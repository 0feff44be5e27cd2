"""
What Flask itself costs a request: stock Flask, ours, and stock Flask's object when it is adopted,
also with a ``ProxyFix`` that it has captured before, called in turn without a server.

``python -m bench.flask_request`` prints microseconds for each call of ``wsgi_app``, the least of
several rounds, and the ratio of stock to adopted.
"""

import io
import sys
import time
from typing import Any

import flask
from werkzeug.middleware.proxy_fix import ProxyFix

from greenline.flask import Flask, adopt

ROUNDS = 9
CALLS = 1_000
# What is asked, and the path that asks for it.
CASES = {
    "a dict": "/",
    "a text": "/text",
    "a variable in the path": "/items/3",
    "a query string": "/query?name=x",
    "a URL built": "/url",
    "a session read": "/session",
    "before and after, jsonify": "/hooked/",
    "no such path": "/missing",
}


def application(cls: type[flask.Flask]) -> flask.Flask:
    """Return the same application made of *cls*."""
    app = cls("bench")
    app.secret_key = "key"  # noqa: S105
    app.add_url_rule("/", "index", lambda: {"status": "ok"})
    app.add_url_rule("/text", "text", lambda: "Hello, World!")
    app.add_url_rule("/items/<int:number>", "item", lambda number: {"id": number})
    app.add_url_rule("/query", "query", lambda: {"name": flask.request.args["name"]})
    app.add_url_rule("/url", "url", lambda: flask.url_for("item", number=3))
    app.add_url_rule("/session", "session", lambda: {"user": flask.session.get("user")})
    hooked = flask.Blueprint("hooked", __name__, url_prefix="/hooked")
    hooked.before_request(_before)
    hooked.after_request(_after)
    hooked.add_url_rule("/", "index", lambda: flask.jsonify(status="ok"))
    app.register_blueprint(hooked)
    return app


def _before() -> None:
    flask.g.request_id = flask.request.headers.get("X-Request-Id", "none")


def _after(response: flask.Response) -> flask.Response:
    response.headers["X-Request-Id"] = flask.g.request_id
    return response


def environ(target: str) -> dict[str, Any]:
    """Return a WSGI environ as gunicorn makes it."""
    path, _, query = target.partition("?")
    return {
        "REQUEST_METHOD": "GET", "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": query,
        "RAW_URI": target, "SERVER_PROTOCOL": "HTTP/1.1", "SERVER_SOFTWARE": "gunicorn",
        "REMOTE_ADDR": "127.0.0.1", "REMOTE_PORT": "40000", "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8000", "HTTP_HOST": "127.0.0.1:8000", "HTTP_ACCEPT": "*/*",
        "HTTP_USER_AGENT": "bench", "wsgi.version": (1, 0), "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(), "wsgi.errors": sys.stderr, "wsgi.multithread": True,
        "wsgi.multiprocess": False, "wsgi.run_once": False,
    }  # fmt: skip


def microseconds(app: flask.Flask, env: dict[str, Any]) -> float:
    """Return the time of one call, its body sent and closed."""
    started = time.perf_counter()
    for _ in range(CALLS):
        body: Any = app.wsgi_app(env.copy(), lambda status, headers, *_: None)
        for _chunk in body:
            pass
        if hasattr(body, "close"):
            body.close()
    return (time.perf_counter() - started) / CALLS * 1e6


def main() -> None:
    behind = application(flask.Flask)
    behind.wsgi_app = ProxyFix(behind.wsgi_app)  # type: ignore[method-assign]
    adopted = adopt(application(flask.Flask))
    apps = [application(flask.Flask), application(Flask), adopted, adopt(behind)]
    print(f"{'':28}{'stock us':>10}{'ours us':>10}{'adopted':>10}{'ProxyFix':>10}{'ratio':>8}")
    for name, target in CASES.items():
        env = environ(target)
        rounds = [[microseconds(app, env) for app in apps] for _ in range(ROUNDS)]
        least = [min(column) for column in zip(*rounds, strict=True)]
        columns = "".join(f"{each:10.1f}" for each in least)
        print(f"{name:28}{columns}{least[0] / least[2]:8.2f}")


if __name__ == "__main__":
    main()
