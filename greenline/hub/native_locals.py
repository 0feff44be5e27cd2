"""
Give each greenlet values of its own in the thread-locals that were made before the patching.

A log formatter or a hook in gunicorn's configuration makes the arbiter import modules of the
application, before the worker patches ``threading.local``. All requests would share what these
modules keep per thread: transactions, sessions, the current user. CPython keeps a thread's values
in a dict of the thread, by thread-local: they are exchanged when greenlets switch. That costs a
microsecond or two, and is done only where such a module was imported.
"""

import ctypes
from typing import Any

import gevent.monkey
import greenlet

from greenline.errors import LatePatching
from greenline.hub import inherited
from greenline.hub.namespaces import namespaces
from greenline.hub.patching import keeps_originals_on_purpose

OURS = "greenline."
PREFIX = "thread.local."  # of CPython's keys, before the address
ATTRIBUTE = "_greenline_native_locals"  # of a greenlet that is not running


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
    of_thread, native = dict_of_thread(), _native()
    probe = native()
    probe.value = 1
    if of_thread.pop(_key(probe), None) is None or hasattr(probe, "value"):
        raise LatePatching("this Python keeps the values of thread-locals in an unknown place")
    # gevent's hubs belong to threads, and so does what greenline keeps in native thread-locals.
    kept = {
        _key(each)
        for each in inherited.objects()
        if issubclass(type(each), native) and type(each).__module__.startswith("gevent.")
    }
    kept |= {
        _key(value)
        for name, namespace in namespaces()
        if name.startswith(OURS)
        for value in list(namespace.values())
    }

    def exchange(_event: str, greenlets: tuple[Any, Any]) -> None:
        origin, target = greenlets
        mine = {
            key: value
            for key, value in of_thread.items()
            if isinstance(key, str) and key.startswith(PREFIX) and key not in kept
        }
        if mine:
            for key in mine:
                del of_thread[key]
            origin.__dict__[ATTRIBUTE] = mine
        if theirs := target.__dict__.pop(ATTRIBUTE, None):
            of_thread.update(theirs)

    greenlet.settrace(exchange)


def _native() -> Any:
    return gevent.monkey.get_original("threading", "local")


def _key(local: Any) -> str:
    return f"{PREFIX}{id(local):#x}"


def dict_of_thread() -> dict[Any, Any]:
    """Return what the interpreter keeps for this native thread, by names of its own."""
    get = ctypes.pythonapi.PyThreadState_GetDict
    get.restype = ctypes.py_object
    found: dict[Any, Any] = get()
    # The reference is a borrowed one, and ctypes has taken it over.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))
    return found
