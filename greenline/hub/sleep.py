"""
Let greenlets whose sleep has ended run in turns with the clients' requests.

gevent resumes each of them from its timer, and the loop looks at no socket before all timers that
have expired are through. Where two hundred requests sleep for the same time, the next two hundred
are all read after that, sleep together again, and the processor is idle meanwhile.
"""

from collections import deque
from time import monotonic
from typing import Any

import gevent
from gevent import time as green_time
from gevent.hub import Waiter
from gevent.monkey import get_original

from greenline.hub.cooperate import Rounds
from greenline.hub.handlers import end_wait

SLICE_S = 0.001  # so long they run between two looks at the sockets

_local = get_original("threading", "local")()  # each native thread has a hub of its own


class _Awake:
    """The greenlets of a hub whose sleep has ended, in this order."""

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self._waiters: deque[Waiter[None]] = deque()
        self._turn = Rounds(hub.loop)

    def add(self, waiter: "Waiter[None]") -> None:
        """Resume a greenlet in its turn; called in the hub."""
        self._waiters.append(waiter)
        if not self._turn.active:
            self._turn.start(self._resume)

    def _resume(self) -> None:
        waiters, until_s = self._waiters, monotonic() + SLICE_S
        while waiters:
            waiters.popleft().switch(None)
            if monotonic() >= until_s:
                break
        if not waiters:
            self._turn.stop()


def sleep(seconds: float = 0, ref: bool = True) -> None:
    """
    Let other greenlets run for some time, as ``time.sleep``.

    :param seconds: how long, float. Default 0: once.
    :param ref: whether gevent's hub waits for this greenlet, bool. Default True.
    """
    if seconds <= 0:
        gevent.sleep(seconds, ref)
        return
    hub = gevent.get_hub()
    loop: Any = hub.loop
    awake: _Awake | None = getattr(_local, "awake", None)
    if awake is None or awake.hub is not hub:  # another one after a fork
        awake = _local.awake = _Awake(hub)
    waiter: Waiter[None] = Waiter(hub)
    with loop.timer(seconds, ref=ref) as timer:
        loop.update_now()
        timer.start(awake.add, waiter)
        waiter.get()
    end_wait()


def install() -> None:
    """Let gevent patch ``time`` with this ``sleep``; call it before the patching."""
    green_time.sleep = sleep
