"""
Keep the responses of a view, as the shared cache of :rfc:`9111` in front of it would.

The key has all that a view usually depends on: the method, the address with its host, the query,
the headers in ``vary``, and the scope. Forwarding headers are in it as well, so that a client that
invents them poisons only its own responses.
"""

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from time import monotonic
from typing import Any, NamedTuple, ParamSpec

import flask
from flask.globals import request_ctx
from werkzeug.http import is_hop_by_hop_header, parse_dict_header
from werkzeug.wrappers import Response

from greenline.cache.cache import MAX_KEY_LENGTH, Cache

P = ParamSpec("P")

# RFC 9110, 15.1, without those that depend on the range or the method.
KEPT_STATUSES = {200, 203, 301, 308, 404, 410}
ADDRESS = (
    "REQUEST_METHOD", "wsgi.url_scheme", "HTTP_HOST", "SCRIPT_NAME", "PATH_INFO", "QUERY_STRING",
    "HTTP_FORWARDED", "HTTP_X_FORWARDED_HOST", "HTTP_X_FORWARDED_PORT", "HTTP_X_FORWARDED_PREFIX",
    "HTTP_X_FORWARDED_PROTO",
)  # fmt: skip
NEVER_KEPT = {"no-store", "no-cache", "private"}
STATUS = "Cache-Status"


class Stored(NamedTuple):
    """A response: its status line, headers, body, and when it was made, monotonic seconds."""

    status: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    made_s: float


def cached(
    cache: Cache,
    *,
    ttl_s: float | None = None,
    tags: Collection[str] = (),
    vary: Collection[str] = ("Accept", "Accept-Language"),
    scope: Callable[[], str] | None = None,
) -> Callable[[Callable[P, Any]], Callable[P, Response]]:
    """
    Return a decorator of views whose responses to GET and HEAD are kept in *cache*.

    Not kept are: a response with Set-Cookie, or of a view that has used the session; one that is
    streamed; one whose Cache-Control forbids it, or whose Vary names another header than *vary*.
    A kept response has an ETag, and answers If-None-Match. Cache-Status (:rfc:`9211`) says where a
    response comes from.

    :param cache: a :class:`greenline.cache.Cache`.
    :param ttl_s: seconds for which a response is fresh, float. Default: the cache's.
    :param tags: names under which ``cache.invalidate(tag=...)`` finds the responses.
    :param vary: the request headers on which the response depends.
    :param scope: returns a name for those who may see the same response, str: a user's id, for
        instance; it is called for each request. Default: requests with a cookie or an Authorization
        are answered by the view.
    """
    varied = [f"HTTP_{name.upper().replace('-', '_')}" for name in vary]
    allowed = {*map(str.lower, vary), "accept-encoding"}

    def decorate(view: Callable[P, Any]) -> Callable[P, Response]:
        @wraps(view)
        def answer(*args: P.args, **kwargs: P.kwargs) -> Response:
            def ask() -> flask.Response:
                return flask.make_response(flask.current_app.ensure_sync(view)(*args, **kwargs))

            environ = flask.request.environ
            refused = _why_not(environ, scope is not None)
            key = "" if refused else _key(view, environ, varied, scope)
            if refused or len(key) > MAX_KEY_LENGTH:
                response = ask()
                response.headers[STATUS] = f"greenline; fwd={refused or 'bypass'}"
                return response
            asked_s = monotonic()
            mine: list[flask.Response] = []

            def load() -> Stored | None:
                response = ask()
                mine.append(response)
                return _stored(response, allowed, monotonic(), scope is not None)

            # None is kept as well: who asks next need not wait for what is not shared.
            stored = cache.get_or_load(key, load, tags=tags, ttl_s=ttl_s)
            if stored is None:
                response = mine[0] if mine else ask()
                response.headers[STATUS] = "greenline; fwd=uri-miss"
                return response
            if mine:
                response = mine[0]
                response.headers[STATUS] = "greenline; fwd=uri-miss; stored"
                return response.make_conditional(environ)
            fresh_s = cache.ttl_s if ttl_s is None else ttl_s
            return _again(stored, environ, asked_s, fresh_s)

        return answer

    return decorate


def _why_not(environ: Mapping[str, Any], is_scoped: bool) -> str:
    """Return why the view has to answer, in a word of RFC 9211; empty if the cache may."""
    if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
        return "method"
    if "HTTP_CACHE_CONTROL" in environ or "HTTP_PRAGMA" in environ:
        asked = parse_dict_header(environ.get("HTTP_CACHE_CONTROL", environ.get("HTTP_PRAGMA", "")))
        if asked.keys() & {"no-cache", "no-store"} or asked.get("max-age") == "0":
            return "request"
    is_personal = "HTTP_AUTHORIZATION" in environ or "HTTP_COOKIE" in environ
    return "bypass" if "HTTP_RANGE" in environ or (is_personal and not is_scoped) else ""


def _key(
    view: Callable[..., Any],
    environ: Mapping[str, Any],
    varied: Collection[str],
    scope: Callable[[], str] | None,
) -> str:
    # repr(): no part can pretend to be two.
    parts = [environ.get(name) for name in (*ADDRESS, *varied)]
    return f"{view.__module__}.{view.__qualname__} {parts!r} {scope() if scope else ''!r}"


def _stored(
    response: flask.Response, allowed: set[str], now_s: float, is_scoped: bool
) -> Stored | None:
    """Return what is kept of a response, None if it is for its client alone."""
    directives, session = response.cache_control, request_ctx._session
    never = NEVER_KEPT - {"private"} if is_scoped else NEVER_KEPT
    if (
        response.status_code not in KEPT_STATUSES
        or response.is_streamed
        or response.direct_passthrough
        or "Set-Cookie" in response.headers
        or never & directives.keys()
        or not allowed >= {name.lower() for name in response.vary}
        # What it does to the response comes later.
        or request_ctx._after_request_functions
        # With a scope the view may know who asks, and says nothing new about that.
        or (session is not None and (session.modified if is_scoped else session.accessed))
    ):
        return None
    if response.status_code == 200 and "ETag" not in response.headers:
        response.add_etag()
    kept = [each for each in response.headers if not is_hop_by_hop_header(each[0])]
    headers = tuple(each for each in kept if each[0].lower() not in ("date", "server"))
    return Stored(response.status, headers, response.get_data(), now_s)


def _again(stored: Stored, environ: dict[str, Any], asked_s: float, fresh_s: float) -> Response:
    """Return a response that was kept."""
    age_s = monotonic() - stored.made_s
    is_collapsed = stored.made_s >= asked_s
    came = "fwd=uri-miss; collapsed" if is_collapsed else f"hit; ttl={int(fresh_s - age_s)}"
    response = flask.current_app.response_class(stored.body, stored.status)
    headers = response.headers
    headers.clear()
    headers.extend(stored.headers)
    headers["Age"] = str(int(age_s))
    headers[STATUS] = f"greenline; {came}"
    return response.make_conditional(environ)
