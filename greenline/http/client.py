"""
Read from and write to a client's socket, with limits on the time that the client may take.

The seconds that reads wait are subtracted from one budget for each stage: a request, the rest of
its head, its body. The application's own time is not counted.
"""

import select
import struct
from collections.abc import Callable
from contextlib import suppress
from socket import SHUT_WR, SO_LINGER, SOL_SOCKET
from time import monotonic
from typing import Any

from gevent.exceptions import ConcurrentObjectUseError

from greenline.admission.limiter import ConcurrencyLimiter
from greenline.hub import poll
from greenline.hub.cooperate import yield_to_hub
from greenline.settings import Limits

RECV_BYTES = TIMED_WRITE_BYTES = 65_536
LINGER_S, LINGER_READ_S = 30.0, 5.0  # in total, and for each read
LINGER_BYTES = 16 * 1024 * 1024
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


class StatusNoter:
    """
    Wrap a socket and note the status of the response that gunicorn sends over it.

    :param sock: the client's socket.
    """

    status = 500

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, data: bytes) -> None:
        # gunicorn's error responses are written in one piece that begins with the status line.
        if data.startswith(b"HTTP/"):
            self.status = int(data.split(b" ", 2)[1])
        self._sock.sendall(data)


class Over(Exception):
    """A wait reached its limit."""


class Client:
    """
    A client behind any socket with gevent's interface.

    gunicorn's parser reads from it and responses are written to it as if it were the socket.

    :param sock: the client's socket.
    :param limits: seconds and bytes that the client may take.
    """

    error: OSError | None = None  # the one that ended the connection
    idle_since_s = 0.0  # when the wait for the next request began
    # Called in the hub with the first bytes of a request. If it returns True, it has taken them and
    # resume_request() or end_request() follows; else recv_request() returns them.
    on_request: Callable[[bytes], bool] | None = None
    limiter: ConcurrencyLimiter | None = None  # suspended while the request waits for the client

    def __init__(self, sock: Any, limits: Limits) -> None:
        self.sock = sock
        self.limits = limits
        self.expect_head()

    def has_input(self) -> bool:
        """Return whether there are bytes to read, or the end of the stream."""
        return self.sock.fileno() >= 0 and poll.has(self.sock, select.POLLIN)

    def expect(self, error: type[ClientTimeout], total_s: float, each_s: float = NEVER) -> None:
        """
        Set the budget of the next stage.

        :param error: raised when it is used up.
        :param total_s: seconds that all reads together may wait, float.
        :param each_s: seconds that one read may wait, float; default: no limit of its own.
        """
        self._late, self._left_s, self._each_s = error, total_s, each_s

    def expect_head(self) -> None:
        self.expect(HeadTimeout, self.limits.head_s)

    def expect_body(self) -> None:
        self.expect(BodyTimeout, self.limits.body_s, self.limits.body_read_s)

    def recv_request(self, idle_s: float) -> Any:
        """
        Return the first bytes of a request, ``b""`` when the client has closed.

        A plain client passes them to ``on_request`` first. If that takes them, the argument of
        ``end_request`` is returned instead.

        :param idle_s: seconds to wait, float.
        :raises IdleTimeout: no request arrived in time.
        """
        self.idle_since_s = monotonic()
        self.expect(IdleTimeout, idle_s)
        return self.recv()

    def recv(self, size: int = RECV_BYTES) -> bytes:
        """
        Return the next bytes, ``b""`` when the client has closed.

        :param size: how many at most, int, default 65,536.
        :raises ClientTimeout: nothing arrived in time.
        :raises OSError: the connection was lost.
        """
        timeout_s = min(self._left_s, self._each_s)
        started = monotonic()
        try:
            return self._recv(size, timeout_s)
        except Over:
            self.error = self._late(f"nothing came in {timeout_s:.1f} s")
            raise self.error from None
        except OSError as error:
            self.error = error
            raise
        finally:
            # Only the wait counts: the application computes between two reads of its body.
            self._left_s = max(self._left_s - (monotonic() - started), 0.0)

    def sendall(self, data: Any) -> None:
        """
        Send *data*.

        :raises WriteTimeout: the client did not read 64 KiB of it in time.
        :raises OSError: the connection was lost.
        """
        try:
            self._sendall(data)
        except Over:
            raise self._not_taken() from None
        except OSError as error:
            self.error = error
            raise

    def send(self, data: Any) -> int:
        self.sendall(data)
        return len(data)

    def sendfile(self, file: Any, offset: int = 0, count: int = 0) -> int:
        """
        Send a part of a file, as ``sendall`` does.

        :param file: a file opened for reading in binary mode.
        :param offset: where the part begins, int, in bytes, default 0.
        :param count: its length, int, in bytes, default 0.
        :returns: how many bytes were sent.
        :raises EOFError: the file has fewer than *count*.
        """
        try:
            sent = self._sendfile(file, offset, count)
        except Over:
            raise self._not_taken() from None
        except OSError as error:
            self.error = error
            raise
        if sent < count:
            raise EOFError(f"the file ended {count - sent} bytes before the Content-Length")
        return sent

    def linger(self, timeout_s: float = LINGER_S) -> None:
        """
        Let a client that may still be sending read its response before the socket closes.

        :param timeout_s: seconds for that, float, default 30.
        """
        # Closing a socket with unread bytes sends a reset, which discards the response on its way.
        # So only the sending half is closed, and the rest of the request is read and dropped.
        with suppress(OSError, ConcurrentObjectUseError):
            self.sock.shutdown(SHUT_WR)
            self.expect(IdleTimeout, timeout_s, LINGER_READ_S)
            left = LINGER_BYTES
            while left > 0 and (data := self.recv()):
                left -= len(data)

    def reset(self) -> None:
        """Discard unsent bytes when the socket closes: the client does not read them."""
        with suppress(OSError):
            self.sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))

    def close(self) -> None:
        with suppress(OSError):
            self.sock.close()

    def _recv(self, size: int, timeout_s: float) -> bytes:
        # With an exhausted budget the timeout must not be 0: that makes the socket non-blocking.
        self.sock.settimeout(None if timeout_s == NEVER else timeout_s + 0.001)
        try:
            data: bytes = self.sock.recv(size)
        except TimeoutError:
            raise Over from None
        finally:
            self.sock.settimeout(None)
        return data

    def _sendall(self, data: Any) -> None:
        self.sock.settimeout(self.limits.write_s)
        try:
            # The time limit is for each 64 KiB; sendall() of it all would have one limit in total.
            with memoryview(data) as view:
                for start in range(0, len(view), TIMED_WRITE_BYTES):
                    self.sock.sendall(view[start : start + TIMED_WRITE_BYTES])
        except TimeoutError:
            raise Over from None
        finally:
            self.sock.settimeout(None)

    def _sendfile(self, file: Any, offset: int, count: int) -> int:
        file.seek(offset)
        left = count
        while left > 0 and (data := file.read(min(left, TIMED_WRITE_BYTES))):
            self._sendall(data)
            left -= len(data)
            yield_to_hub()  # a socket with room takes it without a wait
        return count - left

    def _not_taken(self) -> WriteTimeout:
        self.error = error = WriteTimeout(f"64 KiB were not taken in {self.limits.write_s:g} s")
        return error
