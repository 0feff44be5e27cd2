"""greenline.flask.cached: what of a view's responses is kept, and for whom."""

from collections.abc import Callable, Iterator
from typing import Any

import flask
import gevent
import pytest
from gevent.event import Event

from greenline.cache import Cache
from greenline.flask import Flask
from greenline.flask.cached import cached
from tests.helpers.support import wait_until

MB = 1 << 20


class Shop:
    """An application with one view, which counts its calls."""

    def __init__(self, kind: type[flask.Flask], respond: Callable[[], Any], **options: Any) -> None:
        self.cache = Cache(MB, 60)
        self.calls = 0
        self.app = app = kind("shop")
        app.secret_key = "not a secret"
        self.client = app.test_client(use_cookies=False)

        @app.route("/<path:path>", methods=["GET", "POST"])
        @cached(self.cache, **options)
        def view(path: str) -> Any:
            self.calls += 1
            return respond()

    def get(self, path: str = "/books", method: str = "GET", **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.open(path, method=method, headers=named)


@pytest.fixture(params=[flask.Flask, Flask], ids=["flask", "ours"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Shop]]:
    def made(respond: Callable[[], Any] = lambda: {"path": flask.request.path}, **options: Any):
        return Shop(request.param, respond, **options)

    return made


def test_a_response_is_kept_with_its_headers(make: Any) -> None:
    """The second one comes from the cache, and says so."""
    shop = make(lambda: flask.Response("<p>", 404, {"X-Mine": "1", "Content-Type": "text/html"}))
    first, second = shop.get(), shop.get()
    assert shop.calls == 1
    assert first.headers["Cache-Status"] == "greenline; fwd=uri-miss; stored"
    assert second.headers["Cache-Status"] in ("greenline; hit; ttl=59", "greenline; hit; ttl=60")
    assert second.headers["Age"] == "0"
    for name in ("X-Mine", "Content-Type", "Content-Length"):
        assert first.headers[name] == second.headers[name]
    assert (first.data, first.status) == (second.data, second.status) == (b"<p>", "404 NOT FOUND")


def test_a_kept_response_answers_if_none_match(make: Any) -> None:
    """With 304, also before it is kept; the view may have an ETag of its own."""
    shop = make()
    tag = shop.get().headers["ETag"]
    again = shop.get(If_None_Match=tag)
    assert (again.status_code, again.data, again.headers["ETag"]) == (304, b"", tag)
    assert shop.get(If_None_Match='"other"').status_code == 200
    assert shop.calls == 1
    shop.cache.clear()
    assert shop.get(If_None_Match=tag).status_code == 304

    def tagged() -> flask.Response:
        response = flask.jsonify(1)
        response.set_etag("v1", weak=True)
        return response

    shop = make(tagged)
    assert shop.get().headers["ETag"] == shop.get().headers["ETag"] == 'W/"v1"'


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"path": "/a"}, {"path": "/b"}),
        ({"path": "/a?x=1"}, {"path": "/a?x=2"}),
        ({"Host": "a.example"}, {"Host": "b.example"}),
        ({}, {"X-Forwarded-Host": "evil.example"}),
        ({}, {"X-Forwarded-Proto": "https"}),
        ({}, {"X-Forwarded-Prefix": "/evil"}),
        ({}, {"Forwarded": "host=evil.example"}),
        ({"Accept-Language": "de"}, {"Accept-Language": "en"}),
        ({"Accept": "text/html"}, {"Accept": "application/json"}),
        ({"method": "GET"}, {"method": "HEAD"}),
        ({"path": "/a%27, %27b"}, {"path": "/a"}),
    ],
    ids=str,
)
def test_another_request_has_a_response_of_its_own(make: Any, one: Any, other: Any) -> None:
    """What a client sends to poison the cache is kept for those alone who send the same."""
    shop = make()
    for _ in range(2):
        assert shop.get(**one).status_code == shop.get(**other).status_code == 200
    assert shop.calls == 2


def with_header(name: str, value: str) -> Callable[[], Any]:
    return lambda: flask.Response("x", headers={name: value})


def using_session() -> str:
    flask.session["seen"] = True
    return "x"


def after_this() -> str:
    flask.after_this_request(lambda response: response)
    return "x"


