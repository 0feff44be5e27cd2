"""
Enforce ``REQUEST_TIMEOUT`` for an application that has no deadline of its own.

At the deadline the wait of the request (for a socket, a lock, a queue, a sleep, a thread) fails
with a TimeoutError, after which libraries clean up; so does the next wait, where one tries again.
A request that still goes on is interrupted by an exception that ``except Exception`` does not
catch. Code that computes and does not wait is not ended: its answer is late. (While it is between
two turns an exception would be raised in it between any two instructions.)

The deadline ends when the application takes over the client's socket, as for a WebSocket.
"""

import dis
import logging
import queue
import traceback
from collections.abc import Callable, Collection
from time import monotonic
from types import FrameType
from typing import Any, TypeVar
from weakref import ReferenceType, ref

import gevent
from gevent import GreenletExit
from gevent.monkey import get_original
from greenlet import getcurrent, greenlet

from greenline.errors import Unavailable
from greenline.hub import taken_socket
from greenline.hub.deadline import GRACE_S, Interrupt, environ_of, on_behalf_of
from greenline.hub.slices import interrupted
from greenline.hub.thread_locks import SimpleQueue
from greenline.hub.unwinding import frames, is_releasing, is_unwinding
from greenline.telemetry.access_log import keep_route

TIMEOUT_SWEEP_S = 0.1
WAIT_DEPTH = 12  # frames of threading and of its locks below the wait of a queue
# A clean-up after an exception may take as long as the request, at least so many seconds. What
# takes longer hangs, or is no clean-up: an except block may try something else.
MIN_CLEAN_UP_S = 5.0
# A request that waits in a finally block or an __exit__ at its deadline may be giving a connection
# back, or sending a COMMIT. It may as well be a thread pool's exit, which waits for all its work.
RELEASE_S = 1.0
FAILED_WAITS = 2  # many libraries try again once; after an OSError they clean up better
REASON = "504 Gateway Timeout"

Respond = Callable[..., None]
T = TypeVar("T")


class RequestTimeout(Exception):
    """
    The request took longer than ``REQUEST_TIMEOUT``.

    :param timeout_s: seconds that it may take, float.
    """

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no answer within {timeout_s:g} s")


class WaitTimeout(TimeoutError):
    """A wait was ended because its request took too long."""


class EmptyTimeout(WaitTimeout, queue.Empty):
    """A wait for an item of a queue was ended because its request took too long."""


class FullTimeout(WaitTimeout, queue.Full):
    """A wait for room in a queue was ended because its request took too long."""


# The standard library's, also where gevent has patched before this module is imported.
_Queue: Any = get_original("queue", "Queue")
# Code that waits for a queue with a timeout expects queue.Empty or queue.Full: urllib3 adds one
# connection too many to its pool when the wait for one ends with any other error.
IN_QUEUES = {
    _Queue.get.__code__: EmptyTimeout,
    _Queue.put.__code__: FullTimeout,
    SimpleQueue.get.__code__: EmptyTimeout,
}
OF_QUEUES = {"get": EmptyTimeout, "put": FullTimeout}  # of gevent.queue
LOADS = "LOAD_ATTR", "LOAD_METHOD"  # the opcodes that load the name of a method before its call


