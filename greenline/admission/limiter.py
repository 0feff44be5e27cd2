"""
Admit as many requests as the limit allows, and queue the others in the order of arrival, except
that small pages may overtake long ones (:mod:`~greenline.admission.queue`).

:mod:`~greenline.admission.adaptive` finds the limit and :mod:`~greenline.admission.overload` the
length of the queue. Requests that wait for their turn to compute (:mod:`~greenline.hub.turns`) are
in the queue as well, even while there is room. Health checks are not counted and never wait: a busy
worker must not look dead to a probe.
"""

import socket
from collections.abc import Callable, Collection
from functools import partial
from math import inf
from time import monotonic
from typing import Any

import gevent
import msgspec
from gevent.hub import Waiter

from greenline.admission.adaptive import INITIAL, Adaptive, Fixed, Limit
from greenline.admission.load import Load
from greenline.admission.overload import Overload
from greenline.admission.queue import Queue, QueuedRequest
from greenline.budget import of_unmodified_code, pool_sizes
from greenline.errors import ClientGone, Overloaded
from greenline.hub import lock_waits, slices
from greenline.hub.cooperate import wake
from greenline.hub.deadline import SPENT, WAITS_FOR
from greenline.hub.idle import IdleTime
from greenline.hub.request_timeout import RequestTimeout
from greenline.settings import Admission
from greenline.telemetry.request_counts import OVERLOAD, QUEUE_FULL, WAITED

OBSERVE_S = 0.02
LATE_S = 0.5  # so long a request waits before others lose their places
# A problem document (RFC 9457), made once: an overload leaves no time to make one per request.
REFUSAL = msgspec.json.encode(
    {
        "type": "about:blank",
        "title": "Service Unavailable",
        "status": 503,
        "detail": str(Overloaded()),
        "code": Overloaded.code,
    }
)
REFUSAL_HEAD = [
    ("Content-Type", "application/problem+json"),
    ("Content-Length", str(len(REFUSAL))),
    ("Retry-After", str(Overloaded.retry_after_s)),
]


