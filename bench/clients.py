"""
Clients of our own, for where it counts which worker has whom: hey does not tell.

1. A client asks over a connection that it keeps, and makes a new one when the response says
   ``Connection: close``, or lost the last one.
2. A request is sent once. No connection for it is "refused", any other end but a whole answer in
   time is "error".
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass
from time import monotonic

from bench.vegeta import Answer

# Above REQUEST_TIMEOUT: who gives up is the service and not the client.
PATIENCE_S = 40.0


@dataclass(frozen=True)
class Asked(Answer):
    """
    A request, sent at ``sent_s`` of this machine's clock.

    *port* is the client's, of a connection begun at *connecting_s*; 0 where there was none.
    """

    port: int = 0
    connecting_s: float = 0.0

    @property
    def ended_s(self) -> float:
        """When its answer was there, or was given up."""
        return self.sent_s + self.took_s


class Client:
    """One client of the server at *server_port* of the loopback."""

    def __init__(self, server_port: int, patience_s: float = PATIENCE_S) -> None:
        self.port, self.connecting_s = 0, 0.0
        self._server_port = server_port
        self._patience_s = patience_s
        self._streams: tuple[StreamReader, StreamWriter] | None = None

    async def ask(self, path: str) -> Asked:
        """Ask for *path* once."""
        sent_s, status, where = monotonic(), "refused", (0, 0.0)
        try:
            async with asyncio.timeout(self._patience_s):
                if self._streams is None:
                    await self._connect()
                status, where = "error", (self.port, self.connecting_s)
                status = await self._exchange(path)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            self.close()
        return Asked(sent_s, monotonic() - sent_s, status, *where)

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._streams = None

    async def _connect(self) -> None:
        self.connecting_s = monotonic()
        self._streams = await asyncio.open_connection("127.0.0.1", self._server_port)
        self.port = self._streams[1].get_extra_info("sockname")[1]

    async def _exchange(self, path: str) -> str:
        assert self._streams is not None
        reader, writer = self._streams
        writer.write(f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip().lower() for name, _, value in pairs}
        await reader.readexactly(int(headers.get("content-length", "0")))
        if headers.get("connection") == "close":
            self.close()
        return first.split()[1]
