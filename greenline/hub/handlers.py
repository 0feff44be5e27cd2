"""
Run the application in handler greenlets, which are few and reused, as the threads of a pool are.

Code written for threads keeps objects per thread: Django a database connection, other libraries a
session or a buffer. Under gevent, per thread means per greenlet. With a greenlet for each client
connection, each of these would have its own database connection. So the greenlet of a client runs
no application code, and an idle client connection holds no handler.
"""

from collections.abc import Callable
from functools import partial, wraps
from math import inf
from queue import Empty
from time import monotonic, thread_time
from typing import Any

import gevent
from gevent.hub import Hub
from greenlet import getcurrent, greenlet

from greenline.hub import collector, frames
from greenline.hub.thread_locks import Event, SimpleQueue
from greenline.hub.turns import LONG_S, Turn, Turns

MIN_WAIT_S = 0.02  # for a place, of a request in a native thread

switch = greenlet.switch  # the hub's own calls switch_out(), which has nothing to note then


class Handler(gevent.Greenlet):  # type: ignore[type-arg]
    """
    Run one piece of work after the other in a greenlet. :class:`Handlers` makes and uses these.

    :param idle: the list of the idle handlers, to which this one adds itself.
    :param turns: the pages that compute for long.
    """

    # Else they are in a greenlet's dict, where Python takes six times as long to find them.
    __slots__ = (
        "_clock", "_computed_s", "_idle", "_since_s", "_turns",
        "arguments", "awaits_work", "caller", "failure", "request", "turn", "work",
    )  # fmt: skip

    def __init__(self, idle: "list[Handler]", turns: Turns) -> None:
        super().__init__()
        self._idle = idle
        self._turns = turns
        self.work: Callable[..., object] | None = None
        self.arguments: tuple[Any, ...] = ()
        self.request: Any = None
        self.caller: Any = None
        self.failure: BaseException | None = None
        # Whether it waits for something that no other request holds; lock_waits does not count it
        # then.
        self.awaits_work = False
        self.turn: Turn | None = None  # the last one; None: this work was not interrupted
        self._clock: Callable[[], float] = monotonic
        # Since when it computes; infinite while it waits, and after a wait whose end is not seen.
        self._since_s = inf
        self._computed_s = 0.0  # the longest time without a wait, of this work

    def _run(self) -> None:
        idle = self._idle
        while True:
            self._clock = clock = self._turns.clock(self.request)
            self._computed_s, self._since_s, self.turn = 0.0, clock(), None
            if collector.is_suspended:
                collector.resume()
            try:
                self.work(*self.arguments)  # type: ignore[misc]
            except BaseException as error:  # run() raises it in the calling greenlet
                self.failure = error
            if (computed_s := self._clock() - self._since_s) > self._computed_s:
                self._computed_s = computed_s
            self._since_s = inf
            # Also if it was short, where all of it was measured.
            if clock is thread_time or self._computed_s >= LONG_S:
                self._turns.note(self.request, self._computed_s, self._clock)
            self.work, self.arguments, self.request = None, (), None
            if collector.waiting:
                collector.suspend()
            # Critical section: no greenlet switch between here and the switch to the caller.
            idle.append(self)
            caller, self.caller = self.caller, None
            try:
                switch(caller)
                # Something else may resume it, such as an event of the last request.
                while self.work is None:
                    gevent.get_hub().switch()
            except BaseException:
                # Ended while idle: retired, or hit by a timeout that a request left running.
                if self in idle:
                    idle.remove(self)
                return

    def switch_out(self) -> None:
        """Note how long it has computed; gevent calls this when it switches to the hub."""
        computed_s = self._clock() - self._since_s
        self._since_s = inf
        if computed_s > self._computed_s:
            self._computed_s = computed_s
            if computed_s >= LONG_S:
                self._turns.note(
                    self.request, self._computed_s, self._clock
                )  # now: a stream may go on for hours
                if self._clock is monotonic:
                    self._clock, self._computed_s = self._turns.clock(self.request), 0.0
        if collector.waiting:
            collector.suspend()

    def go_on(self, computed_s: float = 0.0) -> None:
        """
        Note that a wait has ended; code that waits calls :func:`end_wait`.

        :param computed_s: what :meth:`pause` has returned, if it was no wait. Default 0.
        """
        self._since_s = self._clock() - computed_s
        if collector.is_suspended:
            collector.resume()

    def computed_at(self, now: float, thread_s: float) -> bool:
        """
        Return whether it has computed without a wait since some time.

        :param now: that time in monotonic seconds, float.
        :param thread_s: the seconds that the thread had computed until then, float.
        """
        return self._since_s <= (thread_s if self._clock is thread_time else now)

    def pause(self) -> float:
        """Return how long it has computed without a wait, in seconds, and measure no more."""
        computed_s = self._clock() - self._since_s
        self._since_s = inf  # switch_out() notes nothing
        # The processor's time has shown that it is long: the next ones take turns.
        if not self._turns.known_s(self.request):
            self._turns.note(self.request, computed_s, thread_time)
        return computed_s


