"""
Slow clients, in a process of their own: uploads and downloads of a kilobyte a second.

    python -m bench.trickle ADDRESS UPLOADS DOWNLOADS

1. ADDRESS is a port of the loopback, or the path of a unix socket.
2. An upload is a task of STEPS kilobytes; when it was answered, the next one begins. The first ones
   are shorter, so that they do not end together. A download is the description of the API, which
   none of them ever has as a whole: its socket holds little of it.
3. Each sends or takes STEP_BYTES a second, and they take turns. "ready" is said when each upload
   has sent something and each download has got 200.
4. At the end of standard input all hang up, and the outcomes are printed as JSON.
"""

import asyncio
import json
import socket
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

STEP_BYTES, STEP_S, STEPS = 1000, 1.0, 10
SMALL_BUFFER_BYTES = 4096
READY_LIMIT_S = 60
UPLOAD, DOWNLOAD = "upload", "download"
TASK = b'{"agent_id":1,"title":"slow"}'
UPLOAD_HEAD = (
    "POST /tasks HTTP/1.1\r\nHost: slow\r\nContent-Type: application/json\r\n"
    "Content-Length: {}\r\nConnection: close\r\n\r\n"
)
DOWNLOAD_HEAD = b"GET /openapi.json HTTP/1.1\r\nHost: slow\r\nConnection: close\r\n\r\n"


class Clients:
    """All of them, in the process of their own."""

    def __init__(self, address: str, uploads: int, downloads: int) -> None:
        self._address = address
        self._works = [*[UPLOAD] * uploads, *[DOWNLOAD] * downloads]
        self._begun: set[int] = set()
        self.statuses: Counter[str] = Counter()

    async def run(self) -> None:
        """Be slow until standard input ends."""
        over = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), over.set)
        tasks = [asyncio.create_task(self._go_on(number)) for number in range(len(self._works))]
        try:
            await over.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _go_on(self, number: int) -> None:
        work = self._works[number]
        await asyncio.sleep(number * STEP_S / len(self._works))
        while True:
            try:
                status = await (self._upload if work == UPLOAD else self._download)(number)
            except OSError:
                status = "lost"
                await asyncio.sleep(STEP_S)
            self.statuses[f"{work} {status}"] += 1

    async def _upload(self, number: int) -> str:
        loop = asyncio.get_running_loop()
        steps = STEPS if number in self._begun else 1 + number % STEPS
        task = TASK.ljust(steps * STEP_BYTES)
        with closing(self._socket()) as sock:
            await loop.sock_connect(sock, self._place())
            await loop.sock_sendall(sock, UPLOAD_HEAD.format(len(task)).encode())
            for start in range(0, len(task), STEP_BYTES):
                await loop.sock_sendall(sock, task[start : start + STEP_BYTES])
                self._note_begun(number)
                await asyncio.sleep(STEP_S)
            return _status(await loop.sock_recv(sock, 65_536))

    async def _download(self, number: int) -> str:
        loop = asyncio.get_running_loop()
        with closing(self._socket()) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
            await loop.sock_connect(sock, self._place())
            await loop.sock_sendall(sock, DOWNLOAD_HEAD)
            data = await loop.sock_recv(sock, STEP_BYTES)
            if (status := _status(data)) != "200":
                return status
            self._note_begun(number)
            while data:
                await asyncio.sleep(STEP_S)
                data = await loop.sock_recv(sock, STEP_BYTES)
        raise OSError("it was closed, or is over before anybody expected it")

    def _socket(self) -> socket.socket:
        is_port = self._address.isdigit()
        sock = socket.socket(socket.AF_INET if is_port else socket.AF_UNIX)
        sock.setblocking(False)
        return sock

    def _place(self) -> tuple[str, int] | str:
        return ("127.0.0.1", int(self._address)) if self._address.isdigit() else self._address

    def _note_begun(self, number: int) -> None:
        if number in self._begun:
            return
        self._begun.add(number)
        if len(self._begun) == len(self._works):
            print("ready", flush=True)


def _status(data: bytes) -> str:
    if not data.startswith(b"HTTP/1.1 "):
        raise OSError("no answer")
    return data[9:12].decode()


class Trickle:
    """That process, for the length of a block; *address* is a port or a path."""

    def __init__(self, address: int | str, uploads: int, downloads: int) -> None:
        self._command = [
            sys.executable, "-m", "bench.trickle", str(address), str(uploads), str(downloads),
        ]  # fmt: skip
        self.statuses: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=Path(__file__).resolve().parents[1], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        return self

    def is_ready(self) -> bool:
        """Wait until all have begun; return whether they have."""
        assert self._process.stdout is not None
        return self._process.stdout.readline() == "ready\n"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            said, _ = self._process.communicate(timeout=READY_LIMIT_S)
            self.statuses.update(json.loads(said.splitlines()[-1]))
        finally:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Be slow, and tell how it went."""
    address, uploads, downloads = sys.argv[1:]
    clients = Clients(address, int(uploads), int(downloads))
    asyncio.run(clients.run())
    print(json.dumps(clients.statuses))


if __name__ == "__main__":
    main()