class ConcurrencyLimiter:
    """
    Limit how many requests are in progress. Call from greenlets of one thread.

    :param limit: the limit, which is notified of the requests.
    :param max_waiting: the length of the queue, int; None: unlimited except in an overload.
        Default 0.
    :param max_wait_s: seconds after which a waiting request is refused, float; None: it is not.
        Default 0.1.
    :param timeout_s: seconds after which a waiting request has missed its deadline, float; None
        (the default): it has no deadline.
    :param exempt: exact paths of requests that are always admitted. Default: the health checks.
    :param blocked: returns the number of requests in progress that wait for locks or connections
        which others in progress hold. Default: 0, as for the next five.
    :param starved: returns the number of those that wait for a connection that a server refuses.
    :param spare: returns the number of idle handlers.
    :param interrupted: returns the number of requests in progress that compute, and wait for a turn
        or a thread.
    :param connected: returns the number of connected clients.
    :param unaccepted: returns the number of clients not accepted yet; infinite: too many to count.
    """

    def __init__(
        self,
        limit: Limit,
        *,
        max_waiting: int | None = 0,
        max_wait_s: float | None = 0.1,
        timeout_s: float | None = None,
        exempt: Collection[str] = ("/healthz", "/readyz"),
        blocked: Callable[[], int] = lambda: 0,
        starved: Callable[[], int] = lambda: 0,
        spare: Callable[[], int] = lambda: 0,
        interrupted: Callable[[], int] = lambda: 0,
        connected: Callable[[], int] = lambda: 0,
        unaccepted: Callable[[], float] = lambda: 0,
    ) -> None:
        self._limit = limit
        self._max_waiting = inf if max_waiting is None else max_waiting
        self._max_wait_s = inf if max_wait_s is None else max_wait_s
        self._timeout_s = inf if timeout_s is None else timeout_s
        self._exempt = frozenset(exempt)
        self._blocked = blocked
        self._starved = starved
        self._spare = spare
        self._interrupted = interrupted
        self._in_progress = 0
        self._refused = 0
        self._disconnected = 0
        self._queue = Queue()
        self._overload = Overload(connected, unaccepted)
        self._idle_time = IdleTime()
        self._timer: Any = None

    def __repr__(self) -> str:
        stats = " ".join(f"{name}={value}" for name, value in self.stats().items())
        return f"<ConcurrencyLimiter {stats}>"

    def stats(self) -> dict[str, int]:
        """Return the present limit, in_progress and waiting; refused and disconnected in total."""
        return {
            "limit": self._limit.value,
            "in_progress": self._in_progress,
            "waiting": len(self._queue),
            "refused": self._refused,
            "disconnected": self._disconnected,
        }

    def has_room(self) -> bool:
        """Return whether a request would be admitted at once."""
        return self._in_progress < self._limit.value

    def acquire(
        self, environ: dict[str, Any], sock: socket.socket, queued: QueuedRequest | None = None,
        in_turn: Callable[[Callable[[], object]], object] | None = None, is_long: bool = False,
    ) -> float | None:  # fmt: skip
        """
        Admit a request, at once or after a wait in the queue.

        The seconds of the wait are set in the environ as ``queued``, as in ``hub.deadline``.

        :param environ: the environ of the request, dict.
        :param sock: the client's socket, which is watched during the wait.
        :param queued: what :meth:`enqueue` has returned; its wait has ended. Default None: the
            calling greenlet waits.
        :param in_turn: calls a function when it is the request's turn to compute. Default None: it
            takes no turn.
        :param is_long: whether its page is known to compute for long, bool. Default False.
        :returns: the time of the admission, for :meth:`release`; None: the request is exempt.
        :raises Overloaded: the queue is full, or the request has waited too long.
        :raises RequestTimeout: the request has waited until its deadline.
        :raises ClientGone: the client disconnected during the wait.
        """
        if queued is None:
            if environ["PATH_INFO"] in self._exempt:
                return None
            self._note_arrival()
            if in_turn is None and self._in_progress < self._limit.value:
                self._in_progress += 1
                return monotonic()
            queued = self._wait(environ, sock, in_turn, is_long)
        environ[WAITS_FOR] = None
        admitted = monotonic()
        environ.setdefault(SPENT, {})["queued"] = admitted - queued.came_s
        error, queued.error = queued.error, None
        if error is None:
            return admitted
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame: a cycle

    def enqueue(
        self, environ: dict[str, Any], sock: socket.socket, resume: Callable[[], object],
        takes_turn: bool = False, is_long: bool = False,
    ) -> QueuedRequest | None:  # fmt: skip
        """
        Queue a request without a greenlet that waits; call it in the hub, while there is no room.

        One that takes a turn may be queued while there is room: :meth:`admit` is called then.

        :param environ: the environ of the request, dict.
        :param sock: the client's socket, which is watched during the wait.
        :param resume: is called in the hub when the wait has ended; it then calls :meth:`acquire`
            with the result of this call.
        :param takes_turn: whether it waits for its turn to compute, bool. Default False.
        :param is_long: whether its page is known to compute for long, bool. Default False.
        :returns: None, with nothing done, if :meth:`acquire` has to be called at once: the request
            is exempt, or the queue is full.
        """
        if environ["PATH_INFO"] in self._exempt or self._is_full():
            return None
        self._note_arrival()
        run_callback = gevent.get_hub().loop.run_callback
        return self._enqueue(environ, sock, partial(run_callback, resume), takes_turn, is_long)

    def admit(self, queued: QueuedRequest) -> bool:
        """
        Admit a request whose turn has come, without a call of its ``resume``.

        :returns: False if it waits for a place from now on, or has been refused.
        """
        if not queued.takes_turn:
            return False
        if self._in_progress >= self._limit.value:
            self._queue.end_turn(queued)
            return False
        self._queue.remove(queued)
        self._in_progress += 1
        queued.is_admitted = True
        return True

    def interrupt(self, queued: QueuedRequest) -> None:
        """End a request that :meth:`enqueue` has queued, and that has not begun."""
        self._abandon(queued)
        queued.refuse(gevent.GreenletExit())

    def release(self, admitted_s: float | None, ok: bool = True) -> None:
        """
        End a request.

        :param admitted_s: the result of :meth:`acquire`.
        :param ok: whether the status of the answer was below 500. Default True.
        """
        if admitted_s is None:
            return
        if self._timer is not None:  # otherwise the limit does not matter
            self._limit.record(monotonic() - admitted_s, ok)
            self._overload.ended += 1
        self._in_progress -= 1
        if self._queue.for_place:
            self._admit()

    def suspend(self) -> None:
        """Stop counting a request while it waits for its client: a slow client delays no other."""
        self._in_progress -= 1
        if self._queue.for_place:
            self._admit()

    def resume(self) -> None:
        """Count a suspended request as in progress again."""
        # This may exceed the limit for a moment, if others were admitted meanwhile.
        self._in_progress += 1

    def is_late(self) -> bool:
        """Return whether a request has waited ``LATE_S`` for a place that may be given to it."""
        if not self._queue.for_place or not self._limit.is_adaptive:
            return False
        return monotonic() - self._queue.oldest_for_place().came_s >= LATE_S

    def leave(self) -> None:
        """Stop counting a request that goes on; :meth:`release` is not called for it."""
        self._overload.ended += 1
        self.suspend()

    def _note_arrival(self) -> None:
        if self._timer is not None:
            self._overload.came += 1
        elif self._in_progress >= INITIAL:
            # With fewer requests the limit needs no measurements, and they cost nothing.
            self._start_observing()

    def _is_full(self) -> bool:
        return len(self._queue) >= min(self._max_waiting, self._overload.max_waiting)

    def _enqueue(
        self, environ: dict[str, Any], sock: socket.socket, resume: Callable[[], object],
        takes_turn: bool, is_long: bool,
    ) -> QueuedRequest:  # fmt: skip
        if self._timer is None:
            self._start_observing()
        environ[WAITS_FOR] = "turn"
        came_s = monotonic()
        until_s = came_s + min(self._max_wait_s, self._timeout_s)
        queued = QueuedRequest(sock, came_s, until_s, resume, takes_turn, is_long)
        self._queue.append(queued)
        return queued

    def _wait(
        self, environ: dict[str, Any], sock: socket.socket,
        in_turn: Callable[[Callable[[], object]], object] | None, is_long: bool,
    ) -> QueuedRequest:  # fmt: skip
        """Queue the request of this greenlet; return when its wait has ended."""
        if self._is_full():
            self._refused += 1
            is_full = len(self._queue) >= self._max_waiting
            raise Overloaded(reason=QUEUE_FULL if is_full else OVERLOAD)
        waiter: Waiter[None] = Waiter()
        takes_turn = in_turn is not None
        queued = self._enqueue(environ, sock, partial(wake, waiter), takes_turn, is_long)
        if in_turn is not None:
            in_turn(lambda: self.admit(queued) and queued.resume())
        try:
            waiter.get()
        except BaseException:
            self._abandon(queued)
            raise
        return queued

    def _admit(self) -> None:
        """Admit requests in the order of the queue, except those of disconnected clients."""
        self._refuse_disconnected()
        while self._queue.for_place and self._in_progress < self._limit.value:
            queued = self._queue.take_for_place()
            self._in_progress += 1
            # Counted here and not by the request: a new one cannot take its place.
            queued.is_admitted = True
            queued.resume()

    def _abandon(self, queued: QueuedRequest) -> None:
        """Remove a request that was interrupted."""
        # If it was admitted in the same moment, the next one is admitted instead.
        if queued.is_admitted:
            self._in_progress -= 1
            self._admit()
        elif queued.error is None:
            self._queue.remove(queued)

    def _start_observing(self) -> None:
        """Call :meth:`_observe` every ``OBSERVE_S`` while the limit matters."""
        self._idle_time.start()
        self._timer = gevent.get_hub().loop.timer(OBSERVE_S, OBSERVE_S, ref=False)
        self._timer.start(self._observe)

    def _observe(self) -> None:
        """Report the requests to the limit, bound the queue and admit requests; in the hub."""
        idle = self._idle_time.take_share()
        if not self._queue and self._in_progress <= INITIAL:
            self._timer.close()
            self._timer = None
            self._idle_time.stop()
            return
        self._limit.observe(
            Load(
                in_progress=self._in_progress,
                waiting=self._queue.for_place,
                blocked=self._blocked(),
                starved=self._starved(),
                spare=self._spare(),
                interrupted=self._interrupted(),
                idle=idle,
            )
        )
        if not self._queue:
            return
        self._refuse_disconnected()
        self._refuse_late()
        self._overload.observe(len(self._queue), self._in_progress)
        # The oldest first, because they would be answered too late.
        while len(self._queue) > self._overload.max_waiting:
            self._refused += 1
            self._queue.remove(oldest := self._queue.oldest())
            oldest.refuse(Overloaded(reason=OVERLOAD))
        self._admit()

    def _refuse_late(self) -> None:
        # Here and not with a Timeout for each request, which costs each a microsecond.
        now = monotonic()
        while (queued := self._queue.take_late(now)) is not None:
            if self._timeout_s <= self._max_wait_s:
                queued.refuse(RequestTimeout(self._timeout_s))
            else:
                self._refused += 1
                queued.refuse(Overloaded(reason=WAITED))

    def _refuse_disconnected(self) -> None:
        for queued in self._queue.take_disconnected():
            self._disconnected += 1
            queued.refuse(ClientGone())


