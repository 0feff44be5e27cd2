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
from tests.helpers.clock import Clock
from tests.helpers.support import wait_until

MB = 1 << 20
MISS = "greenline; fwd=uri-miss"


class Shop:
    """An application with one view, which counts its calls."""

    def __init__(
        self,
        kind: type[flask.Flask],
        respond: Callable[[], Any],
        cache: Cache | None = None,
        **options: Any,
    ) -> None:
        self.cache = cache or Cache(MB, 60)
        self.calls = 0
        self.app = app = kind("shop")
        app.secret_key = "not a secret"
        self.client = app.test_client(use_cookies=False)

        @app.route("/<path:path>", methods=["GET", "POST"])
        @cached(self.cache, **options)
        def view(path: str) -> Any:
            self.calls += 1
            return respond()

    def get(
        self, path: str = "/books", method: str = "GET", data: Any = None, **headers: str
    ) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        user = named.pop("REMOTE-USER", None)
        return self.client.open(
            path, method=method, headers=named, data=data,
            environ_overrides={} if user is None else {"REMOTE_USER": user},
        )  # fmt: skip


@pytest.fixture(params=[flask.Flask, Flask], ids=["flask", "ours"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Shop]]:
    def made(
        respond: Callable[[], Any] = lambda: {"path": flask.request.path},
        cache: Cache | None = None,
        **options: Any,
    ) -> Shop:
        return Shop(request.param, respond, cache, **options)

    return made


@pytest.fixture
def clocked(make: Any) -> Callable[..., Any]:
    """Return a function that makes a shop whose cache has a clock and keeps what is too old."""

    def made(respond: Callable[[], Any]) -> Any:
        clock = Clock(0.0)
        return make(respond, Cache(MB, 60, stale_if_error_s=300, clock=clock)), clock

    return made


