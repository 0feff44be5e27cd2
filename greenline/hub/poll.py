"""Look at a descriptor without waiting: gevent's own poll would visit the hub."""

from collections.abc import Iterable
from functools import cache
from typing import Any, Protocol

from gevent.monkey import get_original


class HasDescriptor(Protocol):
    """A socket, or a connection of psycopg2."""

    def fileno(self) -> int: ...


def has(what: HasDescriptor, events: int) -> bool:
    """Return whether one of *events* (``select.POLLIN`` and so on) is there now."""
    poll = _poll()()
    poll.register(what.fileno(), events)
    return bool(poll.poll(0))


def which(descriptors: Iterable[int], events: int) -> list[int]:
    """Return those of the *descriptors* that have one of *events* now, in one system call."""
    poll = _poll()()
    for descriptor in descriptors:
        poll.register(descriptor, events)
    return [descriptor for descriptor, _ in poll.poll(0)]


@cache
def _poll() -> Any:
    """Looked up at the first use: this is imported in the master, before anything is patched."""
    return get_original("select", "poll")
