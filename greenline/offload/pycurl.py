"""
Let pycurl wait in the hub: a handle performs its transfer by libcurl's interface for several ones,
which says what to wait for. So its callbacks run in the greenlet that performs.
"""

from io import BytesIO
from time import monotonic
from types import ModuleType
from typing import Any

from gevent.select import select

from greenline.hub.deadline import wait_in
from greenline.offload import threads

# libcurl asks for a look after some time; at the latest where it waits for nothing that it names.
MAX_WAIT_S = 1.0


class _Transfers:
    """
    The transfers of one handle, one after the other, over the same connections.

    :param pycurl: the module.
    """

    def __init__(self, pycurl: Any) -> None:
        self._pycurl = pycurl
        self._events: dict[int, int] = {}  # by file descriptor, what libcurl waits for
        self._until_s = 0.0
        self._multi = multi = pycurl.CurlMulti()
        multi.setopt(pycurl.M_SOCKETFUNCTION, self._note_socket)
        multi.setopt(pycurl.M_TIMERFUNCTION, self._note_time)

    def perform(self, curl: Any) -> None:
        """Perform the transfer of *curl*, or raise pycurl's error."""
        multi = self._multi
        multi.add_handle(curl)
        try:
            multi.socket_action(self._pycurl.SOCKET_TIMEOUT, 0)
            while True:
                _, done, failed = multi.info_read()
                if failed:
                    raise self._pycurl.error(*failed[0][1:])
                if done:
                    return
                self._wait()
        finally:
            multi.remove_handle(curl)

    def _wait(self) -> None:
        curl, events = self._pycurl, self._events
        readers = [fd for fd, event in events.items() if event & curl.POLL_IN]
        writers = [fd for fd, event in events.items() if event & curl.POLL_OUT]
        left_s = min(max(self._until_s - monotonic(), 0.0), MAX_WAIT_S)
        can_read, can_write, _ = wait_in(select, readers, writers, [], left_s)
        for fd in {*can_read, *can_write}:
            reads, writes = fd in can_read, fd in can_write
            bits = curl.CSELECT_IN * reads | curl.CSELECT_OUT * writes
            self._multi.socket_action(fd, bits)
        if not can_read and not can_write:
            self._multi.socket_action(curl.SOCKET_TIMEOUT, 0)

    def _note_socket(self, event: int, fd: int, *_: Any) -> None:
        if event == self._pycurl.POLL_REMOVE:
            self._events.pop(fd, None)
        else:
            self._events[fd] = event

    def _note_time(self, left_ms: int) -> None:
        self._until_s = monotonic() + (MAX_WAIT_S if left_ms < 0 else left_ms / 1000)


def patch(module: ModuleType) -> None:
    """Replace the classes of the module ``pycurl``."""
    pycurl: Any = module
    base, multi = pycurl.Curl, pycurl.CurlMulti

    class Curl(base):  # type: ignore[misc, valid-type]
        __doc__ = base.__doc__
        __module__ = "pycurl"

        def perform(self) -> None:
            """Perform the transfer."""
            if not threads.can_wait():
                super().perform()
                return
            transfers = getattr(self, "_greenline_transfers", None)
            if transfers is None:
                transfers = self._greenline_transfers = _Transfers(pycurl)
            transfers.perform(self)

        def perform_rb(self) -> bytes:
            """Perform the transfer and return the body."""
            written = BytesIO()
            self.setopt(pycurl.WRITEDATA, written)
            self.perform()
            return written.getvalue()

        def perform_rs(self) -> str:
            """Perform the transfer and return the body as text."""
            return self.perform_rb().decode()

    class CurlMulti(multi):  # type: ignore[misc, valid-type]
        __doc__ = multi.__doc__
        __module__ = "pycurl"

        def select(self, timeout: float) -> int:
            """Wait until a transfer can go on."""
            # To its end: nothing else may use the handle meanwhile.
            return int(threads.run_to_the_end(super().select, timeout))

    pycurl.Curl, pycurl.CurlMulti = Curl, CurlMulti
