"""
Admit as many requests as the limit says; refuse the others at once.

1. ``limits`` says how many; the gate counts, and tells it how long each took.
2. Health checks pass, uncounted: who asks whether we live must not be told that we are busy.
3. A short queue takes up a burst, first come, first served. When it has not been empty for as
   long as one may wait it is no burst but an overload, and the wait is cut to a twentieth: who
   is admitted then waited next to nothing, who is not knows it soon. That is CoDel as servers
   use it ("Fail at Scale", ACM Queue 2015). Serving the newest first, which it adds, helps only
   a queue that stays long, and starves those who came first.
4. A place is handed to a waiter, not released for anybody: who was killed meanwhile passes it on.
5. A client that hung up while it waited is never admitted.
"""

import socket
from collections import deque
from collections.abc import Collection
from functools import partial
from time import monotonic
from typing import Any

import msgspec
from gevent.event import AsyncResult

from greenline.errors import ClientGone, Overloaded
from greenline.hangup import is_gone, noticing
from greenline.limits import Fixed, Gradient, Limit
from greenline.settings import Admission

IMPATIENCE = 20
# A problem document (RFC 9457), made once: an overload is no time to make one for each.
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


class _Waiter:
    """Somebody who waits for a place."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.place: AsyncResult[None] = AsyncResult()


class Gate:
    """
    The way in to a worker, *limit* at a time.

    At most *max_waiting* wait, each *max_wait_s* seconds. *exempt* are the exact paths that
    always pass. Call from greenlets of one thread.
    """

    def __init__(
        self,
        limit: Limit,
        *,
        max_waiting: int = 0,
        max_wait_s: float = 0.1,
        exempt: Collection[str] = ("/healthz", "/readyz"),
    ) -> None:
        self._limit = limit
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._exempt = frozenset(exempt)
        self._in_progress = 0
        self._refused = 0
        self._gone = 0
        self._waiting: deque[_Waiter] = deque()
        self._queued_since_s = 0.0  # when somebody came to wait where nobody did

    def __repr__(self) -> str:
        stats = " ".join(f"{name}={value}" for name, value in self.stats().items())
        return f"<Gate {stats}>"

    def stats(self) -> dict[str, int]:
        """Return limit, in_progress and waiting now; refused and gone (hung up) so far."""
        return {
            "limit": self._limit.value,
            "in_progress": self._in_progress,
            "waiting": len(self._waiting),
            "refused": self._refused,
            "gone": self._gone,
        }

    def has_room(self) -> bool:
        """Return whether a request would be admitted at once."""
        return self._in_progress < self._limit.value

    def enter(self, environ: dict[str, Any], sock: socket.socket) -> float | None:
        """
        Return when the request was admitted, for :meth:`leave`; None when it is exempt.

        How long it waited is added to ``environ["greenline.spent"]`` as ``queued``.

        Raises:
            Overloaded: there is no place, and none became free in time.
            ClientGone: the client hung up while it waited.
        """
        if environ["PATH_INFO"] in self._exempt:
            return None
        if self._in_progress < self._limit.value:
            self._in_progress += 1
            return monotonic()
        came = monotonic()
        self._wait(sock)
        admitted = monotonic()
        environ.setdefault("greenline.spent", {})["queued"] = admitted - came
        return admitted

    def leave(self, admitted_s: float | None, ok: bool = True) -> None:
        """Free the place taken at *admitted_s*; not *ok* is an answer with 503 or 504."""
        if admitted_s is None:
            return
        self._limit.record(admitted_s, self._in_progress, ok)
        self._in_progress -= 1
        if self._waiting:
            self._admit()

    def step_out(self) -> None:
        """Lend the place while the request waits for its client: a slow one holds up nobody."""
        self._in_progress -= 1
        if self._waiting:
            self._admit()

    def step_in(self) -> None:
        """Be in progress again, for a moment beyond the limit if others came in meanwhile."""
        self._in_progress += 1

    def _wait(self, sock: socket.socket) -> None:
        if len(self._waiting) >= self._max_waiting:
            self._refused += 1
            raise Overloaded
        now = monotonic()
        if not self._waiting:
            self._queued_since_s = now
        standing = now - self._queued_since_s > self._max_wait_s
        waiter = _Waiter(sock)
        self._waiting.append(waiter)
        try:
            with noticing(sock, partial(self._dismiss, waiter)):
                waiter.place.wait(self._max_wait_s / IMPATIENCE if standing else self._max_wait_s)
        except BaseException:
            self._abandon(waiter)
            raise
        if not waiter.place.ready():
            self._waiting.remove(waiter)
            self._refused += 1
            raise Overloaded
        waiter.place.get()

    def _admit(self) -> None:
        """Hand free places to those who waited longest and are still there."""
        while self._waiting and self._in_progress < self._limit.value:
            waiter = self._waiting[0]
            if is_gone(waiter.sock):
                self._dismiss(waiter)
            else:
                self._waiting.popleft()
                self._in_progress += 1
                waiter.place.set(None)

    def _dismiss(self, waiter: _Waiter) -> None:
        """Let go a waiter whose client hung up, unless it is admitted already."""
        if not waiter.place.ready():
            self._waiting.remove(waiter)
            self._gone += 1
            waiter.place.set_exception(ClientGone())

    def _abandon(self, waiter: _Waiter) -> None:
        """Leave the queue; a place that was handed over in the same moment goes to the next."""
        if not waiter.place.ready():
            self._waiting.remove(waiter)
        elif waiter.place.successful():
            self._in_progress -= 1
            self._admit()


def gate(told: Admission) -> Gate:
    """Return the gate that the settings ask for."""
    if told.max_in_progress is None:
        limit: Limit = Gradient()
    else:
        limit = Fixed(told.max_in_progress)
    return Gate(
        limit,
        max_waiting=told.max_waiting,
        max_wait_s=told.max_wait_s,
        exempt=told.health_paths,
    )


def refuse(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Answer that there is too much to do: a WSGI application."""
    start_response("503 Service Unavailable", REFUSAL_HEAD)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [REFUSAL]
