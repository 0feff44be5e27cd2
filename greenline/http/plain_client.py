"""
A client without TLS: the fewest calls between the worker and the kernel.

1. gevent's socket is used by its parts: the descriptor and the two watchers, which are kept.
2. The limits are seconds, so no timer is armed for a wait: it notes when it is over, and twice a
   second a sweep interrupts those that are.
3. Only a wait has a time noted, so nothing else is ever interrupted.
4. One greenlet may read while another writes, as a streaming application does; a second one in the
   same direction is refused, as gevent's own socket does: its wait would replace the first one's.
"""

import os
from collections.abc import Callable
from time import monotonic
from typing import Any

import gevent
from gevent.exceptions import ConcurrentObjectUseError
from greenlet import getcurrent

from greenline.http.client import NEVER, RECV_BYTES, TIMED_WRITE_BYTES, Client, IdleTimeout, Over
from greenline.hub.cooperate import yield_to_hub
from greenline.settings import Limits

CLIENT_SWEEP_S = 0.5
SENDFILE_BYTES = 1024 * 1024


class PlainClient(Client):
    """A client behind gevent's own socket."""

    def __init__(self, sock: Any, limits: Limits, sweep: "Sweep") -> None:
        super().__init__(sock, limits)
        self._raw = sock._sock
        self._reading = _Wait(sock._read_event)
        self._writing = _Wait(sock._write_event)
        self.waits = (self._reading, self._writing)
        self._hub = sock.hub
        self._owner = getcurrent()
        self._sweep = sweep
        sweep.clients.add(self)

    def close(self) -> None:
        self._sweep.clients.discard(self)
        self.on_request = None  # it refers to the connection: no cycle for the collector
        super().close()

    def recv_request(self, idle_s: float) -> Any:
        self.idle_since_s = now = monotonic()
        until = now + idle_s
        on_ready = None if self.on_request is None else self._read_request
        try:
            while True:
                found = self._wait(self._reading, until, on_ready)
                if found is not None:
                    return found
                try:
                    return self._raw.recv(RECV_BYTES)
                except BlockingIOError:
                    continue
        except Over:
            raise IdleTimeout(f"no request came in {idle_s:g} s") from None
        except OSError as error:
            self.error = error
            raise

    def _read_request(self) -> None:
        """Read what has come and pass it on; run in the hub."""
        try:
            data = self._raw.recv(RECV_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = None  # the greenlet that waits reads again, and finds the end or an error
        wait = self._reading
        wait.watcher.stop()
        wait.until = NEVER
        if not data or not self.on_request(data):  # type: ignore[misc]
            self._owner.switch(data)

    def resume_request(self, idle_s: float) -> None:
        """Wait for the next request, *idle_s* seconds at most, while no greenlet runs."""
        wait = self._reading
        self.idle_since_s = now = monotonic()
        wait.until = now + idle_s
        wait.waiter = self._owner
        wait.watcher.start(self._read_request)

    def end_request(self, found: Any) -> None:
        """Let the greenlet in :meth:`recv_request` return *found*, in the next turn of the hub."""
        self._hub.loop.run_callback(self._owner.switch, found)

    def _recv(self, size: int, timeout_s: float) -> bytes:
        until = monotonic() + timeout_s
        while True:
            self._wait(self._reading, until)
            try:
                data: bytes = self._raw.recv(size)
            except BlockingIOError:
                continue
            return data

    def _sendall(self, data: Any) -> None:
        try:
            sent = self._raw.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._send_rest(memoryview(data)[sent:])

    def _send_rest(self, view: memoryview) -> None:
        budget = _Budget(self.limits.write_s)
        while view:
            self._wait_writable(budget)
            try:
                sent = self._raw.send(view)
            except BlockingIOError:
                continue
            view = view[sent:]
            budget.note(sent)

    def _sendfile(self, file: Any, offset: int, count: int) -> int:
        to, of, budget = self._raw.fileno(), file.fileno(), _Budget(self.limits.write_s)
        start, end = offset, offset + count
        while start < end:
            try:
                sent = os.sendfile(to, of, start, min(end - start, SENDFILE_BYTES))
            except BlockingIOError:
                self._wait_writable(budget)
                continue
            except OSError:
                if start > offset:
                    raise
                return super()._sendfile(file, offset, count)
            if sent == 0:
                break
            start += sent
            budget.note(sent)
            yield_to_hub()
        return start - offset

    def _wait_writable(self, budget: "_Budget") -> None:
        started = monotonic()
        self._wait(self._writing, started + budget.left_s)
        budget.left_s -= monotonic() - started

    def _wait(
        self, wait: "_Wait", until: float, on_ready: Callable[[], object] | None = None
    ) -> Any:
        """Wait in the hub; return what the greenlet is resumed with, None when *wait* is ready."""
        if wait.until != NEVER:
            raise ConcurrentObjectUseError("another greenlet waits for this client")
        wait.waiter = waiter = getcurrent()
        wait.until = until
        limiter = self.limiter
        if limiter is not None:
            limiter.suspend()
        try:
            # This is Hub.wait() without its Waiter, which makes sure that nothing else resumes the
            # greenlet. Here a loop around each wait does.
            wait.watcher.start(on_ready or waiter.switch)
            return self._hub.switch() or None  # () where an event resumed it
        except Over:
            # Who was stopped, or blocked, for longer than that finds in time what came in time.
            if wait is self._writing or not self.has_input():
                raise
            return None
        finally:
            wait.watcher.stop()
            wait.until = NEVER
            if limiter is not None:
                limiter.resume()


class _Wait:
    """Who waits to read, or to write, and until when."""

    __slots__ = ("until", "waiter", "watcher")

    def __init__(self, watcher: Any) -> None:
        self.watcher = watcher
        self.until = NEVER
        self.waiter = getcurrent()

    def interrupt(self) -> None:
        """End the wait, which is over."""
        self.until = NEVER
        self.waiter.throw(Over)


class _Budget:
    """The seconds that are left for the next 64 KiB of an answer."""

    def __init__(self, limit_s: float) -> None:
        self.left_s = self._limit_s = limit_s
        self._taken = 0

    def note(self, taken: int) -> None:
        self._taken += taken
        if self._taken >= TIMED_WRITE_BYTES:
            self.left_s, self._taken = self._limit_s, 0


class Sweep:
    """Interrupts the waits that are over."""

    def __init__(self) -> None:
        self.clients: set[PlainClient] = set()
        self._timer: Any = None

    def start(self) -> None:
        self._timer = gevent.get_hub().loop.timer(CLIENT_SWEEP_S, CLIENT_SWEEP_S, ref=False)
        self._timer.start(self._interrupt)

    def _interrupt(self) -> None:
        """Run in the hub: whoever has a time noted waits for its client right now."""
        now = monotonic()
        late = [wait for one in self.clients for wait in one.waits if wait.until <= now]
        for wait in late:
            if wait.until <= now:
                wait.interrupt()
