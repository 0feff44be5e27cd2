"""
What a cache keeps of a value, and how many bytes that takes.

A value that cannot change is kept as it is. Any other one is pickled: its bytes are known, and each
caller gets a copy, which it may change. Only what a process of this user has pickled is unpickled.
"""

import pickle  # nosec B403
import sys
from collections.abc import Collection
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from msgspec import Struct

# By exact type: a subclass may have attributes that change.
UNCHANGING = {
    bool, bytes, complex, date, datetime, Decimal, float, int, str, time, timedelta, type(None),
    UUID,
}  # fmt: skip


MAX_PARTS = 100_000  # more of them take longer to look at than a copy does to make


class NotKept(TypeError):
    """A value that a cache cannot keep; the text says why."""


class Kept(NamedTuple):
    """
    What is kept of a value.

    :param content: the value, or its bytes.
    :param is_pickled: which of the two, bool.
    :param size_bytes: memory of the content, int.
    """

    content: Any
    is_pickled: bool
    size_bytes: int

    def value(self) -> Any:
        """Return the value; a copy, where it can change."""
        return pickle.loads(self.content) if self.is_pickled else self.content  # nosec B301  # noqa: S301


def keep(value: Any) -> Kept:
    """
    Return what is kept of *value*.

    :raises NotKept: it can change, and it cannot be pickled: a generator, a file, a connection.
    """
    if (size_bytes := _frozen_bytes(value)) is not None:
        return Kept(value, False, size_bytes)
    try:
        content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        pickle.loads(content)  # nosec B301  # noqa: S301 - each hit does this
    # By what a class does to pickle itself, any error may be raised.
    except Exception as error:
        raise NotKept(f"a {type(value).__qualname__} cannot be kept: {error}") from error
    return Kept(content, True, sys.getsizeof(content))


def is_unchanging(value: Any) -> bool:
    """Return whether *value* is of a type that cannot change, or a tuple of such values."""
    kind = type(value)
    return kind in UNCHANGING or (kind is tuple and all(is_unchanging(each) for each in value))


def _frozen_bytes(value: Any) -> int | None:
    """
    Return the memory of *value* and all that it consists of, None where a part of it can change.

    None too where the parts are too many; one that is in several places counts in each.
    """
    size_bytes, found = 0, [value]
    # Not by recursion: the parts may lie deep.
    for each in found:
        if type(each) not in UNCHANGING:
            parts = _parts(each)
            if parts is None or len(found) + len(parts) > MAX_PARTS:
                return None
            found.extend(parts)
        size_bytes += _own_bytes(each)
    return size_bytes


def _parts(value: Any) -> Collection[Any] | None:
    """Return what a tuple, a frozenset or a frozen Struct consists of; None: it is none of them."""
    kind = type(value)
    if kind is tuple or kind is frozenset:
        return value  # type: ignore[no-any-return]
    # One with a __dict__ may have attributes beside its fields.
    if (
        isinstance(value, Struct)
        and value.__struct_config__.frozen
        and not hasattr(value, "__dict__")
    ):
        return [getattr(value, name) for name in value.__struct_fields__]
    return None


def _own_bytes(value: Any) -> int:
    """Return the memory of *value* without its parts."""
    size_bytes, kind = sys.getsizeof(value), type(value)
    if kind is str and not value.isascii():
        # CPython keeps the UTF-8 of a text that was encoded once, by msgspec.json for instance.
        size_bytes += len(value.encode(errors="surrogatepass")) + 1
    elif kind is UUID:
        size_bytes += sys.getsizeof(value.int)
    elif kind is datetime or kind is time:
        zone = value.tzinfo
        # Other classes share theirs: zoneinfo, psycopg2.
        if type(zone) is timezone and zone is not UTC:
            size_bytes += sys.getsizeof(zone) + sys.getsizeof(zone.utcoffset(None))
    return size_bytes
