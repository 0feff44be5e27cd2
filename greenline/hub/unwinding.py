"""
Find out whether a waiting greenlet cleans up, after an exception or without one.

Clean-up waits as well: a rollback or an unlock sends something and waits for the answer. An
exception in the middle would leave a transaction open, or a pool with one connection fewer.
Python does not show which exception a suspended greenlet handles, so this is concluded from two
facts: the exception still exists, and a waiting frame is inside an ``except`` or ``finally``
block, or an ``__exit__``, that an exception has entered. A ``finally`` block or an ``__exit__``
without an exception is known by its place in the source, which the compiler has translated twice.
"""

import dis
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any
from weakref import ReferenceType

from greenlet import greenlet

COPY, PUSH_EXC_INFO = dis.opmap["COPY"], dis.opmap["PUSH_EXC_INFO"]
WITH_EXCEPT_START = dis.opmap["WITH_EXCEPT_START"]


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


def is_releasing(waiting: greenlet) -> bool:
    """
    Return whether *waiting* is in a ``finally`` block or in an ``__exit__``, whatever led there.

    :param waiting: a suspended greenlet.
    """
    return any(_ends_a_block(frame.f_code, frame.f_lasti) for frame in frames(waiting))


@lru_cache(maxsize=1024)  # a thousand late requests wait at the same few places
def _ends_a_block(code: CodeType, at: int) -> bool:
    """Return whether the instruction at *at* is one of a ``finally`` block or calls __exit__()."""
    if code.co_code[at] == WITH_EXCEPT_START:
        return True
    # Both are in the code twice, with one position in the source: in the handler of exceptions, and
    # outside of that handler and of what it protects.
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    positions = list(code.co_positions())
    here = positions[at // 2]
    if here[0] is None:
        return False
    copies = [2 * place for place, position in enumerate(positions) if position == here]
    for end, begin in _handlers(code, entries).items():
        tried = [(entry.start, entry.end) for entry in entries if entry.target == begin]
        if not tried or code.co_code[begin] != PUSH_EXC_INFO:
            continue
        within = [copy for copy in copies if _is_within(copy, begin, end, entries)]
        # The call of __enter__() has the position of that of __exit__(), and is before the block.
        is_with = any(code.co_code[copy] == WITH_EXCEPT_START for copy in within)
        first = min(tried)[0] if is_with else 0
        outside = [
            copy
            for copy in copies
            if copy >= first
            and not begin <= copy < end
            and not any(start <= copy < stop for start, stop in tried)
        ]
        if outside and within and at in [*outside, *within]:
            return True
    return False


def _handles(frame: FrameType) -> bool:
    """
    Return whether *frame* is in a block that an exception has entered.

    The answer comes from the compiler's table of exception handlers.
    """
    entries = dis.Bytecode(frame.f_code).exception_entries  # type: ignore[attr-defined]
    handlers = _handlers(frame.f_code, entries)
    return any(_is_within(frame.f_lasti, begin, end, entries) for end, begin in handlers.items())


def _is_within(at: int, begin: int, end: int, entries: list[Any]) -> bool:
    """Return whether the instruction at *at* is one of the handler from *begin* to *end*."""
    # The instructions of a handler are protected by the handler's own clean-up, ``COPY 3;
    # POP_EXCEPT; RERAISE 1``, which follows them, or by a handler in between. Instructions that
    # the compiler placed there but that run after the handler are protected by neither.
    protected_by = -1
    for entry in entries:
        if entry.start <= at < entry.end:
            protected_by = entry.target
    return begin <= at < end and begin < protected_by <= end


def _handlers(code: CodeType, entries: list[Any]) -> dict[int, int]:
    """Return where each handler's own clean-up is: the end of the handler, and its begin."""
    begins: dict[int, int] = {}
    for entry in entries:
        if code.co_code[entry.target] == COPY:
            begins.setdefault(entry.target, entry.start)
    return begins
