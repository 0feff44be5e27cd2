"""Poll descriptors without waiting and without a visit to the hub, unlike gevent's own poll."""

from collections.abc import Iterable
from functools import cache
from typing import Any, Protocol

from gevent.monkey import get_original


class HasDescriptor(Protocol):
    """A socket, or a connection of psycopg2."""

    def fileno(self) -> int: ...


def has(what: HasDescriptor, events: int) -> bool:
    """
    Return whether an event has occurred, without waiting.

    :param what: an object with a descriptor.
    :param events: a mask of ``select.POLLIN`` and so on, int.
    :returns: whether one of *events*, an error or a hang-up is present.
    """
    poll = _poll()()
    poll.register(what.fileno(), events)
    return bool(poll.poll(0))


def which(descriptors: Iterable[int], events: int) -> list[int]:
    """
    Return the descriptors at which an event has occurred, in one system call.

    :param descriptors: numbers of open descriptors, int.
    :param events: a mask of ``select.POLLIN`` and so on, int.
    """
    poll = _poll()()
    for descriptor in descriptors:
        poll.register(descriptor, events)
    return [descriptor for descriptor, _ in poll.poll(0)]


@cache
def _poll() -> Any:
    # Looked up at the first use: the arbiter imports this module before anything is patched.
    return get_original("select", "poll")
