"""
Keep the responses of a view.

The key has all that a view usually depends on: the method, the address with its host, the query,
the headers in ``vary``, and the scope. Forwarding headers are in it as well, so that a client that
invents them gets a response of its own.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from inspect import signature
from itertools import count
from time import monotonic
from typing import Any, ParamSpec

import flask
from flask.globals import request_ctx
from werkzeug.exceptions import HTTPException
from werkzeug.http import is_hop_by_hop_header
from werkzeug.wrappers import Response

from greenline.cache.arguments import MAX_KEY_LENGTH, checked
from greenline.cache.cache import Cache
from greenline.cache.flight import NotShared
from greenline.cache.values import is_unchanging
from greenline.flask import environ as current_environ
from greenline.flask.response import ResponseFactory

P = ParamSpec("P")

# RFC 9110, 15.1, without those that depend on the range or the method.
KEPT_STATUSES = {200, 203, 301, 308, 404, 410}
ADDRESS = (
    "REQUEST_METHOD", "wsgi.url_scheme", "HTTP_HOST", "SCRIPT_NAME", "PATH_INFO", "QUERY_STRING",
    "HTTP_FORWARDED",
)  # fmt: skip
# Further headers of proxies, of which frameworks make addresses.
OF_PROXY = re.compile(
    "HTTP_X_(?:FORWARDED_|ORIGINAL_|REWRITE_|HOST|HTTP_HOST|SCHEME|SCRIPT_NAME|URL_SCHEME)[^ ]*"
)
PERSONAL = (
    "HTTP_AUTHORIZATION", "HTTP_COOKIE", "REMOTE_USER", "HTTP_REMOTE_USER", "HTTP_X_REMOTE_USER",
    "HTTP_X_AUTH_REQUEST_USER", "HTTP_X_AUTH_REQUEST_EMAIL",
    "HTTP_X_FORWARDED_USER", "HTTP_X_FORWARDED_EMAIL", "HTTP_X_FORWARDED_GROUPS",
    "HTTP_X_FORWARDED_PREFERRED_USERNAME", "HTTP_X_FORWARDED_ACCESS_TOKEN",
)  # fmt: skip
# Those of PERSONAL are in no key: with a scope the members of a group share responses.
NOT_IN_KEY = {*PERSONAL, "HTTP_X_FORWARDED_FOR", "HTTP_X_ORIGINAL_FORWARDED_FOR"}
PRECONDITIONS = (
    "HTTP_IF_NONE_MATCH", "HTTP_IF_MODIFIED_SINCE", "HTTP_IF_MATCH", "HTTP_IF_UNMODIFIED_SINCE"
)  # fmt: skip
MAX_NAMES_LENGTH = 4_000  # of the environ; with more the view answers
NEVER_KEPT = {"no-store", "no-cache", "private", "max-age=0", "s-maxage=0"}
STATUS = "Cache-Status"
_next_number = count()
NUMBER = "greenline.flask.cached"  # in the extensions of an application


# A response: status line and code, headers, body, and when its view began, monotonic seconds. Of a
# plain tuple the cache makes no copies.
Stored = tuple[str, int, tuple[tuple[str, str], ...], bytes, float]


class _Failed(Exception):
    """
    Raised by a load whose view has returned an error of the server.

    :param stored: the response, for those that waited for it.
    """

    def __init__(self, stored: Stored) -> None:
        super().__init__(stored)
        self.stored = stored


def cached(
    cache: Cache,
    *,
    ttl_s: float | None = None,
    tags: Collection[str] = (),
    vary: Collection[str] = ("Accept", "Accept-Language"),
    scope: Callable[[], str | int | None] | None = None,
) -> Callable[[Callable[P, Any]], Callable[P, Response]]:
    """
    Return a decorator of views whose responses to GET and HEAD are kept in *cache*.

    Not kept are: an error that the view raises, or returns with a status of 500 and above, which
    goes to all that wait for it; a response with Set-Cookie, or of a view that has
    used the session; one that is streamed; one whose Cache-Control forbids it, or whose Vary names
    another header than *vary*. A kept response has an ETag, and answers If-None-Match.
    Cache-Status (:rfc:`9211`) says where a response comes from.

    :param cache: a :class:`greenline.cache.Cache`.
    :param ttl_s: seconds for which a response is fresh, float. Default: the cache's.
    :param tags: names under which ``cache.invalidate(tag=...)`` finds the responses.
    :param vary: the request headers on which the response depends.
    :param scope: returns the name of a group that may see the same response, str or int: a user's
        id, for instance; it is called for each request, and None is no group: the view answers.
        Default: requests with a cookie, an Authorization, a REMOTE_USER or a header in which a
        proxy names the user are answered by the view.
    :raises ValueError: the cache has ``stale_s``: no view is called outside of its request.
    :raises TypeError: *tags* or *vary* is no collection of str.
    """
    if cache.stale_s:
        raise ValueError(f"the cache has stale_s={cache.stale_s}, which views cannot have")
    tags = checked(tags, ttl_s)
    if isinstance(vary, str) or any(type(name) is not str for name in vary):
        raise TypeError(f"vary is {vary!r:.40}; a collection of names of headers is needed")
    names = (*ADDRESS, *(f"HTTP_{name.upper().replace('-', '_')}" for name in vary))
    allowed = {name.lower() for name in vary}

    def decorate(view: Callable[P, Any]) -> Callable[P, Response]:
        name = f"{view.__module__}.{view.__qualname__}"
        has_self = next(iter(signature(view).parameters), "") == "self"

        @wraps(view)
        def answer(*args: P.args, **kwargs: P.kwargs) -> Response:
            def ask(why: str) -> flask.Response:
                found = flask.current_app.ensure_sync(view)(*args, **kwargs)
                response = flask.make_response(found)
                response.headers[STATUS] = f"greenline; fwd={why}"
                return response

            environ = current_environ()
            refused = _why_not(environ, scope is not None)
            group = "" if refused or scope is None else scope()
            context: Any = request_ctx._get_current_object()  # type: ignore[attr-defined]
            called_with = _called_with(context, args[has_self:], kwargs)
            key = ""
            if not refused and group is not None and called_with is not None:
                more = _number_of_app(cache, context.app), called_with
                key = _key(name, environ, names, group, more)
            if not 0 < len(key) <= MAX_KEY_LENGTH:
                return ask(refused or "bypass")
            came = ""
            mine: list[flask.Response | HTTPException] = []

            def note(where: str) -> None:
                nonlocal came
                came = where

            def load() -> Stored | None:
                begun_s = monotonic()
                try:
                    mine.append(response := ask("uri-miss"))
                except HTTPException as error:
                    answered = error.response  # an own one is for its client alone
                    code = (error.code if answered is None else answered.status_code) or 0
                    if answered is None and code >= 500:
                        raise
                    mine.append(error)
                    raise NotShared(forgets=code < 500) from error
                stored = _stored(response, allowed, begun_s, scope is not None)
                if response.status_code >= 500:
                    raise NotShared(forgets=False) if stored is None else _Failed(stored)
                if stored is not None:
                    response.headers[STATUS] += "; stored"
                return stored

            try:
                stored = cache.get_or_load(key, load, tags=tags, ttl_s=ttl_s, note=note)
            except NotShared as error:
                stored = None
                if not error.forgets and (kept := cache.kept_for_an_error(key, note)) is not None:
                    stored = kept.value()
            except _Failed as failed:
                stored = failed.stored
            if mine and (came == "miss" or stored is None):
                if isinstance(mine[0], HTTPException):
                    raise mine[0]
                return mine[0] if stored is None else _conditional(mine[0], environ)
            # None is kept for a response of one client alone: the next ones need not wait.
            if stored is None:
                return ask("uri-miss")
            fresh_s = cache.ttl_s if ttl_s is None else ttl_s
            return _again(stored, environ, came, fresh_s, context.app.response_class)

        return answer

    return decorate


def _why_not(environ: Mapping[str, Any], is_scoped: bool) -> str:
    """Return why the view has to answer, in a word of RFC 9211; empty if the cache may."""
    if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
        return "method"
    asked = environ.get("HTTP_CACHE_CONTROL") or environ.get("HTTP_PRAGMA")
    if asked and _words([asked]) & {"no-cache", "no-store", "max-age=0"}:
        return "request"
    is_personal = any(map(environ.get, PERSONAL))
    # The view may read a body, which is not in the key.
    has_body = environ.get("CONTENT_LENGTH") not in (None, "", "0")
    has_body = has_body or "HTTP_TRANSFER_ENCODING" in environ
    is_refused = "HTTP_RANGE" in environ or has_body or (is_personal and not is_scoped)
    return "bypass" if is_refused else ""


def _words(lines: Iterable[str]) -> set[str]:
    """Return the members of a header that is a list, which may stand in several lines."""
    return {word.strip().lower() for line in lines for word in line.split(",")} - {""}


def _directives(lines: Iterable[str]) -> set[str]:
    """Return the directives of Cache-Control, those that name fields without the fields."""
    words = _words(lines)
    return words | {word.partition("=")[0] for word in words}


def _key(
    name: str,
    environ: Mapping[str, Any],
    names: Collection[str],
    group: str | int,
    more: tuple[Any, ...],
) -> str:
    if not isinstance(group, str | int):
        raise TypeError(f"scope returns {group!r:.40}; a str, an int or None is needed")
    parts = [*map(environ.get, names), group, more]
    # One join() takes a fourth of the time that a look at each name takes.
    present = " ".join(environ)
    if "HTTP_X_" in present:
        if len(present) > MAX_NAMES_LENGTH:
            return ""
        parts += (of_proxy := _of_proxy(present))
        parts += map(environ.get, of_proxy)
    # repr(): no part can pretend to be two.
    return f"{name} {parts!r}"


@lru_cache(256)
def _of_proxy(present: str) -> Sequence[str]:
    """Return the names of the headers of proxies that belong into the key."""
    return sorted({*OF_PROXY.findall(present)} - NOT_IN_KEY)


def _number_of_app(cache: Cache, app: flask.Flask) -> int:
    """Return the number of the application, which may have been made by one factory as others."""
    if cache.shares_loads:  # the workers may number several applications in another order
        return 0
    # Not in a WeakKeyDictionary, whose look-up takes longer.
    number: int | None = app.extensions.get(NUMBER)
    return app.extensions.setdefault(NUMBER, next(_next_number)) if number is None else number


def _called_with(
    context: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...] | None:
    """
    Return the arguments that the address does not have: a function may be called by a view.

    :returns: None if one of them cannot be in a key.
    """
    # Ours has them without a request object, which takes as long to make as all else of a hit.
    view_args = getattr(context, "view_args", None)
    if view_args is None:
        view_args = context.request.view_args
    if not args and kwargs == view_args:
        return ()
    found = args, tuple(sorted(kwargs.items()))
    return found if is_unchanging(found) else None


def _stored(
    response: flask.Response, allowed: set[str], begun_s: float, is_scoped: bool
) -> Stored | None:
    """
    Return what others may get of a response, None if it is for its client alone.

    :raises NotShared: this one is not kept, and the next one may be.
    """
    headers, session, code = response.headers, request_ctx._session, response.status_code
    if code not in KEPT_STATUSES and code < 500:
        raise NotShared(forgets=True)
    never = NEVER_KEPT - {"private"} if is_scoped else NEVER_KEPT
    if (
        response.is_streamed
        or response.direct_passthrough
        or "Set-Cookie" in headers
        or never & _directives(headers.getlist("Cache-Control"))
        or not allowed >= _words(headers.getlist("Vary"))
        # What it does to the response comes later.
        or request_ctx._after_request_functions
        # With a scope the view may read the session, and must not change it.
        or (session is not None and (session.modified if is_scoped else session.accessed))
    ):
        return None
    if code == 200 and "ETag" not in headers:
        response.add_etag()
    left_out = ("content-length", "date", "server", STATUS.lower())
    kept = [each for each in headers if not is_hop_by_hop_header(each[0])]
    kept = [each for each in kept if each[0].lower() not in left_out]
    return response.status, code, tuple(kept), response.get_data(), begun_s


def _conditional(response: flask.Response, environ: dict[str, Any]) -> Response:
    # RFC 9110, 13.2.1: a precondition is for a request that would succeed without it.
    if response.status_code != 200 or not any(map(environ.__contains__, PRECONDITIONS)):
        return response
    return response.make_conditional(environ)


def _again(
    stored: Stored, environ: dict[str, Any], came: str, fresh_s: float, response_class: Any
) -> Response:
    """Return a response that was kept, or that another request has loaded."""
    status, code, headers, body, begun_s = stored
    age_s = monotonic() - begun_s
    hit = f"hit; ttl={int(fresh_s - age_s)}"
    where = "fwd=uri-miss; collapsed" if came == "collapsed" else hit
    more = ("Age", str(int(age_s))), (STATUS, f"greenline; {where}")
    make = _factory(response_class)
    if make.works:
        response = make(body)
        response._status, response._status_code = status, code
        length = ("Content-Length", str(len(body)))
        response.headers._list[:] = [*headers, length, *more]
    else:
        response = response_class(body, status, [*headers, *more])
    return _conditional(response, environ)


@lru_cache(64)
def _factory(response_class: type[Any]) -> ResponseFactory:
    return ResponseFactory(response_class, None)
