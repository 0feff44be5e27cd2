"""
Read from and write to a client without TLS, with the fewest calls between worker and kernel.

It uses the parts of gevent's socket: the descriptor and the two watchers. No timer is started for
a wait: each wait notes its deadline, and twice a second a sweep interrupts those that have expired.
"""

import os
import sys
from collections.abc import Callable
from fcntl import ioctl
from socket import MSG_PEEK
from termios import TIOCOUTQ
from time import monotonic
from typing import Any

import gevent
from gevent.exceptions import ConcurrentObjectUseError
from greenlet import getcurrent

from greenline.http.client import NEVER, RECV_BYTES, TIMED_WRITE_BYTES, Client, Over
from greenline.hub import deadline
from greenline.hub.cooperate import yield_to_hub
from greenline.hub.handlers import end_wait
from greenline.settings import Limits

CLIENT_SWEEP_S = 0.5
SENDFILE_BYTES = 1024 * 1024  # sent without a switch of greenlets


class PlainClient(Client):
    """
    A client behind gevent's own socket.

    :param sock: a gevent socket.
    :param limits: seconds and bytes that the client may take.
    :param sweep: interrupts the waits that have expired.
    """

    def __init__(self, sock: Any, limits: Limits, sweep: "Sweep") -> None:
        super().__init__(sock, limits)
        self.on_request: Callable[[bytes], None] | None = None
        self._raw = sock._sock
        self._reading = _Wait(sock._read_event)
        self._writing = _Wait(sock._write_event)
        self.waits = (self._reading, self._writing)
        self._hub = sock.hub
        self._sweep = sweep
        sweep.clients.add(self)

    def release(self) -> None:
        self._sweep.clients.discard(self)
        wait = self._reading
        if wait.until != NEVER and wait.end == self._end_of_wait:
            # gevent's close would look for the greenlet that waits.
            wait.watcher.stop()
            wait.until = NEVER
        # They refer to this client and to its connection: leave no cycle to the collector.
        self._reading.end = self._writing.end = _no_wait
        self.on_request = None

    def has_unread(self) -> bool:
        try:
            return bool(self._raw.recv(1, MSG_PEEK))  # nothing at the end of the stream
        except OSError:  # nothing came, or the connection is lost
            return False

    def expect_request(self, until_s: float) -> None:
        """
        Have ``on_request`` called in the hub with the first bytes of the next request.

        It is called with ``b""`` if the client has closed the connection, or at the deadline. Any
        greenlet may call this, and the client waits without one.

        :param until_s: the deadline, float, of the monotonic clock.
        """
        wait = self._reading
        if wait.until != NEVER:
            raise ConcurrentObjectUseError("another greenlet waits for this client")
        wait.end = self._end_of_wait
        wait.watcher.start(self._read_request)
        # Last: if the start fails, the sweep must not interrupt a wait that has not begun.
        wait.until = until_s

    def _read_request(self) -> None:
        if (data := self._received()) is not None:
            self._pass_on(data)

    def _end_of_wait(self, _: object) -> None:
        # If the process was stopped or the hub blocked beyond the deadline, the client's bytes may
        # have arrived in time.
        self._pass_on(self._received() or b"")

    def _received(self) -> bytes | None:
        """Return what has come, None if nothing has."""
        try:
            data: bytes = self._raw.recv(RECV_BYTES)
        except BlockingIOError:
            return None
        except OSError:  # the connection is lost
            return b""
        return data

    def _pass_on(self, data: bytes) -> None:
        # The wait ends before on_request(): a handler may start one of its own for the body.
        self._reading.watcher.stop()
        self._reading.until = NEVER
        self.on_request(data)  # type: ignore[misc]

    def recv(self, size: int, timeout_s: float) -> bytes:
        until = monotonic() + timeout_s
        while True:
            # Wait first, even if there is input: other greenlets run meanwhile.
            self._wait(self._reading, until)
            try:
                data: bytes = self._raw.recv(size)
            except BlockingIOError:
                continue
            return data

    def sendall(self, data: Any) -> None:
        # Most responses fit into the socket's buffer: one system call, no wait, no memoryview.
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

    def sendfile(self, file: Any, offset: int, count: int) -> int:
        to, of, budget = self._raw.fileno(), file.fileno(), _Budget(self.limits.write_s)
        start, end = offset, offset + count
        while start < end:
            try:
                sent = os.sendfile(to, of, start, min(end - start, SENDFILE_BYTES))
            except BlockingIOError:
                self._wait_writable(budget)
                continue
            except OSError:
                # Not every file supports it. An error of the file and one of the client look alike
                # here; read() and send() meet it again, each its own.
                return start - offset + super().sendfile(file, start, end - start)
            if sent == 0:  # the file has been truncated
                break
            start += sent
            budget.note(sent)
            yield_to_hub()  # a socket with room takes it without a wait
        return start - offset

    def _wait_writable(self, budget: "_Budget") -> None:
        started, queued = monotonic(), self._queued_bytes()
        try:
            with deadline.spending("writing"):
                self._wait(self._writing, started + budget.left_s)
        except Over:
            # The kernel reports room when a third of its buffer is free, which may be megabytes.
            taken = queued - self._queued_bytes()
            if taken < TIMED_WRITE_BYTES:
                raise self._not_taken() from None
            budget.note(taken)
            return
        budget.left_s -= monotonic() - started

    def _queued_bytes(self) -> int:
        """Return how many sent bytes the client's kernel has not acknowledged."""
        try:
            return int.from_bytes(ioctl(self._raw.fileno(), TIOCOUTQ, bytes(4)), sys.byteorder)
        except (OSError, ValueError):  # not a socket's on this system, or the socket is closed
            return 0

    def _wait(self, wait: "_Wait", until: float) -> None:
        # One greenlet may read while another writes, as in a streaming application. A second wait
        # in the same direction would replace the first, which would then never end.
        if wait.until != NEVER:
            raise ConcurrentObjectUseError("another greenlet waits for this client")
        waiter = getcurrent()
        wait.end = waiter.throw
        wait.until = until
        try:
            # This is Hub.wait() without its Waiter, which ensures that only the watcher resumes the
            # greenlet. Here the callers' loops do: they try again and wait again.
            wait.watcher.start(waiter.switch)
            self._wait_uncounted(self._hub.switch)
        except Over:
            # As in _end_of_wait().
            if wait is self._writing or not self.has_input():
                raise
        finally:
            wait.watcher.stop()
            wait.until = NEVER
            wait.end = _no_wait  # a handler that ends must not be kept
        end_wait()


