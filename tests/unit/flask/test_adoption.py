"""Flask objects that an application has made are served as ours are, or are left with a reason."""

import io
import logging
from abc import ABC
from collections.abc import Callable
from typing import Any

import flask
import pytest
from flask.json.provider import DefaultJSONProvider
from flask.sessions import SecureCookieSessionInterface
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.routing import Map as WerkzeugMap

from greenline.flask import Flask, adopt
from greenline.flask.adoption import remainder
from greenline.flask.decisions import ADAPTER, REQUEST, SESSION, left_to_flask
from greenline.flask.json import JSONProvider
from greenline.flask.response import Body
from greenline.flask.routing import Map
from tests.helpers.support import run


def made(cls: type[flask.Flask] = flask.Flask, name: str = "shop", **arguments: Any) -> Any:
    """Return an application with a rule."""
    app = cls(name, **arguments)
    app.secret_key = "key"
    app.add_url_rule("/books/<int:number>", "book", lambda number: {"number": number})
    return app


def body(app: Any, path: str = "/books/7", method: str = "GET") -> Any:
    """Send a request, as a server would, and return the body as the server gets it."""
    environ = {
        "REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": "",
        "SERVER_NAME": "server", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "example.com", "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(),
        "wsgi.errors": io.StringIO(),
    }  # fmt: skip
    return app(environ, lambda *_: None)


class Own(flask.Flask):
    """A class of an application."""

    def dispatch_request(self) -> Any:
        return super().dispatch_request()


def test_the_class_is_ours() -> None:
    """The object itself is returned; its map and its JSON are ours as well."""
    app = made()
    assert adopt(app) is app
    assert type(app) is Flask
    assert (type(app.url_map), type(app.json)) == (Map, JSONProvider)
    assert adopt(app) is app
    assert b"".join(body(app)) == b'{"number":7}\n'


def test_a_class_of_both_has_the_name_of_the_applications() -> None:
    """And its methods first; all of its objects have the same one."""
    one, other = adopt(made(Own)), adopt(made(Own))
    cls: Any = type(one)
    assert cls is type(other)
    assert cls.__mro__[1:4] == (Own, Flask, flask.Flask)
    assert (cls.__name__, cls.__qualname__, cls.__module__) == ("Own", "Own", __name__)
    assert [*remainder(one)] == ["dispatch_request(): Own has its own"]


def test_settings_of_the_json_provider_stay() -> None:
    """Those that were set on the object of Flask's class."""
    app = made()
    app.json.sort_keys, app.json.ensure_ascii, app.json.mimetype = False, False, "text/json"
    adopt(app)
    response = app.json.response({"b": "é", "a": 1})
    assert response.get_data(as_text=True) == '{"b":"é","a":1}\n'
    assert response.mimetype == "text/json"


def test_a_function_that_was_set_on_the_json_provider_is_called() -> None:
    """As Flask would."""
    app = made()
    app.json.dumps = lambda value, **_: "its own"
    assert adopt(app).json.response({"a": 1}).get_data() == b"its own\n"


class OwnMap(WerkzeugMap):
    """A map of an application."""


class OwnProvider(DefaultJSONProvider):
    """A JSON provider of an application."""


def test_what_is_the_applications_own_is_left() -> None:
    """Its map and its JSON provider, with the reason."""
    app = made()
    app.url_map, app.json = OwnMap(), OwnProvider(app)
    app.add_url_rule("/books/<int:number>", "book")
    adopt(app)
    assert (type(app.url_map), type(app.json)) == (OwnMap, OwnProvider)
    assert b"".join(body(app)) == b'{"number":7}\n'
    left = "; ".join(remainder(app))
    assert "url_map: its class OwnMap is the application's own" in left
    assert "json: its class OwnProvider is the application's own" in left


class Meta(type):
    """A metaclass of an application."""


class WithMetaclass(flask.Flask, metaclass=Meta):
    """What its metaclass does with a subclass is not known."""


class Registering(flask.Flask):
    """Registers its subclasses."""

    def __init_subclass__(cls) -> None:
        raise AssertionError("a subclass")


