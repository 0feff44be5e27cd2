"""
Prove that the standard library is patched and that psycopg2 yields.

A module that imported an unpatched original earlier blocks every greenlet of the worker. Such
originals are found by identity in globals, in attributes of classes and in defaults of functions,
and reported by name. An original in an instance or a container is not found.
"""

import re
import select
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import gevent.monkey

from greenline.errors import LatePatching
from greenline.hub.namespaces import namespaces

# The functions and classes that block the hub unless they are patched, by module.
BLOCKING = {
    "_thread": ("RLock", "allocate_lock", "start_new_thread"),
    "queue": ("SimpleQueue",),
    "select": ("poll", "select", *(["epoll"] if hasattr(select, "EPOLLIN") else [])),
    "socket": ("SocketType", "create_connection", "getaddrinfo", "gethostbyname", "socket"),
    "ssl": ("SSLSocket",),
    "subprocess": ("Popen",),
    "threading": ("Lock", "RLock", "local"),
    "time": ("sleep",),
}


# Of ddtrace, debuggers and eventlet: their own native threads need these.
ON_PURPOSE = re.compile(r"unpatched|^_?pydev|^__original_module_")


def require_hook() -> None:
    """
    Prove that psycopg2 yields while it waits.

    :raises LatePatching: psycopg2 has no wait callback.
    """
    from psycopg2.extensions import get_wait_callback

    if get_wait_callback() is None:
        raise LatePatching(
            "psycopg2 has no wait callback: every query would block the whole worker; "
            "call greenline.patch.hook_psycopg2() first"
        )


def require_patched() -> None:
    """
    Prove that the standard library is patched and that no module kept an original.

    :raises LatePatching: a module is not patched, or was imported too early; the text names it.
    """
    missing = [name for name in BLOCKING if not gevent.monkey.is_module_patched(name)]
    if missing:
        raise LatePatching(
            f"the standard library is not patched ({', '.join(missing)}): run gunicorn with "
            "worker_class gevent, and without preload_app or a threaded worker"
        )
    early = sorted(set(imported_early()))
    if early:
        raise LatePatching(
            "imported before the standard library was patched, so they would block the whole "
            f"worker: {'; '.join(early)}. Import them in the application, not in gunicorn.conf.py "
            "or in what it imports"
        )


def imported_early() -> Iterator[str]:
    """Yield ``module (name from origin)`` for each unpatched original that a module holds."""
    originals, local = dict(_originals()), _original("threading", "local")
    lock_types: tuple[Any, ...] = (
        type(_original("_thread", "allocate_lock")()),
        _original("_thread", "RLock"),
    )
    for module, namespace in _modules():
        for name, value in _held_by(module, namespace):
            if id(value) in originals:
                yield f"{module} ({name} from {originals[id(value)][0]})"
            # Not isinstance(): a weakref.proxy may have outlived its object. The values of native
            # thread-locals are exchanged (greenline.hub.native_locals).
            elif issubclass(kind := type(value), type) and any(
                id(base) in originals and base is not local for base in value.__mro__
            ):
                yield f"{module} ({name} is built on an unpatched class)"
            elif issubclass(kind, lock_types):
                yield f"{module} ({name} is a lock made before patching)"


def _held_by(module: str, namespace: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the module's globals, its classes' attributes, and its functions' defaults."""
    for name, value in list(namespace.items()):
        yield name, value
        if not issubclass(type(value), (type, FunctionType)):
            continue
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, type):
            yield from ((f"{name}.{inner}", held) for inner, held in list(vars(value).items()))
        else:
            yield from ((f"{name}'s default", held) for held in value.__defaults__ or ())


def rebind() -> None:
    """Give the modules that hold an unpatched original in a global the patched one."""
    originals = dict(_originals())
    for _, namespace in _modules():
        for name, value in list(namespace.items()):
            if found := originals.get(id(value)):
                namespace[name] = getattr(sys.modules[found[0]], found[1])


def _modules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the globals of the modules that should hold no unpatched original."""
    for module, namespace in namespaces():
        if not keeps_originals_on_purpose(module):
            yield module, namespace


def _originals() -> Iterator[tuple[int, tuple[str, str]]]:
    for module_name, names in BLOCKING.items():
        for name in names:
            original = _original(module_name, name)
            # gevent does not replace every name on every platform: such a name is harmless.
            if original is not getattr(sys.modules[module_name], name, None):
                yield id(original), (module_name, name)


def _original(module_name: str, name: str) -> Any:
    return gevent.monkey.get_original(module_name, name)


def keeps_originals_on_purpose(module_name: str) -> bool:
    """Return whether the module is of gevent, the standard library, a debugger or a tracer."""
    package = module_name.partition(".")[0]
    return (
        package in sys.stdlib_module_names
        or package in {"gevent", "greenlet"}
        or bool(ON_PURPOSE.search(module_name))
    )
