"""
Find out whether a waiting greenlet still handles an exception, or has swallowed it and goes on.

Clean-up waits as well: a rollback or an unlock sends something and waits for the answer. A second
exception in the middle would leave a transaction open, or a pool with one connection fewer.
Python does not show which exception a suspended greenlet handles, so this is concluded from two
facts: the exception still exists, and a waiting frame is inside an ``except`` or ``finally``
block, or an ``__exit__``, that an exception has entered.
"""

import dis
from collections.abc import Iterator
from types import FrameType
from weakref import ReferenceType

from greenlet import greenlet

COPY = dis.opmap["COPY"]


def frames(waiting: greenlet) -> Iterator[FrameType]:
    """Yield the frames of a suspended greenlet, the innermost first."""
    frame = waiting.gr_frame
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_unwinding(waiting: greenlet, thrown: "ReferenceType[BaseException]") -> bool:
    """
    Return whether *waiting* cleans up after the exception that was thrown into it.

    :param waiting: a suspended greenlet.
    :param thrown: a weak reference to the exception; a strong one would keep it alive.
    """
    error = thrown()
    # An exception that was swallowed is freed; one without a traceback was never raised.
    if error is None or error.__traceback__ is None:
        return False
    # The outermost frame that the exception has reached handles it, or has caught it.
    caught_in = error.__traceback__.tb_frame
    del error
    found = list(frames(waiting))
    if caught_in in found:
        return _handles(caught_in)
    # That frame has ended: another exception replaced this one, or a library keeps this one.
    return any(map(_handles, found))


def _handles(frame: FrameType) -> bool:
    """
    Return whether *frame* is in a block that an exception has entered.

    The answer comes from the compiler's table of exception handlers.
    """
    # The instructions of a handler are protected by the handler's own clean-up, ``COPY 3;
    # POP_EXCEPT; RERAISE 1``, which follows them, or by a handler in between. Instructions that
    # the compiler placed there but that run after the handler are protected by neither.
    code, at = frame.f_code, frame.f_lasti
    begins: dict[int, int] = {}
    protected_by = -1
    for entry in dis.Bytecode(code).exception_entries:  # type: ignore[attr-defined]
        if code.co_code[entry.target] == COPY:
            begins.setdefault(entry.target, entry.start)
        if entry.start <= at < entry.end:
            protected_by = entry.target
    return any(begin <= at < end and begin < protected_by <= end for end, begin in begins.items())
