"""Applications, each made of a given class, with the requests that are sent to them."""

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import flask
from flask import (
    after_this_request,
    g,
    jsonify,
    request,
    session,
    stream_with_context,
    url_for,
)
from flask.sessions import SecureCookieSessionInterface
from markupsafe import Markup
from werkzeug.exceptions import Conflict, HTTPException, NotFound
from werkzeug.routing import BaseConverter, Map, Rule

Log = list[Any]


@dataclass
class Ask:
    """One request; *cookies* are those that the answers before it have set."""

    path: str = "/"
    method: str = "GET"
    host: str | None = "example.com"
    environ: dict[str, Any] = field(default_factory=dict)
    first: Callable[[Any], Any] | None = None  # Something that is done to the application before.


Case = tuple[Any, list[Ask]]
CASES: dict[str, Callable[[type[flask.Flask], Log], Case]] = {}


def case(make: Callable[[type[flask.Flask], Log], Case]) -> Callable[..., Case]:
    CASES[make.__name__] = make
    return make


def view(app: Any, path: str, result: Any, **options: Any) -> None:
    """Answer *path* with *result*, or with what it returns."""
    name = path.strip("/").replace("/", "_") or "index"
    answer = result if callable(result) and not isinstance(result, type) else lambda **_: result
    app.add_url_rule(path, name, answer, **options)


@case
def values(cls: type[flask.Flask], log: Log) -> Case:
    """Whatever a view may return."""
    app = cls("values")
    moment = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
    results: dict[str, Any] = {
        "dict": {"b": 1, "a": [True, None, 1.5, "x"]},
        "list": [{"z": 1, "y": 2}],
        "tuple": (1, 2),
        "unicode": {"é": "\u2028\x7f<&>\ud83d\ude00"},
        "delete": {"a": "\x7f"},
        "dates": {"at": moment, "on": date(2020, 1, 2)},
        "types": {"id": UUID(int=1), "price": Decimal("1.50"), "html": Markup("<b>")},
        "keys": {2: "b", 10: "a"},
        "mixed": {2: "b", "a": 1},
        "nan": {"a": float("nan"), "b": None},
        "infinite": [float("inf"), float("-inf")],
        "set": {1, 2},
        "text": "Grüße",
        "empty": "",
        "bytes": b"\xff\x00",
        "status": ("gone", 410),
        "headers": ({"a": 1}, {"X-A": "1"}),
        "both": ([1], "299 Fine", [("X-A", "1"), ("X-A", "2")]),
        "nocontent": ("", 204),
        "notmodified": ("", 304),
        "wrong": (1, 2, 3, 4),
        "nothing": None,
        "number": 3,
        "response": lambda: flask.Response("x", mimetype="text/csv"),
        "made": lambda: flask.make_response({"a": 1}, 201),
        "error": lambda: Conflict("no"),
        "redirect": lambda: flask.redirect("/text"),
        "location": lambda: ("", 201, {"Location": "/ü"}),
        "generator": lambda: (part for part in ("a", "b")),
        "wsgi": lambda: lambda environ, start: (start("200 OK", [("X", "1")]), [b"w"])[1],
        "file": lambda: flask.send_file(io.BytesIO(b"file"), mimetype="text/plain"),
        "args": lambda: {"args": request.args, "a": request.args["a"]},
        "jsonify": lambda: jsonify(b=1, a=2),
        "jsonify_args": lambda: jsonify(1, "two"),
        "jsonify_none": lambda: jsonify(),
        "bad_key": lambda: request.args["missing"],
    }
    for name, result in results.items():
        view(app, f"/{name}", result)
    asks = [Ask(f"/{name}") for name in results]
    asks += [Ask(f"/{name}", "HEAD") for name in ("dict", "text", "generator")]
    asks += [Ask("/args", environ={"QUERY_STRING": "a=1&a=2&b=%C3%A9"})]
    asks += [Ask("/dict", first=lambda app: setattr(app.json, "sort_keys", False))]
    asks += [Ask("/unicode", first=lambda app: setattr(app.json, "ensure_ascii", False))]
    asks += [Ask("/dict", first=lambda app: setattr(app.json, "compact", False))]
    asks += [Ask("/dict", first=lambda app: setattr(app.json, "mimetype", "application/x"))]
    return app, asks


