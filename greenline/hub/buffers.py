"""
Let greenlets share a buffered file of a pipe or a socket, as threads do.

A buffer of :mod:`io` refuses a call while its thread is inside: RuntimeError, "reentrant call". All
greenlets run in one thread, and one that waits for the pipe is inside. Others that call it wait for
their turn, in order; ``close()`` waits for the one that is inside.
"""

import io
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any, TypeVar

import gevent.fileobject
import gevent.subprocess

from greenline.hub.gevent_compat import file_objects_common, green_socket
from greenline.hub.thread_locks import Event

READS = "peek", "read", "read1", "readinto", "readinto1", "readline"
WRITES = "flush", "truncate", "write"
# As much as a pipe holds. The default is a page of memory, and each costs a system call.
PIPE_BYTES = 65_536

Kind = TypeVar("Kind", bound=type)

# The events of those that wait, by the id of the file and whether it is read.
_waiting: dict[tuple[int, bool], deque[Event]] = {}


def install() -> None:
    """Let gevent's files and sockets have such buffers; call it after gevent's patches."""
    kinds = BufferedReader, BufferedRWPair, BufferedWriter
    shared_io = SimpleNamespace(**{**vars(io), **{each.__name__: each for each in kinds}})
    modules: tuple[Any, ...] = file_objects_common, green_socket
    for module in modules:
        module.io = shared_io
    file: Any = file_objects_common.FileObjectBase
    file.__iter__ = _lines
    gevent.subprocess.FileObject = _of_program  # type: ignore[attr-defined]


def _of_program(fd: int, mode: str, buffering: int = -1, **more: Any) -> Any:
    """Return the file of a program's pipe."""
    # gevent's own function forgets the encoding of the first one in a process.
    if buffering == -1 and "r" in mode:
        buffering = PIPE_BYTES
    return gevent.fileobject.FileObject(fd, mode, buffering, **more)


def _lines(file: Any) -> Any:
    """Return what reads the lines of gevent's *file*, without a call in Python for each."""
    return file if file.closed else file.io


def _in_turn(method: Callable[..., Any], is_read: bool) -> Callable[..., Any]:
    # Not ahead of those that wait: one that calls it again and again would keep them out. A flush
    # is: close() calls it, and has had its turn.
    is_first = method.__name__ == "flush"

    @wraps(method)
    def call(self: Any, *args: Any) -> Any:
        if not _waiting or is_first or (id(self), is_read) not in _waiting:
            try:
                return method(self, *args)
            except RuntimeError as error:
                _raise_unless_reentrant(error)
            finally:
                if _waiting:
                    _wake_first((id(self), is_read))
        return _wait((id(self), is_read), partial(method, self, *args))

    return call


def _wait(key: tuple[int, bool], call: Callable[[], Any]) -> Any:
    queue = _waiting.setdefault(key, deque())
    mine = Event()
    queue.append(mine)
    try:
        while True:
            mine.wait()
            mine.clear()
            try:
                return call()
            except RuntimeError as error:
                _raise_unless_reentrant(error)
    finally:
        queue.remove(mine)
        if not queue:
            _waiting.pop(key, None)
        _wake_first(key)


def _wake_first(key: tuple[int, bool]) -> None:
    if queue := _waiting.get(key):
        queue[0].set()


def _raise_unless_reentrant(error: RuntimeError) -> None:
    if not str(error).startswith("reentrant call"):
        raise error


def _shared(kind: Kind) -> Kind:
    """Let the greenlets that call a method of *kind* wait for their turn."""
    is_reader = kind.__base__ is io.BufferedReader
    for name, method in vars(kind.__base__).items():
        if name in READS or name in WRITES or (name == "close" and name not in vars(kind)):
            setattr(kind, name, _in_turn(method, name in READS or is_reader))
    return kind


@_shared
class BufferedReader(io.BufferedReader):
    """One that is read."""

    __slots__ = ()


@_shared
class BufferedWriter(io.BufferedWriter):
    """One that is written."""

    __slots__ = ()


@_shared
class BufferedRWPair(io.BufferedRWPair):
    """One of a socket that is read and written."""

    __slots__ = ()

    def close(self) -> None:
        # Writes nothing but waits for its turn. That another greenlet has closed it is no error.
        with suppress(ValueError):
            self.write(b"")
        try:
            super().close()
        except RuntimeError as error:  # a reader is inside; the writer has closed the socket's file
            _raise_unless_reentrant(error)


os.register_at_fork(after_in_child=_waiting.clear)
