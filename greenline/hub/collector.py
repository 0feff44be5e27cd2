"""
Let no garbage be collected in the hub while one that was interrupted waits for its turn.

It may hold a lock that a destructor needs, and the hub cannot wait for it; a request can. Without a
collection while requests run there would be none for seconds, and what is only garbage may be in
the way of the one that waits: a connection that holds its lock in a database.
"""

import gc
import os
from typing import Any

waiting: set[Any] = set()  # greenlets that were interrupted
is_suspended = False  # the collector, by this module


def suspend() -> None:
    """Suspend the collector if one waits; call it before a switch to the hub."""
    global is_suspended
    if waiting and gc.isenabled():
        gc.disable()
        is_suspended = True


def resume() -> None:
    """Let the collector go on; call it in a greenlet, where a destructor may wait."""
    global is_suspended
    if is_suspended:
        is_suspended = False
        gc.enable()


def _after_fork_in_child() -> None:
    waiting.clear()
    resume()


os.register_at_fork(after_in_child=_after_fork_in_child)