def limiter(
    settings: Admission,
    initial_limit: int,
    *,
    starved: Callable[[], int],
    spare: Callable[[], int],
    connected: Callable[[], int],
    unaccepted: Callable[[], float],
) -> ConcurrencyLimiter:
    """
    Make the limiter of a worker from its settings.

    :param settings: the settings for admission.
    :param initial_limit: the limit that other workers of the host have found, int; 0: none.
    :param starved: returns the number of requests that wait for a connection that a server refuses.
    :param spare: returns the number of idle handlers.
    :param connected: returns the number of connected clients.
    :param unaccepted: returns the number of clients not accepted yet; infinite: too many to count.
    :returns: a limiter with a fixed limit if the settings have one, else with an adaptive limit.
    """
    limit: Limit
    if settings.max_in_progress is None:
        limit = adaptive = Adaptive(pool_size=_pool_size, first=lambda: sum(pool_sizes.values()))
        if initial_limit:
            adaptive.begin_at(initial_limit)
    else:
        limit = Fixed(settings.max_in_progress)
    return ConcurrencyLimiter(
        limit,
        max_waiting=settings.max_waiting,
        max_wait_s=settings.max_wait_s,
        timeout_s=settings.timeout_s,
        exempt=settings.health_paths,
        blocked=lock_waits.waiting,
        starved=starved,
        spare=spare,
        interrupted=slices.interrupted_requests,
        connected=connected,
        unaccepted=unaccepted,
    )


def _pool_size() -> int:
    """Return the number of connections of the pools that the application has opened."""
    return sum(size for name, size in pool_sizes.items() if name not in of_unmodified_code)


def refuse(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Answer a request with 503: a WSGI application for refused requests."""
    start_response("503 Service Unavailable", REFUSAL_HEAD)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [REFUSAL]