class RequestTimeouts:
    """
    Keep the deadlines of one worker's requests.

    :param timeout_s: seconds for the application's answer, or for the next part of a streamed
        one, float.
    :param log: the logger for requests that took longer, with their stacks.
    :param client_modules: names of the modules in which the worker waits for the client. Such
        waits have limits of their own, and do not count as the application's time. Default: none.
    """

    def __init__(
        self, timeout_s: float, log: logging.Logger, client_modules: Collection[str] = ()
    ) -> None:
        self._timeout_s = timeout_s
        self._log = log
        self._client_modules = client_modules
        self._requests: set[_TimedRequest] = set()

    def start(self) -> None:
        """Begin to check the requests in progress."""
        # One timer for all requests: a timer for each costs more.
        self._timer = gevent.get_hub().loop.timer(TIMEOUT_SWEEP_S, TIMEOUT_SWEEP_S, ref=False)
        self._timer.start(self._sweep)

    def stop(self) -> None:
        """Stop checking the requests in progress."""
        self._timer.close()

    def limited(self, respond: Respond) -> Respond:
        """
        Wrap a function so that each call has a deadline.

        The wrapper raises :class:`RequestTimeout` where, after the deadline, *respond* raised an
        error or the application answered with a 5xx status.

        :param respond: called with the application, the environ, the response, the start and the
            request, in the greenlet that runs the application.
        :returns: the wrapper, with the same parameters.
        """
        requests = self._requests

        def respond_in_time(
            application: Any, environ: dict[str, Any], response: Any, started: float, request: Any
        ) -> None:
            until_s = started + self._timeout_s  # includes the time in the queue
            sock = environ["gunicorn.socket"] if "HTTP_UPGRADE" in environ else None
            timed = _TimedRequest(
                getcurrent(), application, request, response, until_s, sock, self._check
            )
            if sock is not None:
                taken_socket.watch(sock)
            requests.add(timed)
            try:
                respond(timed, environ, response, started, request)
            except (GreenletExit, KeyboardInterrupt, SystemExit):
                raise  # the worker stops
            except BaseException as error:
                # What was unavailable all the time is the better answer: 503, with Retry-After.
                is_of_time = timed.thrown is not None and not isinstance(error, Unavailable)
                if not is_of_time or timed.is_upgraded():
                    raise
                if not response.headers_sent:
                    response.status, response.status_code = REASON, 504
                raise RequestTimeout(self._timeout_s) from error
            finally:
                requests.discard(timed)
                if sock is not None:
                    taken_socket.unwatch(sock)
                late_s = monotonic() - timed.until_s
                if late_s > GRACE_S and timed.complain_at_s == 0 and timed.thrown is None:
                    self._log.warning(
                        "%s: answered %.1f s after its deadline; it computed and did not wait, "
                        "so nothing ended it",
                        timed, late_s,
                    )  # fmt: skip

        return respond_in_time

    def _sweep(self) -> None:
        """Expire late requests; called in the hub, while each request is suspended in a wait."""
        now = monotonic()
        late = []
        for timed in self._requests:
            if timed.has_sent_more() or timed.is_upgraded():
                timed.begin_again(now + self._timeout_s)
            elif timed.until_s <= now and not timed.is_elsewhere():
                late.append(timed)
        for timed in late:
            # A throw switches greenlets, so a request further on in the list may have ended.
            if timed in self._requests and timed.greenlet.gr_frame is not None:
                self._expire(timed, now)

    def _check(self, timed: "_TimedRequest") -> None:
        """Expire a request that waits in an offload thread, if it is late; called in its hub."""
        if timed.until_s <= (now := monotonic()):
            self._expire(timed, now)

    def _expire(self, timed: "_TimedRequest", now: float) -> None:
        # A slow client is not the application's fault: the time begins again.
        if any(map(self._is_for_client, frames(timed.greenlet))):
            timed.begin_again(now + self._timeout_s)
            return
        is_cleaning_up = timed.thrown is not None and is_unwinding(timed.greenlet, timed.thrown)
        if is_cleaning_up and now < timed.thrown_s + max(self._timeout_s, MIN_CLEAN_UP_S):
            self._complain(timed, now, "cleans up and is not interrupted again")
        elif now < timed.deadline_s + RELEASE_S and is_releasing(timed.greenlet):
            timed.complain_at_s = RELEASE_S  # it is not late yet
        elif timed.failed_waits < FAILED_WAITS:
            self._fail_wait(timed, now)
        else:
            self._complain(timed, now, "goes on and is interrupted")
            timed.until_s = now + GRACE_S
            timed.throw(Interrupt(timed))

    def _fail_wait(self, timed: "_TimedRequest", now: float) -> None:
        error = _error_of_wait(list(frames(timed.greenlet)))
        if error is None:
            return
        if timed.thrown is None:
            with on_behalf_of(timed.greenlet):
                self._log.warning(
                    "%s: not answered within %g s; its wait fails with a TimeoutError:\n%s",
                    timed, self._timeout_s, _text(timed.greenlet),
                )  # fmt: skip
        timed.failed_waits += 1
        timed.until_s = now + GRACE_S
        timed.throw(error(f"the request took longer than {self._timeout_s:g} s"))

    def _complain(self, timed: "_TimedRequest", now: float, what: str) -> None:
        """Log a request that has not ended."""
        # Each entry after twice the time, so that a request without an end does not fill the log.
        late_s = now - timed.deadline_s
        if late_s >= timed.complain_at_s:
            timed.complain_at_s = 2 * late_s
            text = _text(timed.greenlet)
            with on_behalf_of(timed.greenlet):
                self._log.error("%s %s, %.1f s after its deadline:\n%s", timed, what, late_s, text)

    def _is_for_client(self, frame: FrameType) -> bool:
        return frame.f_globals.get("__name__") in self._client_modules