@case
def routes(cls: type[flask.Flask], log: Log) -> Case:
    """What the map decides: slashes, methods, defaults, redirects, aliases, odd paths."""
    app = cls("routes", static_folder=str(Path(__file__).parent))

    class Even(BaseConverter):
        def to_python(self, value: str) -> int:
            log.append(("converter", value, request.path))
            if int(value) % 2:
                raise Conflict
            return int(value)

    app.url_map.converters["even"] = Even

    def tell(**arguments: Any) -> dict[str, Any]:
        matched = {"endpoint": request.endpoint, "rule": str(request.url_rule), "args": arguments}
        return {**matched, "view_args": request.view_args, "path": request.path}

    def teller(app: Any, rule: str, endpoint: str, **options: Any) -> None:
        app.add_url_rule(rule, endpoint, tell, **options)

    teller(app, "/", "index", methods=["GET", "POST"])
    teller(app, "/slash/", "slash")
    teller(app, "/leaf", "leaf", strict_slashes=False)
    teller(app, "/both", "both_get")
    teller(app, "/both", "both_post", methods=["POST"])
    teller(app, "/pages/", "pages", defaults={"page": 1})
    teller(app, "/pages/<int:page>", "pages")
    teller(app, "/grüße", "unicode")
    teller(app, "/even/<even:number>", "even")
    teller(app, "/old", "old", redirect_to="/leaf")
    teller(app, "/alias", "leaf", alias=True)
    teller(app, "/socket", "socket", websocket=True)
    teller(app, "/any/<path:rest>", "any")
    teller(app, "/no-options", "no_options", provide_automatic_options=False)
    app.url_map.add(Rule("/all-methods", endpoint="index"))
    paths = [
        "/", "", "//", "/slash", "/slash/", "/leaf", "/leaf/", "/both", "/pages/", "/pages/1",
        "/pages/2", "/even/4", "/even/3", "/even/x", "/old", "/alias", "/socket", "/any/a//b",
        "/all-methods", "/static/flask_cases.py", "/static/no", "/missing", "//leaf", "/any//",
        "/gr\xc3\xbc\xc3\x9fe", "/gr\xfc", "/no-options",
    ]  # fmt: skip
    methods = ("GET", "POST", "HEAD", "OPTIONS", "get", "options", "PUT", "BREW")
    asks = [Ask(path, method) for path in paths for method in methods]
    upgrade = {"HTTP_CONNECTION": "Upgrade", "HTTP_UPGRADE": "websocket"}
    asks += [Ask(path, environ=upgrade) for path in ("/socket", "/")]
    late = Rule("/late", endpoint="index", methods=["GET"])
    asks += [Ask("/late"), Ask("/late", first=lambda app: app.url_map.add(late)), Ask("/late")]

    def target(adapter: Any) -> str:
        log.append(("target", adapter.server_name))
        return "/elsewhere"

    away = Rule("/away", endpoint="index", redirect_to=target)
    asks += [Ask("/away", first=lambda app: app.url_map.add(away)), Ask("/"), Ask("/pages/2")]
    return app, asks


@case
def hooks(cls: type[flask.Flask], log: Log) -> Case:
    """Functions before, after and at the end, on the application and on nested blueprints."""
    app = cls("hooks")
    outer = flask.Blueprint("outer", __name__, url_prefix="/outer")
    inner = flask.Blueprint("inner", __name__, url_prefix="/inner")
    for name, scaffold in (("app", app), ("outer", outer), ("inner", inner)):
        _hook(name, scaffold, log)

    @app.teardown_appcontext
    def teardown_appcontext(error: Any) -> None:
        log.append(("appcontext", repr(error)))

    @app.before_request
    def stop() -> Any:
        return {"stopped": True} if "stop" in request.args else None

    @app.get("/after")
    def after() -> str:
        @after_this_request
        def add(response: Any) -> Any:
            response.headers["X-This"] = request.path
            return response

        return "after"

    @app.get("/crash")
    def crash() -> None:
        raise KeyError("crash")

    view(inner, "/late", "late")
    outer.register_blueprint(inner)
    app.register_blueprint(outer)

    def register_late(app: Any) -> None:
        app.before_request_funcs[None].append(lambda: log.append("late before"))
        app.after_request_funcs[None].append(lambda r: log.append("late after") or r)
        app.teardown_request_funcs[None].append(lambda e: log.append("late teardown"))
        app.view_functions["index"] = lambda **_: "another view"

    paths = ["/", "/outer/", "/outer/inner/", "/outer/inner/late", "/after", "/missing", "/crash"]
    asks = [Ask(path) for path in paths]
    asks += [Ask(f"{path}error") for path in ("/", "/outer/", "/outer/inner/")]
    asks += [Ask(environ={"QUERY_STRING": "stop"}), Ask("/", first=register_late), Ask("/after")]
    return app, asks


