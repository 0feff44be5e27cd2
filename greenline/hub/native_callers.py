"""
Tell whether Python code was called by native code that runs without the interpreter's lock.

Such code may hold a native lock, which knows no greenlets. lxml holds a parser's while it reads a
file-like object or calls a target, and that of an XPath while it calls an extension function: a
second greenlet that asked for the lock would block the thread for ever, since the first one could
not go on. Libraries in C also keep in the thread what belongs to the call in progress.

``PyGILState_Ensure()``, by which such code takes the interpreter's lock, counts these calls in the
state of the native thread. There is no function that returns the number, so it is read from memory.
"""

import ctypes
from collections.abc import Callable
from functools import partial

_SEARCHED = 64  # numbers at the beginning of the state, which is longer in all versions of Python
_CALLS = 3


def find_depth() -> Callable[[], int] | None:
    """
    Return a function that counts such calls, those in progress in this native thread.

    :returns: a function to call in this thread, which counts the event loop's own calls as well;
        None where the number is not found.
    """
    api = ctypes.pythonapi
    get_state = api.PyThreadState_Get
    get_state.restype = ctypes.c_void_p
    address: int = get_state()
    numbers = (ctypes.c_int * _SEARCHED).from_address(address)
    before = numbers[:]
    states = [api.PyGILState_Ensure() for _ in range(_CALLS)]
    inside = numbers[:]
    for state in states:
        api.PyGILState_Release(state)
    rows = enumerate(zip(before, inside, numbers[:], strict=True))
    found = [at for at, (first, then, last) in rows if (then - first, last) == (_CALLS, first)]
    if len(found) != 1:
        return None
    return partial(numbers.__getitem__, found[0])
