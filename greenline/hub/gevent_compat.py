"""
The undocumented names of gevent that the runtime uses, checked once, at import.

A version of gevent without one of them, or with another signature, ends the process with one line
that says which version it is and which ones are supported.
"""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any, NoReturn

import gevent

GEVENT_SUPPORTED = ">=25.5.1,<27"


def _refuse(reason: str) -> NoReturn:
    sys.exit(
        f"greenline: gevent {gevent.__version__} is not supported ({reason}): "
        f"install gevent{GEVENT_SUPPORTED}"
    )


try:
    from gevent import _fileobjectcommon as file_objects_common
    from gevent import _fileobjectposix as file_objects  # type: ignore[attr-defined]
    from gevent import _socket3 as green_socket  # type: ignore[attr-defined]
    from gevent import thread as green_thread  # type: ignore[attr-defined]
    from gevent import threading as green_threading
    from gevent._hub_local import get_hub_if_exists, set_hub, set_loop
    from gevent.hub import Hub
    from gevent.libev.corecext import loop as _Loop
    from gevent.local import _greenlet_deleted as GreenletDeleted  # type: ignore[attr-defined]
    from gevent.local import _wrefdict as LocalDicts  # type: ignore[attr-defined]
    from gevent.monkey import _patch_thread_common  # type: ignore[attr-defined]
    from gevent.os import _watch_child as watch_child  # type: ignore[attr-defined]
    from gevent.os import _watched_children as watched_children  # type: ignore[attr-defined]
    from gevent.socket import socket as _Socket
    from gevent.threading import _DummyThread as DummyThread  # type: ignore[import-not-found]
except ImportError as error:
    _refuse(str(error))

try:
    from gevent.os import _closing_fd_to_event as closing_descriptors  # type: ignore[attr-defined]
except ImportError:  # before 25.8: its os.close closes at once
    closing_descriptors = {}

LOCAL_PREFIX = "_gevent_local_localimpl_"  # of a greenlet's attributes that name its thread-locals

# What is called or overridden, with the parameters that it has in the supported versions; None for
# what is no function.
MEMBERS: tuple[tuple[Any, str, str | None], ...] = (
    (gevent.os, "_watch_child", "pid callback loop ref"),
    (green_thread, "Greenlet", None),
    (green_thread, "LockType", None),
    (green_thread, "allocate_lock", None),
    (green_thread, "get_ident", "gr"),
    (green_threading, "Lock", None),
    (green_threading, "_allocate_lock", None),
    (green_threading, "_get_ident", "gr"),
    (green_threading, "_set_sentinel", None),
    (green_threading, "allocate_lock", None),
    (DummyThread, "__init__", "self"),
    (Thread, "_set_native_id", "self"),
    (Hub, "wait", "self watcher"),
    (Hub, "cancel_waits_close_and_then", "self watchers exc_kind then then_args"),
    (_Socket, "_wait", "socket watcher timeout_exc"),
    (_Socket, "_drop_events_and_close", None),
    (file_objects_common, "io", None),
    (file_objects_common.FileObjectBase, "__iter__", "self"),
    (file_objects_common.FileObjectBase, "io", None),
    (green_socket, "io", None),
    (file_objects, "wait_on_watcher", None),
    (file_objects.GreenFileDescriptorIO, "close", "self"),
    (_Socket, "_sock", None),
    (_Socket, "_read_event", None),
    (_Socket, "_write_event", None),
    (_Loop, "_callbacks", None),
    (_Loop, "activecnt", None),
    (_Loop, "closing_fd", None),
    (_Loop, "destroy", None),
    (_Loop, "iteration", None),
    (_Loop, "pendingcnt", None),
)


def check(members: tuple[tuple[Any, str, str | None], ...] = MEMBERS) -> None:
    """
    Prove that gevent's classes and modules have the members that the runtime knows.

    :param members: the owner, the name and the parameters of each.
    :raises SystemExit: one is missing or has other parameters; the one line says which, and which
        versions are supported.
    """
    for owner, name, expected in members:
        if not hasattr(owner, name):
            _refuse(f"{owner.__name__}.{name} is gone")
        if expected is None:
            continue
        parameters = inspect.signature(getattr(owner, name)).parameters
        # A monitoring agent may have wrapped it in a function of any arguments.
        is_wrapped = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
        if (found := " ".join(parameters)) != expected and not is_wrapped:
            _refuse(f"{owner.__name__}.{name}({found.replace(' ', ', ')})")


def has_ended(timeout: gevent.Timeout) -> bool:
    """Return whether the ``with`` block of *timeout*, or its ``close()``, is behind us."""
    return not hasattr(getattr(timeout, "timer", None), "loop")


@contextmanager
def dead_proxies_allowed() -> Iterator[None]:
    """Let gevent patch threading in the block while a ``weakref.proxy`` has outlived its object."""
    # gevent asks each object in memory isinstance(), which raises ReferenceError there. A
    # MongoClient that was used before the fork leaves such proxies. A global goes before a builtin.
    _patch_thread_common.isinstance = lambda each, kind: issubclass(type(each), kind)
    try:
        yield
    finally:
        del _patch_thread_common.isinstance


def check_subprocess() -> None:
    """
    Prove the same of :mod:`gevent.subprocess`.

    :raises SystemExit: as :func:`check`.
    """
    # Not at the import: gevent.subprocess keeps the functions of ``os`` that it finds, and in the
    # arbiter they are not patched.
    from gevent import subprocess

    check(
        (
            (subprocess, "FileObject", None),
            (subprocess, "fork", None),
            (subprocess.Popen, "_execute_child", None),
            (subprocess.Popen, "_on_child", "self watcher"),
            (subprocess.Popen, "_remove_nonblock_flag", "self fd"),
        )
    )


check()