class _TimedRequest:
    """A request in progress, called in place of the application that answers it."""

    __slots__ = (
        "_application", "_check", "_request", "_response", "_sent", "_sock", "_timer",
        "complain_at_s", "deadline_s", "failed_waits", "greenlet", "thrown", "thrown_s", "until_s",
    )  # fmt: skip

    def __init__(
        self,
        me: greenlet,
        application: Any,
        request: Any,
        response: Any,
        until_s: float,
        sock: Any,
        check: Callable[["_TimedRequest"], None],
    ) -> None:
        self.greenlet = me
        self.until_s = self.deadline_s = until_s
        self.thrown: ReferenceType[BaseException] | None = None
        self.thrown_s = 0.0
        self.failed_waits = 0
        self.complain_at_s = 0.0
        self._application = application
        self._request = request
        self._response = response
        self._sent = 0
        self._sock = sock
        self._check = check
        self._timer: Any = None  # in the hub of the offload thread where the application runs

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        """
        Call the application.

        :returns: the application's result.
        :raises WaitTimeout: the application answered the TimeoutError with a 5xx status.
        """
        result = self.run_in_time(self._application, environ, start_response)
        if self.thrown is not None and not self._response.headers_sent:
            code = self._response.status_code
            if code is not None and code >= 500 and code != 504:
                if hasattr(result, "close"):
                    result.close()
                raise WaitTimeout
        return result

    def __str__(self) -> str:
        return f"{self._request.method} {self._request.path}"

    def run_in_time(self, func: Callable[..., T], *args: Any) -> T:
        """Call *func* for the request, perhaps in an offload thread: its waits end in time."""
        caller, self.greenlet = self.greenlet, getcurrent()
        if self.greenlet is not caller:
            self._timer = gevent.get_hub().loop.timer(TIMEOUT_SWEEP_S, TIMEOUT_SWEEP_S)
            self._timer.start(self._check, self)
        try:
            return func(*args)
        finally:
            self.greenlet = caller
            if self._timer is not None:
                self._timer.close()
                self._timer = None

    def is_elsewhere(self) -> bool:
        """Return whether it computes, or runs in an offload thread, which has a timer for it."""
        return self._timer is not None or self.greenlet in interrupted

    def begin_again(self, until_s: float) -> None:
        """Give the request a new deadline."""
        self.until_s = self.deadline_s = until_s

    def throw(self, error: BaseException) -> None:
        """Raise *error* where the request waits; return when it waits again, or has ended."""
        # Weak, because is_unwinding() concludes from its end that the request swallowed it.
        self.thrown, self.thrown_s = ref(error), monotonic()
        environ = environ_of(self.greenlet)
        if environ is not None:
            keep_route(environ)  # for the error response, when Flask has forgotten the request
        self.greenlet.throw(error)

    def is_upgraded(self) -> bool:
        """Return whether the application now speaks another protocol with the client."""
        if self._sock is None:
            return False
        if self._response.headers_sent:
            return bool(self._response.status_code == 101)
        return taken_socket.is_taken(self._sock)

    def has_sent_more(self) -> bool:
        """Return whether a part of the answer was sent since the last call."""
        if self._sent == self._response.sent:
            return False
        self._sent = self._response.sent
        return True


def _error_of_wait(stack: list[FrameType]) -> type[WaitTimeout] | None:
    """Return the class of the error for the wait, None where the wait must not fail."""
    # A Condition acquires its lock again after each wait, and the block around it releases it. If
    # this wait failed, the block would release a lock that another greenlet holds.
    if any(frame.f_code.co_name == "_acquire_restore" for frame in stack[:WAIT_DEPTH]):
        return None
    for frame in stack[:WAIT_DEPTH]:
        if found := IN_QUEUES.get(frame.f_code):
            return found
    return OF_QUEUES.get(_called(stack[0]), WaitTimeout)


def _called(frame: FrameType) -> str:
    """
    Return the name of the method that *frame* calls now, empty if it calls none.

    gevent's queues are compiled and have no frames: the name is read from the caller's bytecode.
    """
    # The load of the name and the call begin at the same column: ``a.b.get(c)`` and ``a.b.get``.
    done = [one for one in dis.get_instructions(frame.f_code) if one.offset <= frame.f_lasti]
    begin = _begin(done[-1])
    names = [one.argval for one in done if one.opname in LOADS and _begin(one) == begin]
    return str(names[-1]) if names else ""


def _begin(instruction: dis.Instruction) -> tuple[int | None, int | None]:
    """Return the line and the column at which its expression begins."""
    at = instruction.positions
    return (at.lineno, at.col_offset) if at is not None else (None, None)


def _text(waiting: greenlet) -> str:
    return "".join(traceback.format_stack(waiting.gr_frame))
