"""Handlers whose work is interrupted, and noted where it blocks in C code."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import gevent

from greenline.hub import slices as module
from greenline.hub.handlers import Handlers
from greenline.hub.slices import Slices
from greenline.hub.watchdog import RECORDS, Watchdog


@contextmanager
def interrupted_after(interval_s: float, *note: Callable[..., object]) -> Iterator[Handlers]:
    made = Handlers()
    slices = Slices(made.turns, interval_s, *note)
    slices.start()
    watchdog = Watchdog(interval_s * RECORDS, progress=count().__next__, interrupt=slices.interrupt)
    watchdog.start()
    yield made
    watchdog.stop()
    slices.stop()
    signal.signal(module.SIGNAL, signal.SIG_DFL)
    made.retire_idle(made.idle())
    gevent.sleep(0)
