"""
Read from and write to a client with TLS through gevent's socket.

A TLS read may have to wait until the socket is writable, so gevent does the waiting.
"""

from typing import Any

from greenline.http.client import Client
from greenline.hub.cooperate import yield_to_hub
from greenline.settings import Limits


class TlsClient(Client):
    """
    A client behind gevent's TLS socket.

    :param sock: a gevent TLS socket.
    :param limits: seconds and bytes that the client may take.
    """

    def __init__(self, sock: Any, limits: Limits) -> None:
        super().__init__(sock, limits)
        self._wait_of_socket = sock._wait
        sock._wait = self._wait  # private to gevent: all waits of a socket call it

    def release(self) -> None:
        vars(self.sock).pop("_wait", None)  # leave no cycle to the collector

    def has_input(self) -> bool:
        # `pending` counts the bytes that TLS has decrypted already, which the kernel shows no more.
        return self.sock.fileno() >= 0 and (self.sock.pending() > 0 or super().has_input())

    def recv(self, size: int, timeout_s: float) -> bytes:
        # A read that need not wait would let no other greenlet run.
        if self.has_input():
            yield_to_hub()
        return super().recv(size, timeout_s)

    def _wait(self, *args: Any, **kwargs: Any) -> None:
        self._wait_uncounted(self._wait_of_socket, *args, **kwargs)
