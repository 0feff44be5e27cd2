"""
Count the connections at a MongoDB, again and again, from a process of its own.

By ``serverStatus.connections`` where the server tells (mongod), else by the sockets that the
server's process has open: either is the server's own view, closed when the server has closed it.
"""

import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from pymongo import MongoClient

from embedded.mongo import Mongo
from tests.helpers.support import CHECKOUT
from tests.helpers.watch import sockets

PAUSE_S = 0.001


def drivers_threads() -> set[threading.Thread]:
    """Return the threads of pymongo in this process, of the clients of other tests as well."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("pymongo")}


class Connections:
    """The connections that others than this class have at *server*, from now on."""

    def __init__(self, server: Mongo) -> None:
        command = [sys.executable, "-m", "tests.helpers.connections", server.kind, str(server.pid)]
        self._process = subprocess.Popen(
            [*command, server.url], cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.now()

    def now(self) -> int:
        """Return how many there are."""
        return self._ask()["now"]

    def most(self) -> int:
        """Return how many there were at the most."""
        return self._ask()["most"]

    def looks(self) -> int:
        """Return how often it was counted."""
        return self._ask()["looks"]

    def close(self) -> None:
        """Count no more."""
        self._process.communicate(timeout=60)

    def _ask(self) -> dict[str, int]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        answer: dict[str, int] = json.loads(self._process.stdout.readline())
        return answer


def _count(kind: str, pid: int, url: str) -> Callable[[], int]:
    if kind == "mongod":
        client: MongoClient[dict[str, object]] = MongoClient(url, directConnection=True)
        return lambda: client.admin.command("serverStatus")["connections"]["current"]
    return lambda: len(sockets(pid))


def _main(kind: str, pid: int, url: str) -> None:
    count = _count(kind, pid, url)
    count()
    time.sleep(1)  # for monitors of its own
    mine = now = most = count()
    looks = 0
    while True:
        now = count()
        most, looks = max(most, now), looks + 1
        if select.select([sys.stdin], [], [], PAUSE_S)[0]:
            if not sys.stdin.readline():
                return
            print(json.dumps({"now": now - mine, "most": most - mine, "looks": looks}), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
