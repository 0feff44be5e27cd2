"""Our application class, and an adopted one, do what Flask's does, call by call."""

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from io import BytesIO, StringIO
from typing import Any
from wsgiref.validate import validator

import flask
import pytest
from flask import signals

from greenline.flask import Flask, adopt
from tests.contract.flask_cases import CASES, Ask, Case, Log, hooks

# What a subclass of Flask may override, and what is called while a request is answered.
HOOKS = (
    "app_context", "create_url_adapter", "dispatch_request", "do_teardown_appcontext",
    "do_teardown_request", "ensure_sync", "finalize_request", "full_dispatch_request",
    "handle_exception", "handle_http_exception", "handle_user_exception", "log_exception",
    "make_response", "preprocess_request", "process_response", "raise_routing_exception",
    "request_context", "should_ignore_error", "wsgi_app",
)  # fmt: skip
SIGNALS = (
    "appcontext_popped", "appcontext_pushed", "appcontext_tearing_down", "got_request_exception",
    "request_finished", "request_started", "request_tearing_down",
)  # fmt: skip
# The class of the applications, and before which request they are adopted.
WAYS: dict[str | None, tuple[type[flask.Flask], int | None]] = {
    None: (flask.Flask, None),
    "drop-in": (Flask, None),
    "adopted": (flask.Flask, 0),
    "adopted while it serves": (flask.Flask, 2),
}
by_all_ways = pytest.mark.parametrize("way", list(filter(None, WAYS)))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Keep what the applications log about their errors out of the output."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def answer(app: Any, ask: Ask, jar: dict[str, str]) -> dict[str, Any]:
    """Send one request, as a server would, and return all that a server sees of it."""
    if ask.first is not None:
        ask.first(app)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": ask.method, "SCRIPT_NAME": "", "PATH_INFO": ask.path, "QUERY_STRING": "",
        "SERVER_NAME": "server", "SERVER_PORT": "8000", "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0), "wsgi.url_scheme": "http", "wsgi.input": BytesIO(),
        "wsgi.errors": StringIO(), "wsgi.multithread": True, "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }  # fmt: skip
    if ask.host is not None:
        environ["HTTP_HOST"] = ask.host
    if jar:
        environ["HTTP_COOKIE"] = "; ".join(f"{name}={value}" for name, value in jar.items())
    environ |= ask.environ
    seen: dict[str, Any] = {"ask": (ask.method, ask.path, ask.host), "started": []}

    def start_response(status: str, headers: Any, *_: Any) -> None:
        seen["started"].append((status, list(headers)))

    try:
        body = app.wsgi_app(environ, start_response)
        seen["body"] = b"".join(body)
        if hasattr(body, "close"):
            body.close()
    except Exception as error:
        seen["raised"] = repr(error)
    seen["left"] = environ.get("werkzeug.request", "absent"), bool(flask.request), bool(flask.g)
    for _, headers in seen["started"]:
        for name, value in headers:
            if name == "Set-Cookie":
                jar.update([value.partition(";")[0].split("=", 1)])
    return seen


def answers(make: Callable[..., Case], way: str | None) -> list[Any]:
    """Return all that was seen of a case, and what it logged on the way; None is stock Flask's."""
    log: Log = []
    cls, adopted_at = WAYS[way]
    app, asks = make(cls, log)
    jar: dict[str, str] = {}
    seen: list[Any] = []
    for number, ask in enumerate(asks):
        if number == adopted_at:
            assert adopt(adopt(app)) is app
        seen.append(answer(app, ask, jar))
        seen.append(list(log))
        log.clear()
    assert isinstance(app, Flask) == (way is not None)
    return seen


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clocks that cookies and files are signed and dated by."""

    def expires(_: Any, app: Any, session: Any) -> Any:
        return datetime(2050, 1, 1, tzinfo=UTC) if session.permanent else None

    monkeypatch.setattr("itsdangerous.timed.time.time", lambda: 1_700_000_000.0)
    monkeypatch.setattr("flask.sessions.SessionInterface.get_expiration_time", expires)
    monkeypatch.setattr("werkzeug.wrappers.response.http_date", lambda: "now")


@pytest.mark.filterwarnings("ignore:Current server name")
@pytest.mark.parametrize("name", CASES)
@by_all_ways
def test_answers_and_calls_are_the_same(way: str, name: str) -> None:
    """The same bytes, headers in the same order, and the same calls in the same order."""
    stock, ours = answers(CASES[name], None), answers(CASES[name], way)
    for expected, got in zip(stock, ours, strict=True):
        assert got == expected


def spying(cls: type[flask.Flask], hook: str, log: Log) -> type[flask.Flask]:
    """Return a subclass that overrides *hook*, logs the call and calls Flask's."""

    def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
        log.append((hook, len(args), sorted(kwargs)))
        return getattr(super(spied, self), hook)(*args, **kwargs)

    spied = type(cls)(cls.__name__, (cls,), {hook: spy})
    return spied


