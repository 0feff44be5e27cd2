"""
Let pyzmq wait in the hub: a message is sent or received without blocking, and where that is not
possible yet the descriptor of its socket says when to try again. A proxy and the end of a context,
which wait for all of their sockets, run in native threads.
"""

import select
from collections.abc import Callable
from functools import partial, wraps
from math import inf
from time import monotonic
from types import ModuleType
from typing import Any

from gevent.select import poll
from zmq import backend
from zmq.constants import DONTWAIT, FD, POLLIN, POLLOUT, RCVTIMEO, SNDTIMEO
from zmq.error import Again

from greenline.hub.deadline import wait_in
from greenline.offload import threads
from greenline.offload.imports import after_import

# A socket is asked again after so long at the latest: another greenlet may have closed it, or may
# have taken the event from its descriptor.
MAX_WAIT_S = 1.0
NOW = int(DONTWAIT)  # as a flag of an enumeration it doubles the cost of a message
RELAYS = "device", "monitored_queue", "proxy", "proxy_steerable"

_poll_now = backend.zmq_poll


class _Socket(backend.Socket):
    __doc__ = backend.Socket.__doc__

    def send(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        return _try(self, SNDTIMEO, flags, partial(super().send, data, copy=copy, track=track))

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        return _try(self, RCVTIMEO, flags, partial(super().recv, copy=copy, track=track))

    if hasattr(backend.Socket, "recv_into"):  # since version 26.4

        def recv_into(self, buffer: Any, /, *, nbytes: int = 0, flags: int = 0) -> Any:
            return _try(self, RCVTIMEO, flags, partial(super().recv_into, buffer, nbytes=nbytes))


class _Context(backend.Context):
    __doc__ = backend.Context.__doc__

    def term(self) -> None:
        # libev ends the process where the hub runs between the end of a socket of zmq.green and
        # that of its watcher.
        if any(each.__module__.startswith("zmq.green") for each in type(self).__mro__):
            super().term()
        else:
            threads.run_to_the_end(super().term)


def _try(socket: Any, timeout: int, flags: int, attempt: Callable[..., Any]) -> Any:
    """
    Send or receive, and wait in the hub until it is possible.

    :param socket: of ZeroMQ.
    :param timeout: its option that ends the wait.
    :param flags: those of the call.
    :param attempt: sends or receives with the ``flags``.
    """
    if flags & NOW or not threads.can_wait():
        return attempt(flags=flags)
    flags |= NOW
    until_s = None
    while True:
        try:
            return attempt(flags=flags)  # it takes the events from the descriptor
        except Again:
            if until_s is None:
                until_s = _until_s(socket.get(timeout))
            left_s = until_s - monotonic()
            if left_s <= 0:
                raise
        _wait([(socket, POLLIN)], left_s)


def _until_s(left_ms: float) -> float:
    return inf if left_ms < 0 else monotonic() + left_ms / 1000


def _poll(sockets: Any, timeout: Any = -1) -> Any:
    if not sockets or not threads.can_wait():
        return _poll_now(sockets, timeout)
    found, until_s = _poll_now(sockets, 0), _until_s(timeout)
    while not found and (left_s := until_s - monotonic()) > 0:
        _wait(sockets, left_s)
        found = _poll_now(sockets, 0)
    return found


def _wait(sockets: Any, left_s: float) -> None:
    """Wait for sockets of ZeroMQ and for files, each with its events, which are ZeroMQ's."""
    waits: Any = poll()
    for socket, events in sockets:
        if isinstance(socket, backend.Socket):
            waits.register(socket.get(FD), select.POLLIN)
        else:
            reads, writes = bool(events & POLLIN), bool(events & POLLOUT)
            waits.register(socket, reads * select.POLLIN | writes * select.POLLOUT)
    wait_in(waits.poll, min(left_s, MAX_WAIT_S) * 1000)


def _patch_garbage(module: Any) -> None:
    # Under gevent's patches pyzmq's thread for messages that are not copied takes zmq.green, with
    # which no page would run in a native thread; sockets of this module wait in the hub as well.
    made = module.GarbageCollector

    def context(self: Any) -> Any:
        if self._context is None:
            self._context = module.zmq.Context()
        return self._context

    made.context = made.context.getter(context)


def patch(module: ModuleType) -> None:
    """Replace what blocks in the module ``zmq.backend``, before the rest of pyzmq imports it."""
    after_import("zmq.utils.garbage", _patch_garbage)
    vars(module).update(Socket=_Socket, Context=_Context, zmq_poll=wraps(_poll_now)(_poll))
    # Before version 26 it has "device", and since then "monitored_queue".
    for name in filter(partial(hasattr, module), RELAYS):
        # To the end: nothing else may use its sockets meanwhile.
        relay = getattr(module, name)
        setattr(module, name, wraps(relay)(partial(threads.run_to_the_end, relay)))
