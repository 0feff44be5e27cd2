"""
Exchange the locks and queues that were made before the patching for ones that wait in the hub.

What gunicorn's configuration or preload_app has imported holds native locks: the second greenlet
that waits for one blocks the hub. The first greenlet, which holds it, never runs again. A native
RLock keeps no greenlet out, because all of them run in one thread. Locks that nobody holds and
queues without items are exchanged, in globals, classes, objects, lists and closures. The locks of
gevent, gunicorn, greenline and the standard library's modules stay.
"""

import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from types import BuiltinMethodType, CellType, MemberDescriptorType, ModuleType
from typing import Any

from greenline.hub import inherited
from greenline.hub.patching import keeps_originals_on_purpose

OURS = "greenline."
KEPT = ("gevent.", "greenlet.", "gunicorn.", "_frozen_importlib.", OURS)


def exchange() -> None:
    """Exchange them, once, after the patching, in a process that has one thread."""
    if threading.active_count() > 1:
        return
    _Exchange(inherited.native_kinds()).run()


class _Exchange:
    """
    Each native object is exchanged for the same new one everywhere.

    :param kinds: what makes a new object of each native class.
    """

    def __init__(self, kinds: dict[type, Callable[[], Any]]) -> None:
        self._kinds = kinds
        # By id; the native one as well, so that no other object gets its id.
        self._made: dict[int, tuple[Any, Any]] = {}

    def run(self) -> None:
        kinds, holders, kept = self._kinds.keys(), [], set[int]()
        for each in inherited.objects():
            held, is_class = gc.get_referents(each), issubclass(type(each), type)
            is_kept, dicts = _is_kept(each), [one for one in held if type(one) is dict]
            if is_class or is_kept:
                kept.update(map(id, dicts))
            if is_kept:
                # What the application holds of it as well stays one object.
                for one in chain(held, *(each.values() for each in dicts)):
                    if type(one) in kinds:
                        self._made[id(one)] = one, one
                continue
            if is_class:
                held = list(vars(each).values())
            if not kinds.isdisjoint(map(type, held)):
                holders.append(each)
        for each in holders:
            if id(each) not in kept:
                self._in(each)

    def _in(self, holder: Any) -> None:
        kind = type(holder)
        if kind is dict:
            self._in_dict(holder)
        elif kind is list:
            holder[:] = map(self._new, holder)
        elif kind is CellType:
            holder.cell_contents = self._new(holder.cell_contents)
        elif issubclass(kind, type):
            for name, value in list(vars(holder).items()):
                if (new := self._new(value)) is not value:
                    # Not in its dict: a class has a cache of attributes.
                    setattr(holder, name, new)
        else:
            self._in_object(holder)

    def _in_dict(self, holder: dict[Any, Any]) -> None:
        for key, value in list(holder.items()):
            if (new := self._new(value)) is not value:
                holder[key] = new

    def _in_object(self, holder: Any) -> None:
        with suppress(AttributeError):
            self._in_dict(object.__getattribute__(holder, "__dict__"))
        for kind in type(holder).__mro__:
            for member in list(vars(kind).values()):
                if type(member) is MemberDescriptorType:
                    with suppress(AttributeError, TypeError):  # it has no value, or is read-only
                        value = member.__get__(holder)
                        if (new := self._new(value)) is not value:
                            member.__set__(holder, new)

    def _new(self, value: Any) -> Any:
        """Return what *value* is exchanged for, itself if it is not."""
        if type(value) is BuiltinMethodType:  # a Condition keeps methods of its lock
            new = self._new(value.__self__)
            return value if new is value.__self__ else getattr(new, value.__name__)
        make = self._kinds.get(type(value))
        if make is not None and id(value) not in self._made:
            self._made[id(value)] = value, make() if _is_idle(value) else value
        return value if make is None else self._made[id(value)][1]


def _is_kept(holder: Any) -> bool:
    """Return whether it is gevent's, or of the standard library's globals."""
    # Not isinstance(): a proxy answers for another object.
    kind = type(holder)
    if kind is ModuleType:
        name = holder.__name__
        if keeps_originals_on_purpose(name):
            return True
    else:
        name = holder.__module__ if issubclass(kind, type) else kind.__module__
    return f"{name}.".startswith(KEPT)


def _is_idle(value: Any) -> bool:
    return value.empty() if hasattr(value, "empty") else repr(value).startswith("<unlocked")
