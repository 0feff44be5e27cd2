"""
Give each greenlet values of its own in the thread-locals that were made before the patching.

A log formatter or a hook in gunicorn's configuration makes the arbiter import modules of the
application, before the worker patches ``threading.local``. All requests would share what these
modules keep per thread: transactions, sessions, the current user. CPython finds a thread's values
by what the thread's state has: that is exchanged when greenlets switch. It costs a microsecond or
two, and is done only where such a module was imported.
"""

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Any

import gevent.monkey
import greenlet

from greenline.errors import LatePatching
from greenline.hub import inherited
from greenline.hub.namespaces import namespaces
from greenline.hub.patching import keeps_originals_on_purpose

OURS = "greenline."
PREFIX = "thread.local."  # of CPython's names, before the address
ATTRIBUTE = "_greenline_native_locals"  # of a greenlet
STATE_WORDS = 100  # of the state of a thread, among which the key is
ELSEWHERE = "this Python keeps the values of thread-locals in an unknown place"

Exchange = Callable[[str, tuple[Any, Any]], None]


def holders() -> list[str]:
    """Return the modules that hold the unpatched class, one built on it, or an instance."""
    native = _native()
    return sorted(
        {
            name
            for name, namespace in namespaces()
            if not name.startswith(OURS) and not keeps_originals_on_purpose(name)
            for value in list(namespace.values())
            # Not isinstance(): a proxy may answer for another object, or have outlived its own.
            if issubclass(value if issubclass(type(value), type) else type(value), native)
        }
    )


def install() -> None:
    """
    Exchange the values of native thread-locals at each switch of this thread's greenlets.

    :raises LatePatching: this Python keeps them elsewhere.
    """
    native = _native()
    # gevent's hubs belong to threads, and so does what greenline keeps in native thread-locals.
    kept = [
        each
        for each in inherited.objects()
        if issubclass(type(each), native) and type(each).__module__.startswith("gevent.")
    ]
    kept += [
        value
        for name, namespace in namespaces()
        if name.startswith(OURS)
        for value in list(namespace.values())
        if issubclass(type(value), native)
    ]
    exchange = _exchange_keys if sys.version_info >= (3, 13) else _exchange_values
    greenlet.settrace(exchange(native(), kept))


def _exchange_values(probe: Any, kept: list[Any]) -> Exchange:
    """Return what exchanges the values, which a dict of the thread has until Python 3.12."""
    of_thread = dict_of_thread()
    probe.value = 1
    if of_thread.pop(_name(probe), None) is None or hasattr(probe, "value"):
        raise LatePatching(ELSEWHERE)
    names = set(map(_name, kept))

    def exchange(_event: str, greenlets: tuple[Any, Any]) -> None:
        origin, target = greenlets
        mine = {
            key: value
            for key, value in of_thread.items()
            if isinstance(key, str) and key.startswith(PREFIX) and key not in names
        }
        if mine:
            for key in mine:
                del of_thread[key]
            origin.__dict__[ATTRIBUTE] = mine
        if theirs := target.__dict__.pop(ATTRIBUTE, None):
            of_thread.update(theirs)

    return exchange


def _exchange_keys(probe: Any, kept: list[Any]) -> Exchange:
    """
    Return what exchanges the key under which each thread-local has the thread's values.

    From Python 3.13 on the thread's state has the key, and next to it a sentinel: at its end the
    thread-locals forget what they have under the key.
    """
    found = [key for each in gc.get_referents(probe) if type(each) is dict for key in each]
    words = (ctypes.c_void_p * STATE_WORDS).from_address(_state_of_thread())
    places = [place for place, word in enumerate(words) if word in map(id, found)]
    if len(found) != 1 or len(places) != 1:
        raise LatePatching(ELSEWHERE)
    (key,), (place,) = found, places
    pair = (ctypes.c_void_p * 2).from_buffer(words, place * ctypes.sizeof(ctypes.c_void_p))
    dicts = [
        (values, each.__dict__)
        for each in kept
        if each.__dict__ is not None  # the thread-local has values from now on
        for values in gc.get_referents(each)
        if type(values) is dict and key in values
    ]
    # What the current greenlet has set stays its own.
    _, sentinel = (ctypes.py_object * 2).from_buffer(pair)
    greenlet.getcurrent().__dict__[ATTRIBUTE] = _Key(key, sentinel, dicts)
    # The state has a reference of its own to each of the two.
    by_address = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
    take, drop = (by_address((name, ctypes.pythonapi)) for name in ("Py_IncRef", "Py_DecRef"))

    def exchange(_event: str, greenlets: tuple[Any, Any]) -> None:
        attributes = greenlets[1].__dict__
        own = attributes.get(ATTRIBUTE)
        if own is None:
            own = attributes[ATTRIBUTE] = _Key(object(), _Sentinel(), dicts)
        for place, each in enumerate((own.key, own.sentinel)):
            take(id(each))
            last, pair[place] = pair[place], id(each)
            drop(last)

    return exchange


class _Key:
    """
    A greenlet's key and sentinel.

    :param key: the one of the current greenlet, or a new object.
    :param sentinel: likewise.
    :param dicts: of the thread-locals whose values belong to the thread, each with these values.
    """

    def __init__(
        self, key: object, sentinel: object, dicts: list[tuple[dict[Any, Any], dict[str, Any]]]
    ) -> None:
        self.key, self.sentinel = key, sentinel
        self._dicts = dicts
        for values, of_thread in dicts:
            values[key] = of_thread

    def __del__(self) -> None:
        for values, _ in self._dicts:
            values.pop(self.key, None)


class _Sentinel:
    """Can be referred to weakly, as a thread-local does."""


def _native() -> Any:
    return gevent.monkey.get_original("threading", "local")


def _name(local: Any) -> str:
    return f"{PREFIX}{id(local):#x}"


def dict_of_thread() -> dict[Any, Any]:
    """Return what the interpreter keeps for this native thread, by names of its own."""
    get = ctypes.pythonapi.PyThreadState_GetDict
    get.restype = ctypes.py_object
    found: dict[Any, Any] = get()
    # The reference is a borrowed one, and ctypes has taken it over.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))
    return found


def _state_of_thread() -> int:
    """Return the address of what the interpreter keeps for this native thread."""
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))
    return int(get())
