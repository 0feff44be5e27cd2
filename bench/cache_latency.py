"""
How soon another worker of the service reads a write: at rest, and after what interrupts the
listener.

1. A write counts when it was acknowledged; then the other worker is asked until it answers with it.
   The last answer without it is what counts: an answer may be late for other reasons, such as a
   reload.
2. After each interruption all writes of the next two seconds count; the slowest is shown as well,
   which the others could hide.
3. The worker that is killed is the one that listens: it has the lock of the feed.
"""

import http.client
import json
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path

from bench import promises, report
from bench.hey import percentile_ms
from bench.servers import Server, ServerError

WORKERS = 3  # one may be killed
LATENCIES, EVENTS, WATCHED_S, PATIENCE_S = 300, 10, 2.0, 20.0
MAX_LATENCY_MS = 100.0
BODY = json.dumps({"title": "Another title"})
BROKEN = (OSError, http.client.HTTPException, ServerError)


class _Connection:
    """One that stays with its worker."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        self._connection.connect()
        self._connection.auto_open = 0  # else it would be to any worker after a close
        _, self.worker = self.ask("GET", "/books/1")

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        """Return the version of the item, and the worker."""
        headers = {} if body is None else {"Content-Type": "application/json"}
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise ServerError(f"{method} {path}: {answer.status} {text[:200]!r}")
        return json.loads(text)["version"], answer.headers["Cache-Status"].partition(";")[0]

    def close(self) -> None:
        """Close it."""
        self._connection.close()


class Pair:
    """
    Connections to two workers of *server*, made again where one breaks.

    :raises ServerError: there were none within ``PATIENCE_S``.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._writer = self._connect("")
        self._reader = self._connect(self._writer.worker)

    def latency_s(self, number: int) -> float | None:
        """Return for how long the other worker answers without a write; None: it failed."""
        path = f"/books/{number % 50 + 1}"
        try:
            self._reader.ask("GET", path)
            version, _ = self._writer.ask("PATCH", path, BODY)
        except BROKEN:
            self.close()
            self.__init__(self._server)  # type: ignore[misc]
            return None
        written_s = older_s = time.monotonic()
        while True:
            try:
                if self._reader.ask("GET", path)[0] >= version:
                    return older_s - written_s
                older_s = time.monotonic()
            except BROKEN:
                self._reader.close()
                self._reader = self._connect(self._writer.worker)

    def close(self) -> None:
        """Close both."""
        self._writer.close()
        self._reader.close()

    def _connect(self, other: str) -> _Connection:
        """Return a connection to a worker that is not *other*."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            with suppress(*BROKEN):
                one = _Connection(self._server.port)
                if one.worker != other:
                    return one
                one.close()
        raise ServerError("no other worker has answered")


def measure(found: report.Report, server: Server, restart: Callable[[], None]) -> None:
    """
    Measure the latencies.

    :param found: gets the verdicts.
    :param server: the service with ``WORKERS`` workers.
    :param restart: restarts its Postgres.
    """
    pair = Pair(server)
    took_s = sorted(each for each in map(pair.latency_s, range(LATENCIES)) if each is not None)
    p50, p99 = percentile_ms(took_s, 0.5), percentile_ms(took_s, 0.99)
    print(f"a write is read from the other worker after {p50} ms (p50), {p99} ms (p99)", flush=True)
    what = "a write that the other worker reads, ms, p99"
    found.verdicts.append(promises.at_most(what, p99 or 0.0, MAX_LATENCY_MS))

    def reload() -> None:
        assert server.process is not None
        server.process.send_signal(signal.SIGHUP)

    events: dict[str, Callable[[], None]] = {
        "a kill of the worker that listens": lambda: os.kill(_listener(server), signal.SIGKILL),
        "a reload": reload,
        "a restart of Postgres": restart,
    }
    for name, event in events.items():
        after = [_latencies_s(pair, event) for _ in range(EVENTS)]
        slowest = sorted(round(max(each) * 1000, 1) for each in after)
        print(f"the slowest after {name}, ms: {slowest}", flush=True)
        p99 = percentile_ms(sorted(chain.from_iterable(after)), 0.99)
        what = f"a write that the other worker reads within {WATCHED_S:g} s of {name}, ms, p99"
        found.verdicts.append(promises.at_most(what, p99 or 0.0, MAX_LATENCY_MS))
    pair.close()


def _latencies_s(pair: Pair, event: Callable[[], None]) -> list[float]:
    """Return the latencies of the writes after *event*, of one at least."""
    event()
    found: list[float] = []
    until_s = time.monotonic() + WATCHED_S
    while not found or time.monotonic() < until_s:
        late_s = pair.latency_s(len(found))
        if late_s is not None:
            found.append(late_s)
    return found


def _listener(server: Server) -> int:
    """Return the process id of the worker that listens."""
    assert server.process is not None
    arbiter = server.process.pid
    workers = Path(f"/proc/{arbiter}/task/{arbiter}/children").read_text().split()
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        locks = re.findall(r"FLOCK +ADVISORY +WRITE (\d+) ", Path("/proc/locks").read_text())
        if both := set(locks) & set(workers):
            return int(both.pop())
    raise ServerError("no worker listens")
