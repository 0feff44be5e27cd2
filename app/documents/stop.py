"""A clean stop by Ctrl-C or SIGTERM: what is on its way is written, and nothing more begun."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop(Event):
    """
    Set by a signal, or by what cannot go on.

    ``signal`` is its number, and ``followed`` says that it was the end of following, which has no
    other one.
    """

    signal: int | None = None
    followed = False


@contextmanager
def stoppable(*, raises: bool = False) -> Iterator[Stop]:
    """
    Take the signals for the length of the block; a second one ends the process at once.

    :param raises: raise KeyboardInterrupt instead of setting the event: reading a pipe cannot wait
        for one. Default False.
    """
    stop = Stop()

    def receive(number: int, _: FrameType | None) -> None:
        stop.signal = number
        # What is killed goes on as well: a second signal need not wait for anything.
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        if raises:
            raise KeyboardInterrupt
        # The main thread may hold the event's lock at this moment, and would wait for itself.
        Thread(target=stop.set, daemon=True).start()

    before = {number: signal.signal(number, receive) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
