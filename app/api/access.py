"""
Check API keys (``Authorization: Bearer``), with a cache of the store's answers.

The store is asked at most once in ``KEY_TTL_S`` for each key, so a key that is revoked, expired
or narrowed is refused within that time by all workers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import wraps
from time import monotonic
from typing import Any

from flask import Response

from app.api import http
from app.api.idempotency import OWNER
from app.api.operations import Scope, View
from app.errors import Forbidden, InvalidToken, Unauthorized
from app.store import tokens
from app.store.keys import Grant
from greenline.cache import Cache

KEY_TTL_S = 1.0
REMEMBERED_BYTES = 10_000_000  # of about ten thousand keys
SCHEME = "Bearer "
USUAL = f"{SCHEME}gl_"
ENVIRON = "greenline.grant"  # what admits() has found, for the guard
UNKNOWN = Grant(0, frozenset())  # of a token that the store does not know

Find = Callable[[str], Grant | None]
Take = Callable[[str, MutableMapping[str, Any]], None]


class Access:
    """
    The guard of the views: it requires a key and counts requests.

    :param find: returns the grant of a token, None for an unknown one; None requires no key.
    :param take: counts a request of a client, and raises TooManyRequests; None counts nothing.
        Default None.
    """

    def __init__(self, find: Find | None, take: Take | None = None) -> None:
        self._known = None if find is None else Known(find)
        self._take = take

    def guard(self, scope: Scope, view: View) -> View:
        """
        Return *view*, guarded.

        :param scope: the key must have it; ignored if no key is required.
        :param view: returns the response.
        """
        known, take = self._known, self._take
        if known is None:
            return view if take is None else _limited(take, view)

        @wraps(view)
        def guarded(**values: Any) -> Response:
            environ = http.environ()
            header = environ.get("HTTP_AUTHORIZATION")
            try:
                # One look-up a request: each counts as a hit of the cache.
                grant = known.grant(header, environ.pop(ENVIRON, None))
            except InvalidToken:
                # Counted by address: a client that tries keys reaches the rate limit.
                if take is not None:
                    take(_address(environ), environ)
                raise
            # Idempotency keys of one API key are apart from those of another.
            environ[OWNER] = grant.key_id
            if take is not None:
                take(f"key {grant.key_id}", environ)
            if scope not in grant.scopes:
                raise Forbidden(scope)
            response = view(**values)
            if response.is_streamed:
                # A whole list may take minutes: the key may be revoked meanwhile.
                response.response = known.guarded(response.response, header, scope)  # type: ignore[arg-type]
            return response

        return guarded

    def admits(self, environ: MutableMapping[str, Any], scope: Scope) -> bool:
        """
        Return whether a request that is not guarded may use a right, without a wait.

        :param environ: the WSGI environ of the request.
        :param scope: the right.
        :returns: False where a view's guard has to find out, which counts requests too.
        """
        if self._take is not None:
            return False
        if self._known is None:
            return True
        environ[ENVIRON] = grant = self._known.kept(environ.get("HTTP_AUTHORIZATION"))
        return grant is not None and scope in grant.scopes


def _limited(take: Take, view: View) -> View:
    @wraps(view)
    def limited(**values: Any) -> Response:
        environ = http.environ()
        take(_address(environ), environ)
        return view(**values)

    return limited


def _address(environ: Mapping[str, Any]) -> str:
    return f"address {environ.get('REMOTE_ADDR', '')}"


class Known:
    """
    A cache of grants, by the hash of the token.

    Unknown tokens are cached as well; errors of the store are not. Concurrent requests for one
    token share a lookup.

    :param find: returns the grant of a token, None for an unknown one.
    :param clock: returns monotonic seconds. Default ``time.monotonic``.
    """

    def __init__(self, find: Find, clock: Callable[[], float] = monotonic) -> None:
        self._find = find
        # The time counts from the question, not from the answer: a slow store must not prolong the
        # life of a revoked key.
        self._cache = Cache(REMEMBERED_BYTES, KEY_TTL_S, name="keys", clock=clock)

    def grant(self, header: str | None, found: Grant | None = None) -> Grant:
        """
        Return the grant of the key in an Authorization header.

        :param header: the header.
        :param found: what :meth:`kept` has returned for it. Default None: it is looked up.
        :raises Unauthorized: there is no bearer token.
        :raises InvalidToken: the token is unknown or expired.
        :raises Unavailable: the store cannot be asked.
        :raises DeadlineExceeded: the request's deadline passed first.
        """
        grant = self._looked_up(header) if found is None else found
        if grant == UNKNOWN:
            raise InvalidToken
        return grant

    def _looked_up(self, header: str | None) -> Grant:
        if header is None:
            raise Unauthorized
        # The usual form skips the parser: this runs at each request.
        if not header.startswith(USUAL):
            header = SCHEME + bearer(header)
        token = header[len(SCHEME) :]
        # Text without the form of a key costs no query and no place in the cache.
        if tokens.prefix_of(token) is None:
            raise InvalidToken
        # By hash: the cache holds no usable token.
        digest = tokens.digest(token).hex()
        found: Grant = self._cache.get_or_load(digest, lambda: self._find(token) or UNKNOWN)
        return found

    def kept(self, header: str | None) -> Grant | None:
        """
        Return the grant of the key in an Authorization header if it is remembered now.

        :param header: in the usual form; for any other one None is returned.
        :returns: ``UNKNOWN`` if it is remembered that there is no such key.
        """
        if header is None or not header.startswith(USUAL):
            return None
        grant: Grant | None = self._cache.get(tokens.digest(header[len(SCHEME) :]).hex())
        return grant

    def guarded(self, parts: Iterable[bytes], header: str | None, scope: Scope) -> Iterator[bytes]:
        """
        Yield the parts of an answer as long as the key has the scope.

        :param parts: the answer's body.
        :param header: the request's Authorization header.
        :param scope: checked again after each part.
        :raises Forbidden: the key has lost the scope.
        :raises GreenlineError: as :meth:`grant`.
        """
        for part in parts:
            yield part
            if scope not in self.grant(header).scopes:
                raise Forbidden(scope)


def bearer(header: str) -> str:
    """
    Return the bearer token of an Authorization header.

    :raises Unauthorized: it has none.
    """
    # RFC 9110: the scheme is case-insensitive.
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized
    return token
