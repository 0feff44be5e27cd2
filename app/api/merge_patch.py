"""JSON merge patch (RFC 7396) for typed values."""

import types
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import Struct


def merged(target: Any, patch: Any, type_: type[Struct] | None = None) -> Any:
    """
    Return *target* with *patch* applied; neither is changed.

    :param target: decoded JSON.
    :param patch: decoded JSON.
    :param type_: the Struct of the result, None for any. Default None.
    """
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    fields = None if type_ is None else _fields(type_)
    for name, value in patch.items():
        if value is not None:
            inner = None if fields is None else fields.get(name)
            result[name] = merged(result.get(name), value, inner)
        elif fields is not None and name not in fields:
            # RFC 7396 would ignore a null for a missing field. Kept, it is refused later, like any
            # other unknown field.
            result[name] = None
        else:
            result.pop(name, None)
    return result


@cache
def _fields(type_: type[Struct]) -> dict[str, type[Struct] | None]:
    """Return the fields of *type_* by name, each with the Struct that it contains, if any."""
    return {field.encode_name: _struct_in(field.type) for field in msgspec.structs.fields(type_)}


def _struct_in(type_: Any) -> type[Struct] | None:
    if isinstance(type_, type) and issubclass(type_, Struct):
        return type_
    if get_origin(type_) in (Annotated, Union, types.UnionType):
        return next(filter(None, map(_struct_in, get_args(type_))), None)
    return None