@pytest.mark.parametrize(
    "respond",
    [
        with_header("Set-Cookie", "a=b"),
        with_header("Cache-Control", "no-store"),
        with_header("Cache-Control", "private, max-age=60"),
        with_header("Cache-Control", "no-cache"),
        with_header("Vary", "Cookie"),
        with_header("Vary", "*"),
        lambda: flask.Response(part for part in ("x",)),
        lambda: ("x", 500),
        lambda: ("x", 302),
        using_session,
        lambda: flask.session.get("seen", "x"),
        after_this,
        lambda: "x" * (2 * MB),
    ],
    ids=["cookie", "no-store", "private", "no-cache", "vary", "vary *", "stream", "500", "302",
         "session", "session read", "after", "too large"],
)  # fmt: skip
def test_some_responses_are_not_kept(make: Any, respond: Callable[[], Any]) -> None:
    """Each request gets one of its own, unchanged but for Cache-Status."""
    shop = make(respond)
    first, second = shop.get(), shop.get()
    assert shop.calls == 2
    assert first.data == second.data
    assert first.data.startswith(b"x")
    assert first.headers["Cache-Status"].startswith("greenline; fwd=uri-miss")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Cache-Control": "no-cache"}, "greenline; fwd=request"),
        ({"Cache-Control": "max-age=0"}, "greenline; fwd=request"),
        ({"Pragma": "no-cache"}, "greenline; fwd=request"),
        ({"Authorization": "Bearer x"}, "greenline; fwd=bypass"),
        ({"Cookie": "session=x"}, "greenline; fwd=bypass"),
        ({"Range": "bytes=0-1"}, "greenline; fwd=bypass"),
        ({"method": "POST"}, "greenline; fwd=method"),
        ({"path": "/" + "a" * 2_000}, "greenline; fwd=bypass"),
    ],
    ids=str,
)
def test_some_requests_are_answered_by_the_view(make: Any, headers: Any, status: str) -> None:
    """Although the cache has a response to another one of the address."""
    shop = make()
    shop.get()
    for _ in range(2):
        assert shop.get(**headers).headers["Cache-Status"] == status
    assert shop.calls == 3


def test_a_scope_is_who_may_see_a_response(make: Any) -> None:
    """With one, requests with cookies and keys share responses within it, also private ones."""

    def scope() -> str:
        return flask.request.headers.get("Authorization", "")

    shop = make(with_header("Cache-Control", "private"), scope=scope)
    for _ in range(2):
        shop.get(Authorization="one"), shop.get(Authorization="other", Cookie="a=b"), shop.get()
    assert shop.calls == 3


@pytest.mark.parametrize(("name", "calls"), [("X-Any", 1), ("Set-Cookie", 50)])
def test_many_at_once_cause_one_call(make: Any, name: str, calls: int) -> None:
    """Those who wait are answered with its response, or each by the view if it is for one alone."""
    for name, calls in (("X-Any", 1), ("Set-Cookie", 50)):
        may_end = Event()
        shop = make(
            lambda name=name, may_end=may_end: may_end.wait() and with_header(name, "a=b")()
        )
        jobs = [gevent.spawn(shop.get) for _ in range(50)]
        gevent.sleep(0.01)
        may_end.set()
        gevent.joinall(jobs, raise_error=True)
        assert {job.value.data for job in jobs} == {b"x"}
        assert shop.calls == calls
    came = [job.value.headers["Cache-Status"] for job in jobs]
    assert set(came) == {"greenline; fwd=uri-miss"}


def test_those_who_waited_are_collapsed(make: Any) -> None:
    """In the word of RFC 9211."""
    may_end = Event()
    shop = make(lambda: may_end.wait() and "x")
    jobs = [gevent.spawn(shop.get) for _ in range(3)]
    wait_until(lambda: shop.cache.stats()["waits"] == 2, "two to wait")
    may_end.set()
    came = sorted(job.get(timeout=10).headers["Cache-Status"] for job in jobs)
    assert came == ["greenline; fwd=uri-miss; collapsed"] * 2 + ["greenline; fwd=uri-miss; stored"]


def test_a_write_invalidates_by_tag(make: Any) -> None:
    """Who asks afterwards is answered by the view."""
    shop = make(tags=["books"])
    shop.get(), shop.get("/other")
    shop.cache.invalidate(tag="books")
    shop.get(), shop.get("/other")
    assert shop.calls == 4


def test_a_view_that_fails_is_asked_again(make: Any) -> None:
    """Its error has its own page."""
    shop = make(lambda: flask.abort(404) if shop.calls == 1 else "x")
    assert [shop.get().status_code for _ in range(3)] == [404, 200, 200]
    assert shop.calls == 2