def test_a_response_is_kept_with_its_headers(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one comes from the cache, and says so."""
    monkeypatch.setattr("greenline.flask.cached.monotonic", Clock(0.0))
    shop = make(lambda: flask.Response("<p>", 404, {"X-Mine": "1", "Content-Type": "text/html"}))
    first, second = shop.get(), shop.get()
    assert shop.calls == 1
    assert first.headers["Cache-Status"] == "greenline; fwd=uri-miss; stored"
    assert second.headers["Cache-Status"] == "greenline; hit; ttl=60"
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
        ({}, {"X-Forwarded-Port": "444"}),
        ({}, {"X-Forwarded-Prefix": "/evil"}),
        ({}, {"Forwarded": "host=evil.example"}),
        ({}, {"X-Forwarded-Ssl": "on"}),
        ({}, {"X-Forwarded-Any": "evil"}),
        ({"X-Forwarded-Server": "a.example"}, {"X-Forwarded-Server": "b.example"}),
        ({"X-Forwarded-Scheme": "x"}, {"X-Forwarded-Path": "x"}),
        ({}, {"X-Original-URL": "/evil"}),
        ({}, {"X-Original-Host": "evil.example"}),
        ({}, {"X-Rewrite-URL": "/evil"}),
        ({}, {"X-Host": "evil.example"}),
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


def with_lines(*lines: tuple[str, str]) -> flask.Response:
    response = flask.Response("x")
    for line in lines:
        response.headers.add(*line)
    return response


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
        with_header("Vary", "Accept-Encoding"),
        with_header("Cache-Control", "Private, Max-Age=60"),
        with_header("Cache-Control", "public, max-age=0"),
        lambda: with_lines(("Cache-Control", "max-age=60"), ("Cache-Control", "private")),
        lambda: with_lines(("Vary", "Accept"), ("Vary", "X-Tenant")),
        lambda: flask.Response(part for part in ("x",)),
        lambda: ("x", 500),
        lambda: ("x", 302),
        using_session,
        lambda: flask.session.get("seen", "x"),
        after_this,
        lambda: "x" * (2 * MB),
    ],
    ids=["cookie", "no-store", "private", "no-cache", "vary", "vary *", "encoding",
         "Private", "max-age=0", "two lines", "two varies", "stream", "500", "302",
         "session", "session read", "after", "too large"],
)  # fmt: skip
def test_some_responses_are_not_kept(make: Any, respond: Callable[[], Any]) -> None:
    """Each request gets one of its own, unchanged but for Cache-Status."""
    shop = make(respond)
    first, second = shop.get(), shop.get()
    assert shop.calls == 2
    assert first.data == second.data
    assert first.data.startswith(b"x")
    assert first.headers["Cache-Status"].startswith(MISS)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Cache-Control": "no-cache"}, "greenline; fwd=request"),
        ({"Cache-Control": "max-age=0"}, "greenline; fwd=request"),
        ({"Pragma": "no-cache"}, "greenline; fwd=request"),
        ({"Authorization": "Bearer x"}, "greenline; fwd=bypass"),
        ({"Cookie": "session=x"}, "greenline; fwd=bypass"),
        ({"Range": "bytes=0-1"}, "greenline; fwd=bypass"),
        ({"Cache-Control": "max-age=60, No-Cache"}, "greenline; fwd=request"),
        ({"data": "{}"}, "greenline; fwd=bypass"),
        ({"REMOTE_USER": "ann"}, "greenline; fwd=bypass"),
        ({"X-" + "a" * 4_000: "x"}, "greenline; fwd=bypass"),
        ({"X-Remote-User": "ann"}, "greenline; fwd=bypass"),
        ({"Remote-User": "ann"}, "greenline; fwd=bypass"),
        ({"X-Auth-Request-Email": "ann@x.example"}, "greenline; fwd=bypass"),
        ({"X-Forwarded-User": "ann"}, "greenline; fwd=bypass"),
        ({"X-Forwarded-Email": "ann@a.example"}, "greenline; fwd=bypass"),
        ({"X-Forwarded-Groups": "staff"}, "greenline; fwd=bypass"),
        ({"X-Forwarded-Preferred-Username": "ann"}, "greenline; fwd=bypass"),
        ({"X-Forwarded-Access-Token": "x"}, "greenline; fwd=bypass"),
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


def test_users_of_a_proxy_share_what_their_scope_does(make: Any) -> None:
    """The header that names the user is not in the key: its value may be a token."""
    shop = make(scope=lambda: "staff")
    for user in ("ann", "bob"):
        shop.get(X_Forwarded_User=user, X_Forwarded_Access_Token=f"of {user}")
    assert shop.calls == 1


def test_the_address_of_a_client_is_not_in_the_key(make: Any) -> None:
    """Behind a proxy each client would have responses of its own."""
    shop = make()
    for name in ("X_Forwarded_For", "X_Original_Forwarded_For"):
        for address in ("192.0.2.1", "192.0.2.2"):
            shop.get(X_Forwarded_Proto="https", **{name: address})
    assert shop.calls == 1


def test_a_scope_of_none_is_no_group(make: Any) -> None:
    """Its requests are answered by the view; what is no text would be a group of its own."""
    shop = make(scope=lambda: None)
    assert [shop.get().headers["Cache-Status"] for _ in range(2)] == ["greenline; fwd=bypass"] * 2
    assert shop.calls == 2
    assert make(scope=object).get().status_code == 500


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"vary": "X-Tenant"}, "vary is 'X-Tenant'"),
        ({"vary": [5]}, r"vary is \[5\]"),
        ({"tags": "books"}, "tags is 'books'"),
        ({"ttl_s": -5}, "ttl_s is -5"),
    ],
)
def test_a_bad_argument_is_refused_when_the_view_is_decorated(
    arguments: Any, error: str, make: Any
) -> None:
    """Letter by letter a name of a header would leave out what the view depends on."""
    with pytest.raises((TypeError, ValueError), match=error):
        make(**arguments)


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


@pytest.mark.parametrize("code", [403, 503])
def test_an_error_that_the_view_raises_is_its_clients_alone(make: Any, code: int) -> None:
    """One with a response of its own too: its cookie reaches no other client."""
    may_end = Event()

    def fail() -> None:
        number = shop.calls
        may_end.wait()
        response = flask.Response("x", code)
        response.set_cookie("sid", str(number))
        flask.abort(response)

    shop = make(fail)
    jobs = [gevent.spawn(shop.get) for _ in range(5)]
    wait_until(lambda: shop.cache.stats()["waits"] == 4, "all but one to wait")
    may_end.set()
    gevent.joinall(jobs, raise_error=True)
    assert len({job.value.headers["Set-Cookie"] for job in jobs}) == 5
    assert {job.value.status_code for job in jobs} == {code}


def test_what_is_gone_is_not_answered_from_before(clocked: Any) -> None:
    """Only a failure of the server is replaced by an older response."""
    shop, clock = clocked(lambda: "x" if shop.calls == 1 else flask.abort(codes.pop(0)))
    codes = [503, 403, 503]
    assert shop.get().status_code == 200
    clock.now = 61.0
    assert [shop.get().status_code for _ in range(3)] == [200, 403, 503]


@pytest.mark.parametrize("is_personal", [False, True], ids=["for all", "for its client"])
def test_an_error_of_the_server_goes_to_all_that_wait(make: Any, is_personal: bool) -> None:
    """The view is called once, unless its response is for one client."""
    may_end = Event()

    def fail() -> flask.Response:
        number = shop.calls
        may_end.wait()
        response = flask.Response("no", 503, {"Retry-After": "5"})
        if is_personal:
            response.set_cookie("sid", str(number))
        return response

    shop = make(fail)
    jobs = [gevent.spawn(shop.get) for _ in range(5)]
    wait_until(lambda: shop.cache.stats()["waits"] == 4, "all but one to wait")
    may_end.set()
    gevent.joinall(jobs, raise_error=True)
    for response in (job.value for job in jobs):
        assert (response.status_code, response.data) == (503, b"no")
        assert response.headers["Retry-After"] == "5"
    assert shop.calls == (5 if is_personal else 1)
    assert shop.get().status_code == 503
    assert shop.calls == (6 if is_personal else 2)


@pytest.mark.parametrize(
    "fail",
    [
        lambda: ("x", 500),
        lambda: flask.abort(500),
        lambda: flask.abort(flask.Response("x", 500)),
        lambda: ("x", 500, {"Cache-Control": "no-store"}),
        lambda: ("x", 500, {"Set-Cookie": "a=b"}),
        lambda: 1 / 0,
    ],
    ids=["returned", "aborted", "its response", "no-store", "cookie", "error"],
)
def test_an_older_response_replaces_an_error_of_the_server(
    clocked: Any, fail: Callable[[], Any]
) -> None:
    """For stale_if_error_s."""
    shop, clock = clocked(lambda: "x" if shop.calls == 1 else fail())
    found = []
    for clock.now in (0.0, 61.0, 361.0):
        response = shop.get()
        found.append((response.status_code, "hit" in response.headers.get("Cache-Status", "")))
    assert found == [(200, False), (200, True), (500, False)]
    assert shop.calls == 3


def test_an_error_after_a_response_for_one_client_is_answered_once(clocked: Any) -> None:
    """There is nothing older to answer with."""
    shop, clock = clocked(
        lambda: ("x", 503) if shop.calls > 1 else ("x", 200, {"Set-Cookie": "a=b"})
    )
    assert shop.get().status_code == 200
    clock.now = 61.0
    assert shop.get().status_code == 503
    assert shop.calls == 2


def test_applications_and_calls_have_responses_of_their_own() -> None:
    """Two applications of one factory, and two calls in one request."""
    cache = Cache(MB, 60)
    calls = []

    @cached(cache)
    def part(name: str, number: int) -> Any:
        calls.append((name, number))
        return f"{name} {number} "

    def make_app(name: str) -> flask.Flask:
        app = flask.Flask("shop")
        app.add_url_rule(
            "/", view_func=lambda: b"".join(part(name, number).data for number in (1, 2, 1))
        )
        return app

    apps = [make_app("one"), make_app("two")]
    for _ in range(2):
        found = [app.test_client().get("/").data for app in apps]
        assert found == [b"one 1 one 2 one 1 ", b"two 1 two 2 two 1 "]
    assert len(calls) == 4


@pytest.mark.parametrize(
    ("one", "other", "status"),
    [
        (((), {"author": "x"}), ((), {"genre": "x"}), "hit"),
        (((), {"author": 1, "genre": 2}), ((), {"author": 2, "genre": 1}), "hit"),
        ((("a", 1), {}), ((("a", 1),), {}), "hit"),
        (((("a", 1),), {}), ((), {"a": 1}), "hit"),
        ((([1],), {}), (([2],), {}), "fwd=bypass"),
        (((), {"ids": [1]}), ((), {"ids": [2]}), "fwd=bypass"),
        (((), {"ids": (1, [1])}), ((), {"ids": (1, [2])}), "fwd=bypass"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [flask.Flask, Flask], ids=["flask", "ours"])
def test_calls_by_a_view_have_responses_of_their_own(
    kind: type[flask.Flask], one: Any, other: Any, status: str
) -> None:
    """By the names and values of the arguments but self; one of which no key is made is called."""

    class Part:
        @cached(Cache(MB, 60))
        def render(self, *args: Any, **kwargs: Any) -> str:
            return repr((args, kwargs))

    app = kind("shop")
    calls = [one, other]

    @app.get("/")
    def view() -> Any:
        args, kwargs = calls[0]
        return Part().render(*args, **kwargs)

    for _ in range(4):
        found = app.test_client().get("/")
        assert found.text == repr(calls[0])
        calls.reverse()
    assert found.headers["Cache-Status"].startswith(f"greenline; {status}")


def test_two_applications_share_nothing(make: Any) -> None:
    """Although their views have one name: a test may make an application for itself."""
    cache = Cache(MB, 60)
    one, other = make(lambda: "one", cache), make(lambda: "other", cache)
    assert [shop.get().data for shop in (one, other, one, other)] == [
        b"one", b"other", b"one", b"other"
    ]  # fmt: skip
    assert one.calls == other.calls == 1


def test_an_error_switches_nothing_off(make: Any) -> None:
    """The first response that may be kept is."""
    shop = make(lambda: ("x", (503, 304, 200)[min(shop.calls, 3) - 1]))
    assert [shop.get().status_code for _ in range(4)] == [503, 304, 200, 200]
    assert shop.calls == 3


def test_a_kept_404_is_answered_with_its_body(make: Any) -> None:
    """A precondition is for what would succeed."""
    shop = make(lambda: ("x", 404, {"ETag": '"v1"'}))
    assert [shop.get(If_None_Match='"v1"').status_code for _ in range(2)] == [404, 404]
    assert shop.calls == 1


def test_a_cache_with_stale_s_is_refused() -> None:
    """A view cannot be called outside of its request."""
    with pytest.raises(ValueError, match=r"stale_s=5\.0"):
        cached(Cache(MB, 60, stale_s=5.0))


def test_a_view_that_fails_is_asked_again(make: Any) -> None:
    """Its error has its own page."""
    shop = make(lambda: flask.abort(404) if shop.calls == 1 else "x")
    assert [shop.get().status_code for _ in range(3)] == [404, 200, 200]
    assert shop.calls == 2
