"""
Find every fault of a refused value, each with its position.

msgspec stops at the first fault. After a request has failed, it is called again for each part of
the value, down to the smallest that fails.
"""

import types
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from app.errors import Fault
from app.records import NO_NUL

MAX_FAULTS = 100  # in one answer


def found(value: Any, type_: Any, prefix: str = "") -> list[Fault]:
    """
    Return the faults of a value, by JSON pointer (RFC 6901).

    :param value: decoded JSON.
    :param type_: the type that it should have.
    :param prefix: pointer to the value itself, str. Default "".
    :returns: at most ``MAX_FAULTS``; none if the value has the type.
    """
    return list(islice(_faults(value, type_, prefix), MAX_FAULTS))


def found_in_query(given: dict[str, str], type_: type[Struct]) -> list[Fault]:
    """
    Return the faults of a query string.

    :param given: texts by name.
    :param type_: the Struct that it should be.
    :returns: at most ``MAX_FAULTS``; none if it has the type.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(type_)}
    wrong = [
        Fault(f"there is no parameter {name}", name=name) for name in given if name not in fields
    ]
    for name, field in fields.items():
        if name not in given:
            if field.required:
                wrong.append(Fault(f"{name} is missing", name=name))
        elif reason := _refused(given[name], field.type, strict=False):
            wrong.append(Fault(reason, name=name))
    return wrong[:MAX_FAULTS]


def _faults(value: Any, type_: Any, pointer: str) -> Iterator[Fault]:
    # Most parts are valid, and one conversion shows it for all parts inside.
    reason = _refused(value, type_)
    if reason is None:
        return
    bare, metas = _bare(type_)
    if isinstance(bare, type) and issubclass(bare, Struct) and isinstance(value, dict):
        parts = _of_struct(value, bare, pointer)
    elif get_origin(bare) is list and isinstance(value, list):
        parts = _of_list(value, get_args(bare)[0], metas, pointer)
    else:
        parts = iter(())
    # No part is at fault: the value itself is, by its own type, length or __post_init__.
    first = next(parts, None)
    if first is None:
        yield Fault(reason, pointer=pointer)
        return
    yield first
    yield from parts


def _of_struct(value: dict[str, Any], type_: type[Struct], pointer: str) -> Iterator[Fault]:
    fields = msgspec.structs.fields(type_)
    for field in fields:
        name = field.encode_name
        if name in value:
            yield from _faults(value[name], field.type, f"{pointer}/{_escaped(name)}")
        elif field.required:
            yield Fault(f"{name} is missing", pointer=pointer)
    if type_.__struct_config__.forbid_unknown_fields:
        known = {field.encode_name for field in fields}
        for name in value:
            if name not in known:
                yield Fault("there is no such field", pointer=f"{pointer}/{_escaped(name)}")


def _of_list(value: list[Any], item: Any, metas: list[Meta], pointer: str) -> Iterator[Fault]:
    # The number of elements is a fault of its own: the elements are checked all the same.
    for meta in metas:
        min_length, max_length = meta.min_length or 0, meta.max_length
        if len(value) < min_length or (max_length is not None and len(value) > max_length):
            limits = (
                f"at least {min_length}" if len(value) < min_length else f"at most {max_length}"
            )
            yield Fault(f"there must be {limits}; there are {len(value)}", pointer=pointer)
    for index, one in enumerate(value):
        yield from _faults(one, item, f"{pointer}/{index}")


def _refused(value: Any, type_: Any, *, strict: bool = True) -> str | None:
    """Return the reason why *value* has not the type, None if it has."""
    try:
        msgspec.convert(value, type_, strict=strict)
    except msgspec.ValidationError as error:
        # msgspec appends the path, which the pointer gives already, and quotes the pattern.
        reason = str(error).partition(" - at `$")[0]
        return "there may be no NUL in it" if repr(NO_NUL) in reason else reason
    except RecursionError:
        return "this is nested too deeply"
    return None


def _bare(type_: Any) -> tuple[Any, list[Meta]]:
    """Return *type_* without annotations, None and Unset, and its constraints."""
    metas: list[Meta] = []
    while True:
        if get_origin(type_) is Annotated:
            type_, *more = get_args(type_)
            metas += [meta for meta in more if isinstance(meta, Meta)]
        elif get_origin(type_) in (Union, types.UnionType):
            others = [one for one in get_args(type_) if one not in (type(None), msgspec.UnsetType)]
            # A union of several types: msgspec's own reason is the best there is.
            if len(others) != 1:
                return type_, metas
            [type_] = others
        else:
            return type_, metas


def _escaped(name: str) -> str:
    # RFC 6901: "~" before "/", or the escape's own "~" would be escaped again.
    return name.replace("~", "~0").replace("/", "~1")
