"""
Run the application in handler greenlets, which are few and used again, as a pool's threads are.

Code that was written for threads keeps things per thread: Django a database connection, others a
session or a buffer. Under gevent, per thread means per greenlet. If each client connection had a
greenlet of its own for that, each would have its own database connection as well. So the greenlet
of a client runs no application code. There are as many handlers as requests were in progress at
once, the one used last is used first, and an idle client connection holds none.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import gevent
from greenlet import getcurrent


class Handler(gevent.Greenlet):  # type: ignore[type-arg]
    """A greenlet that runs one piece of work after the other; made and used by Handlers."""

    awaits_work = False  # in a wait that no other request ends

    def __init__(self, idle: "list[Handler]") -> None:
        super().__init__()
        self._idle = idle
        self.work: Callable[..., object] | None = None
        self.arguments: tuple[Any, ...] = ()
        self.caller: Any = None
        self.failure: BaseException | None = None

    def _run(self) -> None:
        idle = self._idle
        while True:
            try:
                self.work(*self.arguments)  # type: ignore[misc]
            except BaseException as error:  # the caller raises it
                self.failure = error
            self.work, self.arguments = None, ()
            idle.append(self)
            caller, self.caller = self.caller, None
            try:
                caller.switch()
                while self.work is None:  # what resumed it has no work for it
                    gevent.get_hub().switch()
            except BaseException:
                # Something ended it while it was idle: a timeout that a request left behind.
                if self in idle:
                    idle.remove(self)
                return


class Handlers:
    """The handler greenlets of one worker. Call from one thread."""

    def __init__(self) -> None:
        self._hub = gevent.get_hub()
        self._idle: list[Handler] = []  # the one used last is at the end
        self._size = 0
        self._min_idle = 0  # since the last call of retire_unused()

    def __repr__(self) -> str:
        stats = " ".join(f"{name}={value}" for name, value in self.stats().items())
        return f"<Handlers {stats}>"

    def stats(self) -> dict[str, int]:
        """Return how many handlers there are, and how many of them are idle."""
        return {"size": self._size, "idle": len(self._idle)}

    def idle(self) -> int:
        """Return how many handlers are idle."""
        return len(self._idle)

    def start(self, work: Callable[..., None], *args: Any) -> None:
        """
        Call *work* with *args* in a handler; return when it waits, or is done.

        Call it in the hub.

        :param work: handles its errors itself.
        :param args: its arguments.
        """
        handler = self._idle.pop() if self._idle else self._new()
        handler.work, handler.arguments, handler.caller = work, args, self._hub
        handler.switch()

    def run(self, work: Callable[..., object], *args: Any) -> None:
        """
        Call *work* with *args* in a handler while the calling greenlet waits.

        What is thrown into the calling greenlet meanwhile is thrown into the handler instead.

        :param args: the arguments of *work*.
        :raises BaseException: what *work* raises.
        """
        handler = self._idle.pop() if self._idle else self._new()
        handler.work, handler.arguments, handler.caller = work, args, getcurrent()
        # Switch to the handler directly: the hub runs only when *work* waits for something.
        resume: Callable[[], object] = handler.switch
        while True:
            try:
                resume()
                break
            except BaseException as error:
                resume = partial(handler.throw, error)
        failure, handler.failure = handler.failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback has this frame: no cycle for the collector

    def note_idle(self) -> None:
        """Look how many handlers are idle: call it several times before :meth:`retire_unused`."""
        self._min_idle = min(self._min_idle, len(self._idle))

    def retire_unused(self, keep: int) -> int:
        """
        End the handlers that were idle at each look since the last call.

        :param keep: so many handlers stay in any case, int.
        :returns: how many have ended.
        """
        count = max(min(self._min_idle, len(self._idle), self._size - keep), 0)
        self._min_idle = len(self._idle) - count
        return self._retire(count)

    def retire_idle(self, count: int) -> int:
        """
        End idle handlers, which drops what code keeps per thread.

        :param count: so many of them, int, or as many as there are.
        :returns: how many have ended.
        """
        return self._retire(min(count, len(self._idle)))

    def _retire(self, count: int) -> int:
        # Those idle for longest are at the beginning.
        retired, self._idle[:count] = self._idle[:count], []
        gevent.killall(retired, block=False)
        return count

    def _new(self) -> Handler:
        handler = Handler(self._idle)
        self._size += 1
        handler.rawlink(self._note_end)
        return handler

    def _note_end(self, _: object) -> None:
        self._size -= 1