def _hook(name: str, scaffold: Any, log: Log) -> None:
    def index(**_: Any) -> dict[str, Any]:
        return {"g": g.names, "blueprints": request.blueprints}

    def fail(**_: Any) -> Any:
        raise ValueError(name)

    def before() -> None:
        g.names = [*g.get("names", []), name]

    def handle(error: ValueError) -> Any:
        log.append(("handler", name))
        return {"failed": str(error)}, 500

    def after(response: Any) -> Any:
        log.append(("after", name, response.status))
        return response

    view(scaffold, "/", index)
    scaffold.add_url_rule("/error", "fail", fail)
    scaffold.before_request(before)
    scaffold.after_request(after)
    scaffold.teardown_request(lambda error: log.append(("teardown", name, repr(error))))
    scaffold.url_value_preprocessor(lambda endpoint, args: log.append((name, endpoint, args)))
    scaffold.register_error_handler(ValueError, handle)


@case
def sessions(cls: type[flask.Flask], log: Log) -> Case:
    """Cookies: none, new, permanent, kept, cleared, forged; and without a key."""
    app = cls("sessions")
    app.secret_key = "key"
    app.permanent_session_lifetime = timedelta(days=9_000)
    app.session_interface = _Interface(log)
    _session_views(app)
    asks = [Ask("/plain"), Ask("/read"), Ask("/set"), Ask("/plain"), Ask("/read")]
    asks += [Ask("/permanent"), Ask("/plain"), Ask("/read"), Ask("/copy"), Ask("/clear")]
    asks += [Ask("/plain", environ={"HTTP_COOKIE": "session=forged"})]
    asks += [Ask("/set", first=lambda app: setattr(app, "secret_key", None)), Ask("/read")]
    return app, asks


@case
def default_sessions(cls: type[flask.Flask], log: Log) -> Case:
    """The same with the session interface that is opened when somebody asks."""
    app, asks = sessions(cls, log)
    app.session_interface = SecureCookieSessionInterface()
    return app, asks


