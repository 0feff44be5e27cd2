"""
A client with TLS: gevent's socket reads, writes and waits, where a read may wait to write.

While it waits, the request is not counted as in progress.
"""

from typing import Any

from greenline.http.client import Client
from greenline.hub.cooperate import yield_to_hub
from greenline.settings import Limits


class TlsClient(Client):
    """A client behind gevent's TLS socket."""

    def __init__(self, sock: Any, limits: Limits) -> None:
        super().__init__(sock, limits)
        self._wait_for = sock._wait
        sock._wait = self._wait  # all its waits are one method of its own

    def close(self) -> None:
        vars(self.sock).pop("_wait", None)  # no cycle for the collector
        super().close()

    def _recv(self, size: int, timeout_s: float) -> bytes:
        if self.sock.pending() or self.has_input():
            yield_to_hub()  # else it waits, and that is where the others run
        return super()._recv(size, timeout_s)

    def _wait(self, *what: Any, **how: Any) -> None:
        limiter = self.limiter
        if limiter is not None:
            limiter.suspend()
        try:
            self._wait_for(*what, **how)
        finally:
            if limiter is not None:
                limiter.resume()