@pytest.mark.parametrize("hook", HOOKS)
@by_all_ways
def test_what_a_subclass_overrides_is_called_as_often(way: str, hook: str) -> None:
    """A hook is called where Flask calls it, with as many arguments, in the same order."""

    def make(cls: type[flask.Flask], log: Log) -> Case:
        return hooks(spying(cls, hook, log), log)

    stock = answers(make, None)
    assert hook in repr(stock)
    assert answers(make, way) == stock


@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
@pytest.mark.parametrize("hook", HOOKS)
@by_all_ways
def test_what_is_set_on_the_instance_is_called_as_often(way: str, hook: str, late: bool) -> None:
    """An application's own attribute counts as an override, also one that is set late."""

    def make(cls: type[flask.Flask], log: Log) -> Case:
        app, asks = hooks(cls, log)
        original = getattr(app, hook)

        def spy(*args: Any, **kwargs: Any) -> Any:
            log.append((hook, len(args), sorted(kwargs)))
            return original(*args, **kwargs)

        if not late:  # before it is adopted: what is called is Flask's own method
            setattr(app, hook, spy)
            return app, asks
        return app, [*asks[:2], Ask(first=lambda app: setattr(app, hook, spy)), *asks[2:]]

    assert answers(make, way) == answers(make, None)


@pytest.mark.parametrize("name", ["hooks", "default_sessions"])
@by_all_ways
def test_signals_are_sent_to_those_who_listen(way: str, name: str) -> None:
    """Each signal comes at the same moment, with the same arguments."""

    def make(cls: type[flask.Flask], log: Log) -> Case:
        app, asks = CASES[name](cls, log)
        for signal in SIGNALS:

            def receive(sender: Any, _signal: str = signal, **more: Any) -> None:
                log.append((_signal, sender is app, sorted(more)))

            getattr(signals, signal).connect(receive, app, weak=False)
        return app, asks

    stock = answers(make, None)
    assert {*SIGNALS} - {"got_request_exception"} <= {s for s in SIGNALS if s in repr(stock)}
    assert answers(make, way) == stock


def test_the_test_client_keeps_the_context() -> None:
    """Inside the client's block the request, the session and g are those of the last request."""
    app = Flask(__name__)
    app.secret_key = "key"
    app.add_url_rule("/<int:number>", "page", lambda number: str(flask.g.setdefault("n", number)))
    with app.test_client() as client:
        client.get("/3?a=b")
        assert flask.request.args["a"] == "b"
        assert flask.request.view_args == {"number": 3}
        assert flask.g.n == 3
        assert dict(flask.session) == {}
        assert flask.url_for("page", number=4) == "/4"
    assert not flask.request


def test_it_speaks_wsgi() -> None:
    """What is returned to the server is what PEP 3333 asks for."""
    app = Flask(__name__)
    app.add_url_rule("/", "index", lambda: {"a": 1})
    app.wsgi_app = validator(app.wsgi_app)  # type: ignore[method-assign]
    response = app.test_client().get("/")
    assert response.get_data() == b'{"a":1}\n'
    response.close()


def test_a_response_that_is_not_looked_at_makes_no_request_object() -> None:
    """The short way is taken: without a request object, a URL adapter and a session."""
    made: list[list[str]] = []

    class Watched(Flask):
        def full_dispatch_request(self) -> flask.Response:
            response = super().full_dispatch_request()
            made.append(sorted({"request", "url_adapter", "_session"} & {*vars(_context())}))
            return response

    def _context() -> Any:
        return flask.globals._cv_request.get()

    app = Watched(__name__)
    app.secret_key = "key"
    app.add_url_rule("/", "index", lambda: {"a": 1})
    app.add_url_rule("/<int:n>", "page", lambda n: {"a": n})
    for path in ("/", "/", "/1"):
        answer(app, Ask(path), {})
    assert made == [["request", "url_adapter"], [], []]
