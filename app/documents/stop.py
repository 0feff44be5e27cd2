"""Stop cleanly on Ctrl-C or SIGTERM: batches in progress are written, and no more are begun."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop(Event):
    """
    An event that a signal or a fatal error sets.

    ``signal`` is the number of the signal. ``followed`` says that the signal ended ``--follow``,
    for which it is the normal end.
    """

    signal: int | None = None
    followed = False


@contextmanager
def stoppable(*, raises: bool = False) -> Iterator[Stop]:
    """
    Handle the signals for the length of a ``with`` block; a second one ends the process at once.

    :param raises: raise KeyboardInterrupt instead of setting the event, because a read from a pipe
        does not notice an event. Default False.
    """
    stop = Stop()

    def receive(number: int, _: FrameType | None) -> None:
        stop.signal = number
        # A second signal may kill the process: a copy continues from its checkpoint all the same.
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        if raises:
            raise KeyboardInterrupt
        # In another thread: the main thread, interrupted here, may hold the event's lock.
        Thread(target=stop.set, daemon=True).start()

    before = {number: signal.signal(number, receive) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
