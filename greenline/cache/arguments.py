"""Refuse what a cache cannot work with, by an error that names the argument and what it is."""

from contextlib import suppress
from math import inf
from typing import Any

MAX_KEY_LENGTH = 1_024


def check_bytes(name: str, given: Any) -> None:
    """
    Refuse *given* where it is no number of bytes, int, of at least 1.

    :raises TypeError: it is no int.
    :raises ValueError: it is below 1.
    """
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"{name} is {given!r:.40}; an int is needed, in bytes")
    if given < 1:
        raise ValueError(f"{name} is {given}; at least 1 is needed")


def check_seconds(name: str, given: Any, *, may_be_0: bool = False) -> None:
    """
    Refuse *given* where it is no number of seconds, float or int.

    :param may_be_0: whether 0 is one, bool. Default False.
    :raises TypeError: it is no number.
    :raises ValueError: it is out of its range.
    """
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise TypeError(f"{name} is {given!r:.40}; a number is needed, in seconds")
    if not (0 <= given < inf if may_be_0 else 0 < given < inf):
        least = "at least 0" if may_be_0 else "above 0"
        raise ValueError(f"{name} is {given}; it must be {least} and finite")


def check_str(name: str, given: Any) -> None:
    """
    Refuse *given* where it is no str.

    :raises TypeError: it is none.
    """
    # No tuples: a client that chooses the numbers in them chooses their hashes, and so collisions.
    if type(given) is not str:
        raise TypeError(f"a {name} is a str, not a {type(given).__qualname__}")


def check_key(key: Any) -> None:
    """
    Refuse *key* where it is none.

    :raises TypeError: it is no str.
    :raises ValueError: it is too long.
    """
    check_str("key", key)
    if len(key) > MAX_KEY_LENGTH:
        raise ValueError(f"the key {key[:40]!r}... has {len(key)} characters, not {MAX_KEY_LENGTH}")


def checked(tags: Any, ttl_s: Any) -> tuple[str, ...]:
    """
    Return the tags once each.

    :param tags: a collection of str.
    :param ttl_s: seconds, float, or None.
    :raises TypeError: one of both is of another type.
    :raises ValueError: *ttl_s* is out of its range, or a tag is too long.
    """
    if ttl_s is not None:
        check_seconds("ttl_s", ttl_s)
    if not isinstance(tags, str):
        with suppress(TypeError):
            return _unique(tuple(tags))
    raise TypeError(f"tags is {tags!r:.40}; a collection of str is needed")


def _unique(tags: tuple[Any, ...]) -> tuple[str, ...]:
    """Return *tags* once each; raise an error if they cannot be tags."""
    for tag in tags:
        if type(tag) is not str:
            raise TypeError
        if len(tag) > MAX_KEY_LENGTH:
            raise ValueError(
                f"the tag {tag[:40]!r}... has {len(tag)} characters, not {MAX_KEY_LENGTH}"
            )
    return tuple(dict.fromkeys(tags))
