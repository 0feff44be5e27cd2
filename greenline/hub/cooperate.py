"""
Let the others run, those too that wait for a socket.

1. After ``sleep(0)`` gevent looks at the sockets every fiftieth time only, and not before 5 ms are
   over: with a millisecond of work each time, the others would wait for fifty.
2. So now and then a turn ends with a round of the loop: in each an idle watcher is called once,
   whatever else there is when its priority is the highest. It costs a system call more.
"""

from time import monotonic
from typing import Any

import gevent
from gevent.hub import Waiter

ROUND_S = 0.0002  # what a round costs is a hundredth of it
FIRST = 2  # libev's highest priority

_round_s = 0.0  # when the last one was over


def yield_to_hub() -> None:
    """Go on when the others had their turn."""
    global _round_s
    if monotonic() - _round_s < ROUND_S:
        gevent.sleep(0)
    else:
        gevent.idle(FIRST)
        _round_s = monotonic()


def wake(waiter: "Waiter[Any]") -> None:
    """Let the greenlet that waits in *waiter* go on, in its own thread if this is another one."""
    loop = waiter.hub.loop
    if waiter.hub is gevent.get_hub():
        loop.run_callback(waiter.switch, None)
    else:
        loop.run_callback_threadsafe(waiter.switch, None)
