"""
Read from and write to a client's socket, with limits on the time that the client may take.

A :class:`~greenline.http.connection.ClientConnection` owns the client, and all that is known of its
requests.
"""

import select
import struct
from collections.abc import Callable
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

from greenline.admission.limiter import ConcurrencyLimiter
from greenline.hub import deadline, poll
from greenline.hub.cooperate import yield_to_hub
from greenline.settings import Limits

RECV_BYTES = TIMED_WRITE_BYTES = 65_536
NEVER = float("inf")


class ClientTimeout(TimeoutError):
    """The client took longer than its limit."""


class IdleTimeout(ClientTimeout):
    """No request arrived in time."""


class HeadTimeout(ClientTimeout):
    """The head of a request did not arrive in time."""


class BodyTimeout(ClientTimeout):
    """The body of a request did not arrive in time."""


class WriteTimeout(ClientTimeout):
    """The client did not read its response in time."""


class UnreadableFile(Exception):
    """A file that is being sent cannot be read: not an OSError, which is the client's."""


class Over(Exception):
    """A wait reached its limit."""


class Client:
    """
    A client behind any socket with gevent's interface.

    Its connection alone calls it and sets its attributes.

    :param sock: the client's socket.
    :param limits: seconds that the client may take.
    """

    limiter: ConcurrencyLimiter | None = None  # that counts the request in progress
    uncounted: "UncountedWaits | None" = None  # those of the request in progress

    def __init__(self, sock: Any, limits: Limits) -> None:
        self.sock = sock
        self.limits = limits

    def has_input(self) -> bool:
        """Return whether there are bytes to read, or the end of the stream."""
        return self.sock.fileno() >= 0 and poll.has(self.sock, select.POLLIN)

    def has_unread(self) -> bool:
        """Return whether there may be bytes to read, for which a close would send a reset."""
        return self.has_input()

    def recv_request(self, idle_s: float) -> bytes:
        """
        Return the first bytes of a request, ``b""`` when the client has closed.

        :param idle_s: seconds to wait, float.
        :raises IdleTimeout: no request arrived in time.
        :raises OSError: the connection was lost.
        """
        try:
            return self.recv(RECV_BYTES, idle_s)
        except Over:
            raise IdleTimeout(f"no request came in {idle_s:g} s") from None

    def recv(self, size: int, timeout_s: float) -> bytes:
        """
        Return the next bytes, ``b""`` when the client has closed.

        :param size: how many at most, int.
        :param timeout_s: seconds to wait, float; NEVER: without a limit.
        :raises Over: nothing arrived in time.
        :raises OSError: the connection was lost.
        """
        # With an exhausted budget the timeout must not be 0: that makes the socket non-blocking.
        self.sock.settimeout(None if timeout_s == NEVER else timeout_s + 0.001)
        try:
            data: bytes = self.sock.recv(size)
        except TimeoutError:
            raise Over from None
        finally:
            self.sock.settimeout(None)
        return data

    def sendall(self, data: Any) -> None:
        """
        Send *data*.

        :raises WriteTimeout: the client did not read 64 KiB of it in time.
        :raises OSError: the connection was lost.
        """
        self.sock.settimeout(self.limits.write_s)
        try:
            # The time limit is for each 64 KiB; sendall() of it all would have one limit in total.
            with deadline.spending("writing"), memoryview(data) as view:
                for start in range(0, len(view), TIMED_WRITE_BYTES):
                    self.sock.sendall(view[start : start + TIMED_WRITE_BYTES])
        except TimeoutError:
            raise self._not_taken() from None
        finally:
            self.sock.settimeout(None)

    def sendfile(self, file: Any, offset: int, count: int) -> int:
        """
        Send a part of a file, as ``sendall`` does.

        :param file: a file opened for reading in binary mode.
        :param offset: where the part begins, int, in bytes.
        :param count: its length, int, in bytes.
        :returns: how many bytes were sent, fewer than *count* at the end of the file.
        :raises UnreadableFile: the file cannot be read.
        :raises OSError: the connection was lost.
        """
        sent = 0
        while sent < count:
            data = _read(file, offset + sent, min(count - sent, TIMED_WRITE_BYTES))
            if not data:  # the file has been truncated
                break
            self.sendall(data)
            sent += len(data)
            yield_to_hub()  # a socket with room takes it without a wait
        return sent

    def reset(self) -> None:
        """Discard unsent bytes when the socket closes: the client does not read them."""
        with suppress(OSError):
            self.sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))

    def release(self) -> None:
        """Prepare for the close of the socket: leave no cycle to the collector."""

    def _wait_uncounted(self, wait: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call *wait*, which waits for the client, while its request does not count."""
        limiter, waits = self.limiter, self.uncounted
        if limiter is None:
            return wait(*args, **kwargs)
        if waits is None:
            waits = self.uncounted = UncountedWaits(limiter)
        waits.begin()  # a slow client must not occupy one of the requests in progress
        try:
            return wait(*args, **kwargs)
        finally:
            waits.end()

    def _not_taken(self) -> WriteTimeout:
        return WriteTimeout(f"64 KiB were not taken in {self.limits.write_s:g} s")


class UncountedWaits:
    """
    The waits for the client of a request, which does not count meanwhile.

    One greenlet of an application may read while another writes, and wait on after the request.

    :param limiter: the limiter that counts the request.
    """

    __slots__ = ("_is_over", "_limiter", "count")

    def __init__(self, limiter: ConcurrencyLimiter) -> None:
        self._limiter = limiter
        self._is_over = False
        self.count = 0

    def begin(self) -> None:
        """Begin a wait."""
        self.count += 1
        if self.count == 1 and not self._is_over:
            self._limiter.suspend()

    def end(self) -> None:
        """End a wait."""
        self.count -= 1
        if self.count == 0 and not self._is_over:
            self._limiter.resume()

    def end_request(self) -> None:
        """Count the request again, for its end."""
        if self.count:
            self._limiter.resume()
        self._is_over = True


def _read(file: Any, offset: int, size: int) -> bytes:
    try:
        file.seek(offset)
        data: bytes = file.read(size)
    except OSError as error:
        raise UnreadableFile(f"a file that was being sent: {error}") from error
    return data