class NativeHandler(greenlet):
    """
    Run a request of a handler in a native thread.

    While it waits in the hub of its thread another one has its place: of those that compute a few
    run at once. What waits in C code keeps its place.

    :param handler: the greenlet in which it would run otherwise, and which waits for it.
    :param places: a queue with an item for each that may run at once.
    :param has_place: whether one of these is taken for this one already.
    """

    __slots__ = "_has_place", "_is_waiting", "_places", "handler"

    def __init__(self, handler: greenlet, places: SimpleQueue, has_place: bool) -> None:
        super().__init__(lambda func, *args: func(*args))
        self.handler = handler
        self._places = places
        self._has_place, self._is_waiting = has_place, False

    def switch_out(self) -> None:
        """Leave its place; gevent calls this when it switches to the hub."""
        if self._has_place:
            self._has_place = False
            self._places.put(None)

    def go_on(self) -> None:
        """Take a place again, after a wait; go on without one after ``MIN_WAIT_S``."""
        # Those that have one may wait in C code for a lock that this one holds.
        if self._has_place or self._is_waiting:
            return
        self._is_waiting = True
        try:
            self._has_place = take_place(self._places, MIN_WAIT_S)
        finally:
            self._is_waiting = False


def take_place(places: SimpleQueue, timeout_s: float) -> bool:
    """
    Wait for a place.

    :param places: a queue with an item for each that is free.
    :param timeout_s: how long, seconds, float.
    :returns: whether it is taken.
    """
    try:
        places.get(timeout=timeout_s)
    except Empty as error:
        if type(error) is not Empty:  # a deadline has ended the wait
            raise
        return False
    return True


def install() -> None:
    """Let handlers note the end of each wait for one of these; call it once in a process."""
    for kind, name in ((Hub, "wait"), (SimpleQueue, "_wait"), (Event, "wait")):
        setattr(kind, name, _noted(getattr(kind, name)))


def _noted(wait: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(wait)
    def noted(self: Any, timeout: Any = None) -> Any:  # the hub's has a watcher in its place
        result = wait(self, timeout)
        end_wait()
        return result

    return noted


def end_wait() -> None:
    """Note that a wait has ended, if it is a handler's or a task's: that computes from now on."""
    me: Any = getcurrent()
    kind = type(me)
    if kind is Handler or kind is NativeHandler:
        me.go_on()
    elif (task := getattr(me, "task", None)) is not None:  # of greenline.offload.tasks
        task.go_on()


class Handlers:
    """
    Keep the handler greenlets of one worker. Call from one thread.

    Their number is the highest number of requests in progress at once.
    """

    def __init__(self) -> None:
        self._hub = gevent.get_hub()
        self.turns = Turns()
        self._idle: list[Handler] = []  # the last used one is at the end
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

    def start(self, work: Callable[[Any], None], request: Any) -> None:
        """
        Call *work* with *request* in a handler; return when it waits for the first time, or ends.

        Call this in the hub.

        :param work: a function that handles its errors itself.
        :param request: the request, which has a ``method`` and a ``path``.
        """
        # The last used one, so that the others can be retired, with the connections they keep.
        handler = self._idle.pop() if self._idle else self._new()
        handler.work, handler.arguments, handler.caller = work, (request,), self._hub
        handler.request = request
        handler.switch()

    def run(self, work: Callable[..., object], *args: Any, request: Any = None) -> None:
        """
        Call *work* with *args* in a handler while the calling greenlet waits.

        An exception thrown into the calling greenlet meanwhile is thrown into the handler instead.

        :param work: the function to call.
        :param args: the arguments of *work*.
        :param request: the request that it serves, as for :meth:`start`. Default None: it takes no
            turns.
        :raises BaseException: any exception that *work* raises.
        """
        handler = self._idle.pop() if self._idle else self._new()
        handler.work, handler.arguments, handler.caller = work, args, getcurrent()
        handler.request = request
        # Switch to the handler directly: the hub runs only when *work* waits.
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
                del failure  # its traceback has this frame: without this they are a cycle

    def note_idle(self) -> None:
        """Note how many handlers are idle; call this several times between retirements."""
        self._min_idle = min(self._min_idle, len(self._idle))

    def retire_unused(self, keep: int) -> int:
        """
        End as many handlers as were idle at each :meth:`note_idle` since the last call.

        :param keep: number of handlers that stay in any case, int.
        :returns: number of handlers ended.
        """
        count = max(min(self._min_idle, len(self._idle), self._size - keep), 0)
        self._min_idle = len(self._idle) - count
        return self._retire(count)

    def retire_idle(self, count: int) -> int:
        """
        End idle handlers, which drops the objects that code keeps per thread.

        :param count: number of handlers, int; fewer end where fewer are idle.
        :returns: number of handlers ended.
        """
        return self._retire(min(count, len(self._idle)))

    def _retire(self, count: int) -> int:
        # The handlers idle for longest are at the beginning. Not blocking: no greenlet switch here.
        retired, self._idle[:count] = self._idle[:count], []
        gevent.killall(retired, block=False)
        return count

    def _new(self) -> Handler:
        handler = Handler(self._idle, self.turns)
        frames.note(handler)
        self._size += 1
        handler.rawlink(self._note_end)
        return handler

    def _note_end(self, _: object) -> None:
        self._size -= 1
