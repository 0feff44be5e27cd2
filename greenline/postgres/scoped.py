"""
Let psycopg2's functions and adapters that ask libpq use the connection under a handle.

They read the structure of the connection that they are given, and a handle's is never connected.
"""

from functools import wraps
from typing import Any

import psycopg2.extensions

from greenline.hub.namespaces import namespaces
from greenline.postgres.handle import Handle

_adapt = psycopg2.extensions.adapt
_QuotedString: Any = psycopg2.extensions.QuotedString


class QuotedString(_QuotedString):  # type: ignore[misc]
    """psycopg2's adapter of strings, which takes the encoding from a connection."""

    def prepare(self, conn: Any) -> None:
        """
        Take the encoding of *conn*.

        :param conn: a connection.
        """
        super().prepare(_beneath(conn))


def install() -> None:
    """Replace the functions and the adapter, where other modules have imported them too."""
    if psycopg2.extensions.adapt is not _adapt:
        return
    _replace("QuotedString", _QuotedString, QuotedString)
    _replace("adapt", _adapt, adapt)
    for name in ("quote_ident", "encrypt_password"):
        original = getattr(psycopg2.extensions, name)
        _replace(name, original, _scoped(original))


@wraps(_adapt)
def adapt(*args: Any) -> Any:
    """Return the adapter of an object, as psycopg2 does."""
    found = _adapt(*args)
    return QuotedString(args[0]) if type(found) is _QuotedString else found


def _scoped(original: Any) -> Any:
    """Return a function of psycopg2 whose argument ``scope`` may be a handle."""

    @wraps(original)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        named = {name: _beneath(value) for name, value in kwargs.items()}
        return original(*map(_beneath, args), **named)

    return scoped


def _beneath(value: Any) -> Any:
    return value._live() if isinstance(value, Handle) else value


def _replace(name: str, original: Any, ours: Any) -> None:
    for _, namespace in namespaces():
        if namespace.get(name) is original:
            namespace[name] = ours
