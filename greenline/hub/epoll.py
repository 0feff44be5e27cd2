"""
Let ``select.epoll`` wait in the hub, where gevent removes it.

An epoll descriptor is readable while an event is ready, so the hub waits for that and the kernel's
object then says which event it is. What it does with edges and single shots stays its own.
"""

import select
import selectors
from time import monotonic
from typing import Any

import gevent
from gevent.monkey import get_original

from greenline.hub.cooperate import yield_to_hub
from greenline.hub.deadline import wait_for

READ_EVENT = 1  # libev's
CLOSED = "I/O operation on closed epoll object"


def install() -> None:
    """Give ``select`` and ``selectors`` their class again; call it after gevent's patches."""
    if hasattr(select, "EPOLLIN"):  # Linux
        setattr(select, "epoll", epoll)  # noqa: B010
        selector: Any = get_original("selectors", "EpollSelector")
        selector._selector_cls = epoll
        setattr(selectors, "EpollSelector", selector)  # noqa: B010


class epoll:  # noqa: N801
    """
    Poll descriptors by epoll; methods as those of :class:`select.epoll`.

    :param sizehint: ignored by Linux, int, default -1.
    :param flags: ignored by Python, int, default 0.
    """

    __module__ = "select"

    def __init__(self, sizehint: int = -1, flags: int = 0) -> None:
        self._hold(_native()(sizehint, flags))

    @classmethod
    def fromfd(cls, fd: int) -> "epoll":
        """Return an object of a descriptor that exists."""
        self = cls.__new__(cls)
        self._hold(_native().fromfd(fd))
        return self

    def _hold(self, native: Any) -> None:
        self.native = native
        self.register, self.modify = native.register, native.modify
        self.unregister, self.fileno = native.unregister, native.fileno
        self._waiting: dict[Any, Any] = {}  # the hubs of the watchers
        self._was_ready = False

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return bool(self.native.closed)

    def close(self) -> None:
        """Close the descriptor; a greenlet that waits for it gets a ValueError."""
        native, waiting = self.native, self._waiting
        if not waiting:
            native.close()
            return
        closed = _native()()
        closed.close()
        self._hold(closed)
        # The hub stops to wait for the descriptor before its number may be used again.
        hub = next(iter(waiting.values()))
        hub.cancel_waits_close_and_then(tuple(waiting), ValueError(CLOSED), native.close)

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        """
        Return descriptors and their events.

        :param timeout: seconds to wait, float; None or one below 0 is no limit. Default None.
        :param maxevents: how many to return at most, int; -1 is no limit. Default -1.
        """
        until_s = None if timeout is None or timeout < 0 else monotonic() + timeout
        if self._was_ready or timeout == 0:
            yield_to_hub()  # a loop that never waits would keep the others from running
        self._was_ready = True
        while not (found := self.native.poll(0, maxevents)):
            self._was_ready = False
            left_s = None if until_s is None else until_s - monotonic()
            if left_s is not None and left_s <= 0:
                break
            self._wait(left_s)
        return list(found)

    def _wait(self, left_s: float | None) -> None:
        hub: Any = gevent.get_hub()
        with hub.loop.io(self.fileno(), READ_EVENT) as watcher:
            waiting = self._waiting
            waiting[watcher] = hub
            try:
                with gevent.Timeout(left_s, False):  # type: ignore[arg-type]
                    wait_for(watcher)
            finally:
                del waiting[watcher]

    def __enter__(self) -> "epoll":
        self.native.__enter__()  # which refuses a closed one
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _native() -> Any:
    # Looked up at each use: greenline.hub.patching exchanges an original among the globals.
    return get_original("select", "epoll")