class Setting(flask.Flask):
    """Does not say when an attribute is set."""

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (WithMetaclass, "its metaclass is Meta"),
        (Registering, "__init_subclass__"),
        (Setting, "__setattr__"),
    ],
    ids=lambda each: getattr(each, "__name__", "reason"),
)
def test_a_class_that_cannot_be_combined_is_left(
    cls: type[flask.Flask], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning that says why; the application serves as before."""
    app = made(cls)
    adopt(app)
    assert type(app) is cls
    assert type(app.url_map) is WerkzeugMap
    assert b"".join(body(app)) == b'{"number":7}\n'
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{cls.__name__} cannot be combined" in record.message
    assert reason in record.message


def test_an_abstract_class_and_one_with_slots_are_adopted() -> None:
    """Neither notices a subclass."""

    class Slots(flask.Flask):
        __slots__ = ("one",)

    class Abstract(flask.Flask, ABC):
        pass

    assert isinstance(adopt(made(Slots)), Flask)
    assert isinstance(adopt(made(Abstract)), Flask)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (flask.Flask, "full_dispatch_request"),
        (flask.ctx.RequestContext, "push"),
        (DefaultJSONProvider, "dumps"),
    ],
)
def test_a_method_that_something_has_replaced_is_a_reason(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A monitoring agent has, and ours would bypass what it put there."""
    stock = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return stock(*args, **kwargs)

    wrapped.__module__ = stock.__module__
    monkeypatch.setattr(owner, name, wrapped)
    assert type(adopt(made())) is flask.Flask
    assert f"{owner.__name__}.{name} is not Flask's own" in caplog.text


def test_a_wsgi_app_that_a_middleware_has_captured_sends_as_ours_does() -> None:
    """One body, no copies; what Werkzeug has to send, it sends."""
    app = made()
    app.wsgi_app = ProxyFix(app.wsgi_app)  # type: ignore[method-assign]
    assert type(body(app)) is not Body
    adopt(app)
    assert type(body(app)) is Body
    assert b"".join(body(app, method="HEAD")) == b""


def test_the_class_of_a_response_is_its_own_until_all_functions_were_called() -> None:
    """What is passed the response, a signal's receiver included, sees the application's class."""
    app, seen = adopt(made()), []

    def see(response: Any, **_: Any) -> Any:
        seen.append(type(response))
        return response

    app.after_request(see)
    with flask.request_finished.connected_to(lambda sender, response: see(response), app):
        body(app)
    assert seen == [flask.Response] * 2


def remote(app: Any) -> None:
    class Interface(SecureCookieSessionInterface):
        """A session interface of the application's own."""

    app.session_interface = Interface()


def closing(app: Any) -> None:
    class Closing(flask.Request):
        def close(self) -> None:
            super().close()

    app.request_class = Closing


def teardown(app: Any) -> None:
    app.teardown_request(lambda error: None)


# What is done to an application, and what each request makes for that reason.
CHANGES: dict[str, tuple[Callable[[Any], object], set[str], str]] = {
    "nothing": (lambda app: None, set(), ""),
    "TRUSTED_HOSTS": (
        lambda app: app.config.update(TRUSTED_HOSTS=["example.com"]),
        {ADAPTER, REQUEST},
        "TRUSTED_HOSTS is set",
    ),
    "host_matching": (
        lambda app: setattr(app.url_map, "host_matching", True),
        {ADAPTER, REQUEST},
        "host_matching",
    ),
    "subdomain_matching": (
        lambda app: setattr(app, "subdomain_matching", True),
        {ADAPTER, REQUEST},
        "subdomain_matching",
    ),
    "url_map": (
        lambda app: setattr(app, "url_map", OwnMap()) or app.add_url_rule("/books/7", "book"),
        {ADAPTER, REQUEST},
        "the URL map is a OwnMap",
    ),
    "create_url_adapter": (
        lambda app: setattr(app, "create_url_adapter", app.create_url_adapter),
        {ADAPTER, REQUEST},
        "create_url_adapter() is the application's own",
    ),
    "trusted_hosts": (
        lambda app: setattr(
            app, "request_class", type("R", (flask.Request,), {"trusted_hosts": ["example.com"]})
        ),
        {ADAPTER, REQUEST},
        "R has trusted_hosts",
    ),
    "request_class": (closing, {REQUEST}, "Closing has a close of its own"),
    "session_interface": (remote, {SESSION, REQUEST}, "its interface is a "),
    "teardown_request": (teardown, {REQUEST}, "there are functions of teardown_request"),
    "url_value_preprocessor": (
        lambda app: app.url_value_preprocessor(lambda endpoint, values: None),
        {REQUEST},
        "there are functions of url_value_preprocessor",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_said_to_be_made_for_each_request_is_made(change: str) -> None:
    """And nothing else, once the host is known; the reason is the change."""
    change_app, expected, reason = CHANGES[change]
    app = made(static_folder=None)
    contexts: list[Any] = []
    app.view_functions["book"] = lambda **_: "a book"
    app.teardown_appcontext(lambda error: None)
    change_app(app)
    adopt(app)
    pushed = app.request_context
    app.request_context = lambda environ: contexts.append(pushed(environ)) or contexts[-1]
    for _ in range(3):
        body(app).close()
    names = {ADAPTER: "url_adapter", REQUEST: "request", SESSION: "_session"}
    assert {step for step, name in names.items() if name in vars(contexts[-1])} == expected
    left = left_to_flask(app)
    assert set(left) <= expected
    # Flask's interface needs the request, too: one of the application's own is passed it.
    assert set(left) | ({REQUEST} if SESSION in left else set()) == expected
    assert reason in "".join(left.values())


# In a process of its own: it would adopt the applications of other tests.
OF_A_PROCESS = """
import flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.middleware.proxy_fix import ProxyFix
from greenline.flask import Flask, adopt_loaded
from greenline.flask.adoption import adopt_each

class Meta(type): pass
class Odd(flask.Flask, metaclass=Meta): pass
class Own(flask.Flask):
    def make_response(self, rv): return super().make_response(rv)

shop, admin, odd, ours = Own("shop"), flask.Flask("admin"), Odd("odd"), Flask("ours")
wsgi = DispatcherMiddleware(ProxyFix(shop), {"/admin": admin, "/odd": odd})
# A proxy with no object behind it, which raises an error when it is asked for its class.
proxy = flask.current_app
print(adopt_loaded(wsgi))
print(*[type(app).__name__ for app, _ in adopt_each(proxy)])
"""


def test_each_application_of_the_process_is_adopted() -> None:
    """Those behind a middleware as well; the line names them, and what is left with the reason."""
    line, classes = run(["python", "-c", OF_A_PROCESS], {}).stdout.splitlines()
    adopted, _, left = line.partition("; left to Flask: ")
    assert adopted == "adopted admin, ours, shop"
    assert left.split("; ") == [
        "odd: its class Odd cannot be combined with ours: its metaclass is Meta",
        "shop: make_response(): Own has its own",
    ]
    assert sorted(classes.split()) == ["Flask", "Flask", "Odd", "Own"]