class _Interface(SecureCookieSessionInterface):
    """An interface of the application's own."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def open_session(self, app: Any, request: Any) -> Any:
        self._log.append(("opened", request.url_rule))
        return super().open_session(app, request)

    def get_cookie_name(self, app: Any) -> str:
        return "own_" + super().get_cookie_name(app)


@case
def broken_sessions(cls: type[flask.Flask], log: Log) -> Case:
    """A session interface that cannot open a session."""
    app = cls("sessions")

    class Broken(SecureCookieSessionInterface):
        def open_session(self, app: Any, request: Any) -> Any:
            log.append("open")
            raise OSError("no sessions today")

        def save_session(self, app: Any, session: Any, response: Any) -> None:
            log.append(("save", session))

    app.session_interface = Broken()
    view(app, "/", "index")
    return app, [Ask(), Ask(), Ask("/missing")]


def _session_views(app: Any) -> None:
    def change(**changes: Any) -> dict[str, Any]:
        session.update(changes)
        return dict(session)

    def permanent() -> str:
        session.permanent = True
        return "permanent"

    view(app, "/plain", "untouched")
    view(app, "/read", lambda: dict(session))
    view(app, "/set", lambda: change(a=1))
    view(app, "/permanent", permanent)
    view(app, "/clear", lambda: str(session.clear()))
    view(app, "/copy", lambda: flask.copy_current_request_context(lambda: dict(session))())


@case
def hosts(cls: type[flask.Flask], log: Log) -> Case:
    """Hosts that are good, bad and unknown, and changes of what is trusted."""
    app = cls("hosts")
    view(app, "/", lambda: {"host": request.host, "url": request.url, "to": url_for("item", n=1)})
    app.add_url_rule("/item/<int:n>", "item", lambda n: url_for("index", _external=True))
    names = [
        "example.com",
        "other.com",
        "a..b",
        "x" * 64,
        "\x8a",
        "EXAMPLE.com:80",
        "[::1]:8000",
        "",
        None,
    ]
    asks = [Ask("/", host=name) for name in names] * 2
    asks += [Ask("/item/1"), Ask("/item/1", environ={"SCRIPT_NAME": "/mounted"})]
    trust = {"TRUSTED_HOSTS": ["example.com"]}
    asks += [Ask(first=lambda app: app.config.update(trust)), Ask(host="other.com"), Ask("/item/1")]
    asks += [Ask(first=lambda app: app.config.update(TRUSTED_HOSTS=None, SERVER_NAME="a.b:81"))]
    asks += [Ask("/item/1"), Ask("/item/1", host="c.d"), Ask(environ={"wsgi.url_scheme": "https"})]
    return app, asks


@case
def subdomains(cls: type[flask.Flask], log: Log) -> Case:
    """Rules of subdomains, matched by them."""
    app = cls("subdomains", subdomain_matching=True)
    app.config["SERVER_NAME"] = "example.com"
    app.add_url_rule("/", "www", lambda: url_for("user", name="x"))
    app.add_url_rule("/", "user", lambda name: name, subdomain="<name>")
    return app, [Ask(host=host) for host in ("example.com", "me.example.com") * 2]


@case
def host_matching(cls: type[flask.Flask], log: Log) -> Case:
    """Rules of hosts, also when that was decided late."""
    app = cls("hosts", static_folder=None)
    app.add_url_rule("/", "any", lambda: "any")
    rule = Rule("/", endpoint="any", host="<name>.example.com")
    app.view_functions["any"] = lambda **arguments: arguments

    def switch(app: Any) -> None:
        app.url_map.host_matching = True
        app.url_map.add(rule)

    return app, [Ask(), Ask(host="a.example.com", first=switch), Ask(host="b.com"), Ask()]


@case
def own_class(cls: type[flask.Flask], log: Log) -> Case:
    """A class with attributes and classes of its own, behind a middleware from the start."""

    class OwnMap(Map):
        def add(self, rule: Any) -> None:
            log.append("add")
            super().add(rule)

    class Provider(flask.json.provider.DefaultJSONProvider):
        sort_keys = False

        def dumps(self, value: Any, **options: Any) -> str:
            return super().dumps({"own": value}, **options)

    class OwnRequest(flask.Request):
        @property
        def marked(self) -> str:
            return self.path

    class OwnResponse(flask.Response):
        default_mimetype = "text/own"

    class Globals(flask.ctx._AppCtxGlobals):
        pass

    class Own(cls):  # type: ignore[misc, valid-type]
        url_map_class, json_provider_class = OwnMap, Provider
        request_class, response_class, app_ctx_globals_class = OwnRequest, OwnResponse, Globals
        decisions = "its own"

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            log.append("made")
            super().__init__(*args, **kwargs)

        def make_response(self, rv: Any) -> Any:
            return super().make_response(self.decisions if rv is None else rv)

    app = Own("own")
    app.wsgi_app = _Middleware(app.wsgi_app)
    view(app, "/", None)
    view(app, "/dict", lambda: {"b": type(g).__name__, "a": request.marked})
    view(app, "/items/<int:n>", {"a": 1})
    view(app, "/made", lambda: flask.Response("made"))
    paths = ["/", "/dict", "/items/1", "/made", "/missing", "/static/"] * 2
    return app, [Ask(path) for path in paths]


@case
def classes(cls: type[flask.Flask], log: Log) -> Case:
    """Classes of the application's own, some of which come late."""
    app = cls("classes")

    class OwnRequest(flask.Request):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            log.append("request")
            super().__init__(*args, **kwargs)

        def close(self) -> None:
            log.append("close")
            super().close()

    class OwnResponse(flask.Response):
        default_mimetype = "text/own"

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            log.append(("response", type(args[0]).__name__))
            super().__init__(*args, **kwargs)

    class Sent(flask.Response):
        def get_wsgi_headers(self, environ: Any) -> Any:
            headers = super().get_wsgi_headers(environ)
            headers["X-Sent"] = "1"
            return headers

    class OwnMap(Map):
        def bind_to_environ(self, *args: Any, **kwargs: Any) -> Any:
            log.append("bind")
            return super().bind_to_environ(*args, **kwargs)

    class Provider(flask.json.provider.DefaultJSONProvider):
        def dumps(self, value: Any, **options: Any) -> str:
            return super().dumps({"own": value}, **options)

    def own_map(app: Any) -> None:
        app.url_map = OwnMap([Rule("/", endpoint="index"), Rule("/text", endpoint="text")])

    view(app, "/", {"a": 1})
    view(app, "/text", "text")
    both = [Ask("/"), Ask("/text")]
    asks = [*both]
    changes = [
        lambda app: setattr(app, "request_class", OwnRequest),
        lambda app: setattr(app, "response_class", OwnResponse),
        lambda app: setattr(app, "response_class", Sent),
        own_map,
        lambda app: setattr(app, "json", Provider(app)),
        lambda app: setattr(app, "wsgi_app", _Middleware(app.wsgi_app)),
        lambda app: setattr(app, "debug", True),
    ]
    for change in changes:
        asks += [Ask("/missing", first=change), *both]
    return app, asks


