"""
Let a call in an offload thread be one of the greenlet that made it, as threads know no difference.

Such a call has its caller's ``threading.get_ident()`` and ``current_thread()``: an ``RLock`` that
the caller holds lets it in. It has the caller's values of thread-locals, such as a session or a
transaction, and those that it adds are the caller's as well.
"""

import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from weakref import ref

from gevent.monkey import get_original
from greenlet import getcurrent

from greenline.hub.gevent_compat import (
    LOCAL_PREFIX,
    GreenletDeleted,
    LocalDicts,
    green_thread,
    green_threading,
)

native_ident: Callable[[], int] = get_original("_thread", "get_ident")
_idents: dict[int, int] = {}  # by the id of an offload thread's greenlet, that of its caller
_callers: dict[int, "Caller"] = {}  # likewise
_known: dict[str, Any] = {}  # by the key of a thread-local, a reference to all its values


def get_ident(gr: Any = None) -> int:
    """Return what ``threading.get_ident`` returns after the patching; *gr* is gevent's."""
    try:
        ident = id(getcurrent() if gr is None else gr)
    except RuntimeError:  # at the end of the interpreter
        ident = id(None)
    return _idents.get(ident, ident)


def moved() -> Iterator[tuple[int, Any, int]]:
    """
    Yield of each request that runs in a native thread its ident, its greenlet there, and the ident
    of that thread.
    """
    for each in list(_callers.values()):
        if not each._has_left and (thread := each._thread) is not None:
            yield each._ident, thread, each._native


def install() -> None:
    """Let gevent patch with this ``get_ident``; call it before the patching."""
    green_thread.get_ident = get_ident
    green_threading.get_ident = green_threading._get_ident = get_ident


class Caller:
    """The greenlet that makes a call, and waits meanwhile."""

    __slots__ = (
        "_added", "_has_left", "_ident", "_native", "_number", "_shared", "_thread", "greenlet",
    )  # fmt: skip

    def __init__(self) -> None:
        threading.current_thread()  # one that is made in the thread would end with that
        greenlet: Any = getcurrent()
        self.greenlet = greenlet  # until it goes on: its frames refer to this object
        self._ident = get_ident()
        self._has_left = False
        self._number = self._native = 0
        self._thread: Any = None
        self._added: list[tuple[str, Any, Any, Any]] | None = None
        # Here, and not in the thread: what that does after it has woken up takes longer.
        self._shared: list[tuple[Any, Any]] = []
        mine = id(greenlet)
        for key, local in list(greenlet.__dict__.items()):
            values = (found := _known.get(key)) and found()
            if values is None and key.startswith(LOCAL_PREFIX):
                values = _values(key, local)
            if values and mine in values:
                self._shared.append((values, values[mine]))
        # A request in a native thread calls another one: what it shares itself it has not made, and
        # its greenlet knows nothing of that.
        if (outer := _callers.get(mine)) is not None:
            shared = [values for values, _ in outer._shared if mine in values]
            self._shared += [(values, values[mine]) for values in shared]

    def begin(self, thread: Any, is_request: bool = False) -> None:
        """
        Share what the caller has, before the call.

        :param thread: the greenlet of the native thread, which calls this.
        :param is_request: whether the call is all of a request, or of a task. Default False.
        """
        self._number = number = id(thread)
        if is_request:
            self._thread, self._native = thread, native_ident()
        _idents[number] = self._ident
        _callers[number] = self
        if not self._has_left:
            for values, mine in self._shared:
                values[number] = mine

    def end(self, thread: Any) -> None:
        """Take what the call has added, after the call; the parameter is that of :meth:`begin`."""
        self._unshare()
        self._shared, self._thread = [], None
        del _idents[self._number], _callers[self._number]
        if thread.__dict__:
            self._added = []
            for key in [key for key in thread.__dict__ if key.startswith(LOCAL_PREFIX)]:
                local = thread.__dict__.pop(key)
                if (values := _values(key, local)) and self._number in values:
                    self._added.append((key, local(), values, values.pop(self._number)))

    def resume(self) -> None:
        """Adopt what the call has added; called in the greenlet after the call."""
        greenlet, self.greenlet = self.greenlet, None
        while self._added:
            key, local, values, added = self._added.pop()
            values[id(greenlet)] = added
            greenlet.__dict__[key] = ref(local)
            if rawlink := getattr(greenlet, "rawlink", None):
                rawlink(GreenletDeleted(id(greenlet), ref(values)))

    def leave(self) -> None:
        """Go on before the end of the call, in the greenlet: its thread-locals are its own."""
        # The call keeps its id: it could not release an RLock otherwise. It keeps the greenlet as
        # well, because the next one could have the same id, and enter that lock.
        self._has_left = True
        self._unshare()

    def forget(self) -> None:
        """Let go of a greenlet that has left, after the call; called in the hub."""
        self.greenlet = None

    def _unshare(self) -> None:
        for values, _ in self._shared:
            values.pop(self._number, None)


def _values(key: str, local: Any) -> Any:
    """Return the values of a thread-local by the id of a greenlet, None if it is gone."""
    found = _known.get(key)
    if found is None or (values := found()) is None:
        if (self := local()) is None:
            return None
        # gevent's compiled class has no other way to them.
        values = next(each for each in gc.get_referents(self) if type(each) is LocalDicts)
        _known[key] = ref(values, partial(_forget, key))
    return values


def _forget(key: str, found: Any) -> None:
    if _known.get(key) is found:
        del _known[key]
