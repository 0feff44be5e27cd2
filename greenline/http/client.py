"""
The client's socket, and for how long the client may keep the worker waiting.

1. A read waits until there is something to read, always: that is where the others run.
2. Time spent waiting is taken from the budget of what is expected: a request, the rest of its
   head, its body. The application's own time is not counted.
3. An answer is taken when each 64 KiB of it are taken in time.
4. A client that may still be sending is told its answer first: an early close lingers.
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
LINGER_S, LINGER_READ_S = 30.0, 5.0  # all together, and for the next bytes
LINGER_BYTES = 16 * 1024 * 1024
NEVER = float("inf")


class ClientTimeout(TimeoutError):
    """The client kept the worker waiting for longer than it may."""


class IdleTimeout(ClientTimeout):
    """No request came in time."""


class HeadTimeout(ClientTimeout):
    """The head of a request did not come in time."""


class BodyTimeout(ClientTimeout):
    """The body of a request did not come in time."""


class WriteTimeout(ClientTimeout):
    """The client did not take its answer in time."""


class StatusNoter:
    """A socket that notes the status of the answer that gunicorn sends over it."""

    status = 500

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, data: bytes) -> None:
        if data.startswith(b"HTTP/"):
            self.status = int(data.split(b" ", 2)[1])
        self._sock.sendall(data)


class Over(Exception):
    """A wait took as long as it may."""


class Client:
    """
    A client behind any socket with gevent's interface.

    It stands for the socket where gunicorn's parser reads, and where a response is written.
    ``error`` is the one by which the client was lost or given up.
    """

    error: OSError | None = None
    idle_since_s = 0.0  # when it began to wait for the next request
    # Called in the hub with the first bytes of a request. If it returns True, it has taken them and
    # resume_request() or end_request() follows; else recv_request() returns them.
    on_request: Callable[[bytes], bool] | None = None
    limiter: ConcurrencyLimiter | None = None  # suspended while the request waits for the client

    def __init__(self, sock: Any, limits: Limits) -> None:
        self.sock = sock
        self.limits = limits
        self.expect_head()

    def has_input(self) -> bool:
        """Return whether something came that nobody has read yet."""
        return self.sock.fileno() >= 0 and poll.has(self.sock, select.POLLIN)

    def expect(self, error: type[ClientTimeout], total_s: float, each_s: float = NEVER) -> None:
        """Allow *total_s* seconds of waiting for what comes next, *each_s* for a read of it."""
        self._late, self._left_s, self._each_s = error, total_s, each_s

    def expect_head(self) -> None:
        self.expect(HeadTimeout, self.limits.head_s)

    def expect_body(self) -> None:
        self.expect(BodyTimeout, self.limits.body_s, self.limits.body_read_s)

    def recv_request(self, idle_s: float) -> Any:
        """
        Return the first bytes of a request, nothing when the client has closed.

        A client without TLS lets ``on_request`` take them first. It returns what ``end_request``
        is given then.

        Raises:
            IdleTimeout: no request came in time.
        """
        self.idle_since_s = monotonic()
        self.expect(IdleTimeout, idle_s)
        return self.recv()

    def recv(self, size: int = RECV_BYTES) -> bytes:
        """
        Return what comes next, nothing when the client has closed.

        Raises:
            ClientTimeout: nothing came in time.
            OSError: the client is gone.
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
            self._left_s = max(self._left_s - (monotonic() - started), 0.0)

    def sendall(self, data: Any) -> None:
        """
        Send *data*.

        Raises:
            WriteTimeout: the client does not read.
            OSError: the client is gone.
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
        Send *count* bytes of *file* from *offset*, as ``sendall`` does; return how many.

        Raises:
            EOFError: the file has fewer.
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
        """Let the client, which may still be sending, read its answer before the socket closes."""
        with suppress(OSError, ConcurrentObjectUseError):
            self.sock.shutdown(SHUT_WR)
            self.expect(IdleTimeout, timeout_s, LINGER_READ_S)
            left = LINGER_BYTES
            while left > 0 and (data := self.recv()):
                left -= len(data)

    def reset(self) -> None:
        """Let the kernel forget what the client does not take."""
        with suppress(OSError):
            self.sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))

    def close(self) -> None:
        with suppress(OSError):
            self.sock.close()

    def _recv(self, size: int, timeout_s: float) -> bytes:
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
            yield_to_hub()
        return count - left

    def _not_taken(self) -> WriteTimeout:
        self.error = error = WriteTimeout(f"64 KiB were not taken in {self.limits.write_s:g} s")
        return error
