"""
Who may do what: ``Authorization: Bearer`` with an API key, asked of the store once a second.

1. An answer is remembered for ``REMEMBERED_S`` from when its question was asked, so that a key that
   is revoked, over or narrowed is refused everywhere within that time. That there is no such key is
   remembered as well; that the store could not tell is not.
2. Who comes while the same is being asked waits for that answer, as long as its request may.
3. What has not the form of a key costs no question, and no place among what is remembered.
4. At most ``MAX_REMEMBERED_KEYS`` keys are remembered, by their hashes.
5. An answer that comes in parts is cut within that time, too: it is asked again before each part.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import wraps
from hashlib import sha256
from time import monotonic
from typing import Any

from flask import Response

from app.api import http
from app.api.once import OWNER
from app.api.operations import Scope, View
from app.errors import Forbidden, InvalidToken, Unauthorized
from app.store import tokens
from app.store.keys import Grant
from greenline.errors import DeadlineExceeded, StoreError, Unavailable
from greenline.hub import deadline

REMEMBERED_S = 1.0
MAX_REMEMBERED_KEYS = 10_000
SCHEME = "Bearer "
USUAL = f"{SCHEME}gl_"

Find = Callable[[str], Grant | None]
Take = Callable[[str, MutableMapping[str, Any]], None]


class Access:
    """
    The guard of the views: with *find* they need a key, and *take* counts what it asks.

    Where no key is asked for, *take* counts what a client's address asks, and so where the key is
    none: who tries keys is told to wait.
    """

    def __init__(self, find: Find | None, take: Take | None = None) -> None:
        self._known = None if find is None else Known(find)
        self._take = take

    def guard(self, scope: Scope, view: View) -> View:
        """Return *view* for those who have *scope*."""
        known, take = self._known, self._take
        if known is None:
            return view if take is None else _limited(take, view)

        @wraps(view)
        def guarded(**values: Any) -> Response:
            environ = http.environ()
            header = environ.get("HTTP_AUTHORIZATION")
            try:
                grant = known.grant(header)
            except InvalidToken:
                if take is not None:
                    take(_address(environ), environ)
                raise
            environ[OWNER] = grant.key_id
            if take is not None:
                take(f"key {grant.key_id}", environ)
            if scope not in grant.scopes:
                raise Forbidden(scope)
            response = view(**values)
            if response.is_streamed:
                response.response = known.guarded(response.response, header, scope)  # type: ignore[arg-type]
            return response

        return guarded


def _limited(take: Take, view: View) -> View:
    @wraps(view)
    def limited(**values: Any) -> Response:
        environ = http.environ()
        take(_address(environ), environ)
        return view(**values)

    return limited


def _address(environ: Mapping[str, Any]) -> str:
    return f"address {environ.get('REMOTE_ADDR', '')}"


class _Question:
    """What a token allows: asked, and answered some time later, with a grant or with an error."""

    __slots__ = ("answered", "error", "grant", "until", "waited_for")

    def __init__(self, until: float) -> None:
        self.until = until
        self.answered = False
        self.grant: Grant | None = None
        self.error: BaseException | None = None
        self.waited_for = threading.Event()


class Known:
    """The keys that were asked for in the last second."""

    def __init__(self, find: Find, clock: Callable[[], float] = monotonic) -> None:
        self._find = find
        self._clock = clock
        self._lock = threading.Lock()
        self._questions: OrderedDict[bytes, _Question] = OrderedDict()

    def __len__(self) -> int:
        return len(self._questions)

    def grant(self, header: str | None) -> Grant:
        """
        Return what the Authorization *header* allows.

        Raises:
            Unauthorized: it has no bearer token.
            InvalidToken: the token is nobody's, or over.
            Unavailable: the store cannot be asked.
            DeadlineExceeded: the request's time was over first.
        """
        if header is None:
            raise Unauthorized
        if not header.startswith(USUAL):
            header = SCHEME + bearer(header)
        token = header[len(SCHEME) :]
        digest = sha256(token.encode("latin-1", "replace")).digest()
        question = self._questions.get(digest)
        if question is not None and question.answered and self._clock() < question.until:
            grant = question.grant
        else:
            grant = self._ask(token, digest)
        if grant is None:
            raise InvalidToken
        return grant

    def guarded(self, parts: Iterable[bytes], header: str | None, scope: Scope) -> Iterator[bytes]:
        """
        Yield the *parts* of an answer for as long as the key in *header* has *scope*.

        :raises Forbidden: it has it no more.
        :raises GreenlineError: what :meth:`grant` raises.
        """
        for part in parts:
            yield part
            if scope not in self.grant(header).scopes:
                raise Forbidden(scope)

    def _ask(self, token: str, digest: bytes) -> Grant | None:
        """Ask, or wait for the answer of who has asked already."""
        if tokens.prefix_of(token) is None:
            return None
        while True:
            with self._lock:
                known = self._questions.get(digest)
                if known is None or self._clock() >= known.until:
                    question = self._begin(digest)
                else:
                    question = known
            if question is not known:
                return self._answer(question, token, digest)
            if not question.waited_for.wait(deadline.remaining()):
                raise DeadlineExceeded
            if question.error is None:
                return question.grant
            if isinstance(question.error, StoreError | Unavailable):
                raise type(question.error)(str(question.error)) from question.error
            # Who asked was interrupted, by a deadline of its own: another one asks.

    def _begin(self, digest: bytes) -> _Question:
        question = self._questions[digest] = _Question(self._clock() + REMEMBERED_S)
        self._questions.move_to_end(digest)
        if len(self._questions) > MAX_REMEMBERED_KEYS:
            self._questions.popitem(last=False)
        return question

    def _answer(self, question: _Question, token: str, digest: bytes) -> Grant | None:
        try:
            question.grant = self._find(token)
            question.answered = True
            return question.grant
        except BaseException as error:
            question.error = error
            with self._lock:
                if self._questions.get(digest) is question:
                    del self._questions[digest]
            raise
        finally:
            question.waited_for.set()


def bearer(header: str) -> str:
    """
    Return the token of the Authorization *header*; the scheme is the same in any case.

    Raises:
        Unauthorized: it has none.
    """
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized
    return token