class _Middleware:
    """WSGI middleware that adds a header."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def __call__(self, environ: Any, start_response: Any) -> Any:
        def start(status: str, headers: Any, *more: Any) -> Any:
            return start_response(status, [*headers, ("X-Middleware", "1")], *more)

        return self._app(environ, start)


@case
def kept_response(cls: type[flask.Flask], log: Log) -> Case:
    """One response object for all requests, and what later code sees of responses."""
    app = cls("kept")
    kept = flask.Response("kept")
    view(app, "/", lambda: kept)
    view(app, "/copied", lambda: copy.copy(kept))
    view(app, "/pickled", lambda: pickle.loads(pickle.dumps(kept)))  # noqa: S301

    @app.get("/closed")
    def closed() -> flask.Response:
        response = flask.make_response("closed")
        response.call_on_close(lambda: log.append(("closed", repr(response))))
        return response

    view(app, "/forced", lambda: flask.Response.force_type(kept))

    @app.after_request
    def after(response: Any) -> Any:
        log.append((type(response).__name__, isinstance(response, app.response_class)))
        return response

    return app, [Ask(path) for path in ("/", "/copied", "/pickled", "/closed", "/forced", "/") * 2]


@case
def streams(cls: type[flask.Flask], log: Log) -> Case:
    """A body that is made while it is sent, with the request at hand."""
    app = cls("streams")
    app.secret_key = "key"

    @app.get("/<name>")
    def stream(name: str) -> Any:
        session["name"] = name

        @stream_with_context
        def parts() -> Any:
            yield request.path
            yield url_for("stream", name=session["name"])
            log.append("streamed")

        response = flask.Response(parts())
        response.call_on_close(lambda: log.append("closed"))
        return response

    @app.get("/close")
    def close() -> Any:
        response = flask.make_response("text")
        response.call_on_close(lambda: log.append("closed"))
        g.response = response
        return response

    @app.teardown_request
    def teardown(error: Any) -> None:
        log.append("teardown")
        if "response" in g:
            g.response.call_on_close(lambda: log.append("closed late"))

    return app, [Ask("/a"), Ask("/close"), Ask("/b", "HEAD")]


class Gone(Conflict):
    """An error with a page of its own."""

    def get_response(self, *args: Any, **kwargs: Any) -> Any:
        return flask.Response("gone", 410)


class InBytes(Conflict):
    """One whose body is encoded already."""

    def get_body(self, environ: Any = None, scope: Any = None) -> Any:
        return b"<p>conflict</p>"


class Typeless(Conflict):
    """One whose headers lack the type of the body, and have its length."""

    def get_headers(self, environ: Any = None, scope: Any = None) -> list[tuple[str, str]]:
        return [("X-Error", "1"), ("Content-Length", str(len(self.get_body())))]


class Described(Conflict):
    """One whose page has the path of the request."""

    def get_description(self, environ: Any = None, scope: Any = None) -> str:
        return f"<p>{environ['PATH_INFO']}</p>"


@case
def pages(cls: type[flask.Flask], log: Log) -> Case:
    """Pages of errors, and answers without a body, that only the client sees."""
    app = cls("pages")

    def cached() -> flask.Response:
        response = flask.Response("cached", 304, {"Expires": "0", "Content-Language": "de"})
        response.set_etag("v1")
        response.set_cookie("a", "b")
        response.call_on_close(lambda: log.append("closed"))
        return response

    def cached_elsewhere() -> flask.Response:
        return flask.Response("", 304, {"Content-Location": "/\u00e9", "Content-Encoding": "x"})

    def raising(error: Exception) -> Callable[..., Any]:
        def fail() -> None:
            raise error

        return fail

    def seen() -> None:
        after_this_request(lambda response: log.append(response.is_streamed) or response)
        flask.abort(404)

    view(app, "/", "index")
    view(app, "/cached", cached)
    view(app, "/elsewhere", cached_elsewhere)
    view(app, "/conflict", raising(Conflict("<no>")))
    view(app, "/gone", raising(Gone()))
    view(app, "/bytes", raising(InBytes()))
    view(app, "/typeless", raising(Typeless()))
    view(app, "/given", raising(Conflict(response=flask.Response("given", 200))))
    view(app, "/seen", seen)
    other = NotFound()
    other.code = 410
    view(app, "/other", raising(other))
    view(app, "/described", raising(Described()))
    view(app, "/described/again", raising(Described()))
    view(app, "/worded", raising(NotFound("\u00e9 & <b>")))
    for code in (400, 413, 418, 451, 503):
        view(app, f"/{code}", lambda code=code: flask.abort(code))
    paths = ["/missing", "/cached", "/elsewhere", "/conflict", "/gone", "/given", "/seen"]
    paths += [
        "/other",
        "/described",
        "/worded",
        "/described/again",
        "/missing/too",
        "/bytes/",
        "//bytes",
    ]
    paths += ["/bytes", "/typeless", "/400", "/413", "/418", "/451", "/503"]
    asks = [Ask(path) for path in paths]
    return app, [*asks, Ask(method="POST"), *(Ask(each.path, "HEAD") for each in asks[:6])]


@case
def pages_of_handlers(cls: type[flask.Flask], log: Log) -> Case:
    """Of the application and of a blueprint, for a code, a class, or all errors."""
    app = cls("handled")
    shop = flask.Blueprint("shop", __name__, url_prefix="/shop")
    shop.register_error_handler(404, lambda error: ("no such book", 404))
    view(shop, "/gone", lambda: flask.abort(404))
    view(app, "/gone", lambda: flask.abort(404))
    view(app, "/conflict", lambda: flask.abort(409))
    app.register_error_handler(Conflict, lambda error: (f"handled {error.code}", 409))
    app.register_blueprint(shop)
    paths = ["/shop/gone", "/shop/missing", "/gone", "/missing", "/conflict"]
    return app, [Ask(path) for path in paths]


@case
def pages_of_a_handler_that_comes_late(cls: type[flask.Flask], log: Log) -> Case:
    """A handler of all errors, registered while requests are served, as extensions may."""
    app = cls("late")

    def register() -> str:
        app.error_handler_spec[None][None][HTTPException] = lambda error: f"all: {error.code}"
        return "registered"

    view(app, "/register", register)
    return app, [Ask("/missing"), Ask("/register"), Ask("/missing"), Ask("/", "POST")]


@case
def pages_that_a_subclass_sees(cls: type[flask.Flask], log: Log) -> Case:
    """Where it makes the responses."""

    class Seeing(cls):  # type: ignore[misc, valid-type]
        def make_response(self, rv: Any) -> Any:
            log.append(type(rv).__name__)
            return super().make_response(rv)

    app = Seeing("seen")
    app.register_error_handler(409, lambda error: error)
    view(app, "/conflict", lambda: flask.abort(409))
    return app, [Ask("/missing"), Ask("/conflict"), Ask("/missing")]


@case
def pages_that_a_method_sees(cls: type[flask.Flask], log: Log) -> Case:
    """One that the object has in place of Flask's."""
    app = cls("seen")

    def process(response: Any) -> Any:
        log.append(response.is_streamed)
        return response

    app.process_response = process
    return app, 4 * [Ask("/missing")]


@case
def pages_that_a_function_sees(cls: type[flask.Flask], log: Log) -> Case:
    """After each request."""
    app = cls("seen")
    app.after_request(lambda response: log.append(response.is_streamed) or response)
    return app, [Ask("/missing"), Ask("/missing", "HEAD"), Ask("/missing"), Ask("/missing", "HEAD")]


@case
def pages_that_a_receiver_sees(cls: type[flask.Flask], log: Log) -> Case:
    """Of the signal at the end of a request."""
    app = cls("seen")

    def receive(sender: Any, response: Any, **_: Any) -> None:
        log.append(response.is_streamed)

    flask.request_finished.connect(receive, app, weak=False)
    return app, 4 * [Ask("/missing")]