class _Wait:
    """A wait to read or to write. Without one, the deadline is NEVER."""

    __slots__ = ("end", "until", "watcher")

    def __init__(self, watcher: Any) -> None:
        self.watcher = watcher
        self.until = NEVER
        self.end: Callable[[type[Over]], object] = _no_wait

    def interrupt(self) -> None:
        """End the wait, which has expired; call it in the hub."""
        self.until = NEVER  # at most one interrupt for each wait
        self.end(Over)


def _no_wait(_: object) -> None:
    """Stand for what ends a wait, before the first one."""


class _Budget:
    """The seconds left for the next 64 KiB of a response."""

    def __init__(self, limit_s: float) -> None:
        self.left_s = self._limit_s = limit_s
        self._taken = 0

    def note(self, taken: int) -> None:
        self._taken += taken
        if self._taken >= TIMED_WRITE_BYTES:
            self.left_s, self._taken = self._limit_s, 0


class Sweep:
    """Interrupt the waits that have expired, for all plain clients of a worker."""

    def __init__(self) -> None:
        self.clients: set[PlainClient] = set()
        self._timer: Any = None

    def start(self) -> None:
        self._timer = gevent.get_hub().loop.timer(CLIENT_SWEEP_S, CLIENT_SWEEP_S, ref=False)
        self._timer.start(self._interrupt)

    def _interrupt(self) -> None:
        # Runs in the hub, so a deadline other than NEVER means that its greenlet is in _wait(), or
        # that it waits for a request without one.
        now = monotonic()
        late = [wait for one in self.clients for wait in one.waits if wait.until <= now]
        for wait in late:
            # An interrupted greenlet runs at once, and may end the waits of others.
            if wait.until <= now:
                wait.interrupt()
