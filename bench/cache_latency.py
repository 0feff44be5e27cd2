"""
How soon another worker of the service reads a write: at rest, and after what interrupts the
reader.

1. A write counts when it was acknowledged; then the other worker is asked until it answers with it.
   The last answer without it is what counts: an answer may be late for other reasons, such as a
   reload.
2. After each interruption all writes of the next two seconds count. The slowest, which the others
   could hide, counts as well: the middle one of the interruptions.
3. The worker that is killed is the one that reads announcements: it has the lock of the feed.
"""

import http.client
import json
import os
import re
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path

from bench import promises, report
from bench.hey import percentile_ms
from bench.servers import Server, ServerError

WORKERS = 3  # one may be killed
LATENCIES, EVENTS, WATCHED_S, PATIENCE_S = 300, 10, 2.0, 20.0
MAX_LATENCY_MS = 100.0
BODY = json.dumps({"title": "Another title"})
BOOKS = [f"/books/{number}" for number in range(1, 51)]
BROKEN = (OSError, http.client.HTTPException, ServerError)


class _Connection:
    """One that stays with its worker."""

    def __init__(self, port: int, path: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        self._connection.connect()
        self._connection.auto_open = 0  # else it would be to any worker after a close
        try:
            _, self.worker = self.ask("GET", path)
        except BaseException:
            self.close()
            raise

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

    :param server: the service.
    :param paths: of items, which are kept and have a title.
    :param avoided: the name of a worker that is neither of the two, str. Default none.
    :raises ServerError: there were no two within ``PATIENCE_S``.
    """

    def __init__(self, server: Server, paths: Sequence[str], avoided: str = "") -> None:
        self._server = server
        self._paths = paths
        self._writer = self._connect(avoided)
        self._reader = self._connect(avoided, self._writer.worker)

    def latency_s(self, number: int) -> float:
        """
        Return for how long the other worker answers without a write.

        :raises ServerError: no write, or no read after it, has succeeded within ``PATIENCE_S``.
        """
        path, until_s = self._paths[number % len(self._paths)], time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            try:
                self._reader.ask("GET", path)
                version, _ = self._writer.ask("PATCH", path, BODY)
            except BROKEN:
                self.close()
                self._writer = self._connect()
                self._reader = self._connect(self._writer.worker)
            else:
                return self._older_s(path, version)
        raise ServerError("no write has succeeded")

    def close(self) -> None:
        """Close both."""
        self._writer.close()
        self._reader.close()

    def _older_s(self, path: str, version: int) -> float:
        written_s = older_s = time.monotonic()
        while time.monotonic() < written_s + PATIENCE_S:
            try:
                if self._reader.ask("GET", path)[0] >= version:
                    return older_s - written_s
                older_s = time.monotonic()
            except BROKEN:
                self._reader.close()
                self._reader = self._connect(self._writer.worker)
        raise ServerError(f"{path} does not show a write")

    def _connect(self, *avoided: str) -> _Connection:
        """Return a connection to a worker that is none of *avoided*."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            with suppress(*BROKEN):
                one = _Connection(self._server.port, self._paths[0])
                if one.worker not in avoided:
                    return one
                one.close()
            time.sleep(0.005)  # the workers may need the processor to start
        raise ServerError("no other worker has answered")


def at_rest(found: report.Report, server: Server, what: str, paths: Sequence[str]) -> None:
    """
    Measure the latencies while nothing interrupts the reader.

    :param found: gets the verdict.
    :param server: the service with ``WORKERS`` workers.
    :param what: is written, str.
    :param paths: of the items that are written.
    """
    with closing(Pair(server, paths)) as pair:
        took_s = sorted(map(pair.latency_s, range(LATENCIES)))
    p50, p99 = percentile_ms(took_s, 0.5), percentile_ms(took_s, 0.99)
    print(f"{what} that is written is read from the other worker after {p50} ms (p50)", flush=True)
    verdict = f"{what} that is written and that the other worker reads, ms, p99"
    found.verdicts.append(promises.at_most(verdict, p99 or 0.0, MAX_LATENCY_MS))


def interrupted(found: report.Report, server: Server, restart: Callable[[], None]) -> None:
    """
    Measure the latencies of books after each interruption.

    :param found: gets the verdicts.
    :param server: the service with ``WORKERS`` workers.
    :param restart: restarts its Postgres.
    """

    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def reload(_: int) -> None:
        assert server.process is not None
        server.process.send_signal(signal.SIGHUP)

    events: dict[str, Callable[[int], None]] = {
        "a kill of the worker that reads": kill,
        "a reload": reload,
        "a restart of Postgres": lambda _: restart(),
    }
    for name, event in events.items():
        after = [_latencies_s(server, event) for _ in range(EVENTS)]
        slowest = sorted(round(max(each) * 1000, 1) for each in after)
        print(f"the slowest after {name}, ms: {slowest}", flush=True)
        p99 = percentile_ms(sorted(chain.from_iterable(after)), 0.99) or 0.0
        what = f"a write that the other worker reads within {WATCHED_S:g} s of {name}, ms"
        for part, figure in (("p99", p99), ("the slowest", statistics.median(slowest))):
            found.verdicts.append(promises.at_most(f"{what}, {part}", figure, MAX_LATENCY_MS))


def _latencies_s(server: Server, event: Callable[[int], None]) -> list[float]:
    """Return the latencies of the writes after *event*, of one at least."""
    reader = _reader(server)
    with closing(Pair(server, BOOKS, f"greenline-{reader}")) as pair:
        event(reader)
        until_s = time.monotonic() + WATCHED_S
        found = [pair.latency_s(0)]
        while time.monotonic() < until_s:
            found.append(pair.latency_s(len(found)))
    return found


def _reader(server: Server) -> int:
    """Return the process id of the worker that reads announcements."""
    assert server.process is not None
    arbiter = server.process.pid
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        workers = Path(f"/proc/{arbiter}/task/{arbiter}/children").read_text().split()
        locks = re.findall(r"FLOCK +ADVISORY +WRITE (\d+) ", Path("/proc/locks").read_text())
        if both := set(locks) & set(workers):
            return int(both.pop())
    raise ServerError("no worker reads announcements")
