"""
Admit as many requests as the limit says; let the others wait in turn.

``adaptive`` finds the limit and ``overload`` how many may wait; here requests are counted, queued
and handed on. Health checks pass, uncounted: a probe that asks whether the worker lives must not
learn that it is busy.
"""

import socket
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from math import inf
from time import monotonic
from typing import Any

import gevent
import msgspec
from gevent.event import AsyncResult

from greenline.admission.adaptive import INITIAL, Adaptive, Fixed, Limit
from greenline.admission.load import Load
from greenline.admission.overload import Overload
from greenline.budget import pool_sizes
from greenline.errors import ClientGone, Overloaded
from greenline.hub import lock_waits
from greenline.hub.disconnect import is_disconnected, watching
from greenline.hub.idle import IdleTime
from greenline.hub.request_timeout import RequestTimeout
from greenline.settings import Admission

OBSERVE_S = 0.02
# A problem document (RFC 9457), made once: an overload leaves no time to make one for each.
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


class _QueuedRequest:
    """A request that waits to be admitted."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.admission: AsyncResult[None] = AsyncResult()


class ConcurrencyLimiter:
    """
    Limit how many requests are in progress. Call from greenlets of one thread.

    :param limit: how many, and what learns from them.
    :param max_waiting: how many more may wait; None: as many as come, unless it is an overload.
    :param max_wait_s: seconds after which a waiting request is refused, float; None: it is not.
    :param timeout_s: seconds after which a waiting request has missed its deadline, float; None: it
        has none.
    :param exempt: the exact paths that always pass.
    :param blocked: returns how many requests in progress wait for what others in progress hold.
    :param starved: returns how many of those wait for a connection that a server refuses.
    :param spare: returns how many handlers are idle.
    :param connected: returns how many clients are connected.
    :param unaccepted: returns how many clients are not accepted yet; infinite: too many to count.
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
        self._in_progress = 0
        self._refused = 0
        self._disconnected = 0
        self._waiting: deque[_QueuedRequest] = deque()
        self._overload = Overload(connected, unaccepted)
        self._idle_time = IdleTime()
        self._timer: Any = None

    def __repr__(self) -> str:
        stats = " ".join(f"{name}={value}" for name, value in self.stats().items())
        return f"<ConcurrencyLimiter {stats}>"

    def stats(self) -> dict[str, int]:
        """Return limit, in_progress and waiting now; refused and disconnected so far."""
        return {
            "limit": self._limit.value,
            "in_progress": self._in_progress,
            "waiting": len(self._waiting),
            "refused": self._refused,
            "disconnected": self._disconnected,
        }

    def has_room(self) -> bool:
        """Return whether a request would be admitted at once."""
        return self._in_progress < self._limit.value

    def acquire(self, environ: dict[str, Any], sock: socket.socket) -> float | None:
        """
        Admit a request; let it wait for its turn.

        How long it waited is added to ``environ["greenline.spent"]`` as ``queued``, in seconds.

        :param environ: of the request, dict.
        :param sock: the client's socket, which is watched while the request waits.
        :returns: when it was admitted, for :meth:`release`; None: it is exempt.
        :raises Overloaded: it may not wait, or not any longer.
        :raises RequestTimeout: it has waited until its deadline.
        :raises ClientGone: the client hung up while it waited.
        """
        if environ["PATH_INFO"] in self._exempt:
            return None
        if self._timer is not None:
            self._overload.came += 1
        elif self._in_progress >= INITIAL:
            self._start_observing()
        if self._in_progress < self._limit.value:
            self._in_progress += 1
            return monotonic()
        came = monotonic()
        self._wait(sock)
        admitted = monotonic()
        environ.setdefault("greenline.spent", {})["queued"] = admitted - came
        return admitted

    def release(self, admitted_s: float | None, ok: bool = True) -> None:
        """End a request admitted at *admitted_s*; *ok* is whether it was answered below 500."""
        if admitted_s is None:
            return
        if self._timer is not None:  # else the limit does not matter, and most requests end here
            self._limit.record(monotonic() - admitted_s, ok)
            self._overload.ended += 1
        self._in_progress -= 1
        if self._waiting:
            self._admit()

    def suspend(self) -> None:
        """Admit another one while a request waits for its client: a slow one delays none."""
        self._in_progress -= 1
        if self._waiting:
            self._admit()

    def resume(self) -> None:
        """Be in progress again, for a moment beyond the limit if others were admitted meanwhile."""
        self._in_progress += 1

    def _wait(self, sock: socket.socket) -> None:
        if len(self._waiting) >= min(self._max_waiting, self._overload.max_waiting):
            self._refused += 1
            raise Overloaded
        if self._timer is None:
            self._start_observing()
        waiter = _QueuedRequest(sock)
        self._waiting.append(waiter)
        wait_s = min(self._max_wait_s, self._timeout_s)
        try:
            with watching(sock, partial(self._disconnect, waiter)):
                waiter.admission.wait(None if wait_s == inf else wait_s)
        except BaseException:
            self._abandon(waiter)
            raise
        if not waiter.admission.ready():
            self._waiting.remove(waiter)
            if wait_s == self._timeout_s:
                raise RequestTimeout(self._timeout_s)
            self._refused += 1
            raise Overloaded
        waiter.admission.get()

    def _admit(self) -> None:
        """Admit the requests that waited longest, except those whose clients have gone."""
        while self._waiting and self._in_progress < self._limit.value:
            waiter = self._waiting[0]
            if is_disconnected(waiter.sock):
                self._disconnect(waiter)
            else:
                self._waiting.popleft()
                self._in_progress += 1
                # Handed over, not released for all: a new request cannot overtake.
                waiter.admission.set(None)

    def _disconnect(self, waiter: _QueuedRequest) -> None:
        """Drop a waiter whose client hung up, unless it is admitted already."""
        if not waiter.admission.ready():
            self._waiting.remove(waiter)
            self._disconnected += 1
            waiter.admission.set_exception(ClientGone())

    def _abandon(self, waiter: _QueuedRequest) -> None:
        """Leave the queue; what was handed over in the same moment goes to the next."""
        if not waiter.admission.ready():
            self._waiting.remove(waiter)
        elif waiter.admission.successful():
            self._in_progress -= 1
            self._admit()

    def _start_observing(self) -> None:
        """Call :meth:`_observe` every ``OBSERVE_S`` while the limit matters."""
        self._idle_time.start()
        self._timer = gevent.get_hub().loop.timer(OBSERVE_S, OBSERVE_S, ref=False)
        self._timer.start(self._observe)

    def _observe(self) -> None:
        """Run in the hub."""
        idle = self._idle_time.take_share()
        if not self._waiting and self._in_progress <= INITIAL:
            self._timer.close()
            self._timer = None
            self._idle_time.stop()
            return
        self._limit.observe(
            Load(
                in_progress=self._in_progress,
                waiting=len(self._waiting),
                blocked=self._blocked(),
                starved=self._starved(),
                spare=self._spare(),
                idle=idle,
            )
        )
        if not self._waiting:
            return
        self._overload.observe(len(self._waiting), self._in_progress)
        while len(self._waiting) > self._overload.max_waiting:
            self._refused += 1
            self._waiting.popleft().admission.set_exception(Overloaded())
        self._admit()


def limiter(
    settings: Admission,
    learnt: int,
    *,
    starved: Callable[[], int],
    spare: Callable[[], int],
    connected: Callable[[], int],
    unaccepted: Callable[[], float],
) -> ConcurrencyLimiter:
    """
    Return the limiter that the settings ask for.

    :param settings: of the environment.
    :param learnt: the limit that other workers of the host have found, int; 0: none has.
    :param starved: returns how many requests wait for a connection that a server refuses.
    :param spare: returns how many handlers are idle.
    :param connected: returns how many clients are connected.
    :param unaccepted: returns how many clients are not accepted yet; infinite: too many to count.
    """
    limit: Limit
    if settings.max_in_progress is None:
        limit = adaptive = Adaptive(pool_size=lambda: sum(pool_sizes.values()))
        if learnt:
            adaptive.begin_at(learnt)
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
        connected=connected,
        unaccepted=unaccepted,
    )


def refuse(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Answer 503, as a WSGI application."""
    start_response("503 Service Unavailable", REFUSAL_HEAD)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [REFUSAL]
