"""Flask applications behind middlewares, one of them made late, which say what serves them."""

from typing import Any

import flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.middleware.proxy_fix import ProxyFix


class Meta(type):
    """A metaclass of the application, which may do anything with a subclass."""


class Odd(flask.Flask, metaclass=Meta):
    """An application class that is left as it is."""


class Shop(flask.Flask):
    """An application class."""


def made(cls: type[flask.Flask], name: str) -> flask.Flask:
    """Return an application that says which class serves a request."""
    app = cls(name)
    app.add_url_rule("/", "index", index)
    app.add_url_rule("/late", "late", late)
    app.wsgi_app = ProxyFix(app.wsgi_app)  # type: ignore[method-assign]
    return app


def index() -> dict[str, Any]:
    """Name the modules of the classes of the application that serves this request."""
    cls = type(flask.current_app._get_current_object())  # type: ignore[attr-defined]
    return {"modules": [each.__module__ for each in cls.__mro__]}


def late() -> Any:
    """Answer by an application that is made now."""
    response: Any = made(flask.Flask, "late").test_client().get("/").json
    return response


app = DispatcherMiddleware(
    made(Shop, "shop"), {"/admin": made(flask.Flask, "admin"), "/odd": made(Odd, "odd")}
)
