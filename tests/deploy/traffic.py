"""
The service behind nginx, and clients that read and write through it, counted on all sides.

1. Half of the clients read a book, the others add a task each time, whose title has the number.
2. A request is answered once, as it should be, and nginx asked once for it: what it asks again was
   a failure that was not seen.
3. The service's log has each request once, and so has the database each task.
"""

import json
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2

from tests.deploy.behind import Behind, behind
from tests.helpers.load import Load
from tests.helpers.processes import children, pid_in, state
from tests.helpers.support import IS_LONG, Databases, Service, open_folder, service, wait_until

KINDS = ("unix socket", "TCP")
# In the right order, and apart from each other, as those of deploy/ are.
SHORT_KEEPALIVE = {"keepalive_timeout 4s;": "keepalive_timeout 500ms;"}
SHORT_KEEPALIVE_OF_OURS = ("--keep-alive", "2")
CLIENTS = 50 if IS_LONG else 20
READ, ADD = "GET", "POST"
LINE = re.compile(r'^<(\d+)> "(GET|POST) /(?:books/1|tasks)\?(\d+) HTTP/1\.1" (\d+)$', re.MULTILINE)


@dataclass
class Deployed:
    """The service, and nginx before it; *pid_file* and *socket* are gunicorn's."""

    running: Service
    front: Behind
    pid_file: Path
    socket: Path


@contextmanager
def deployed(
    kind: str, databases: Databases, *arguments: str, changes: Mapping[str, str] | None = None,
    **more: Any,
) -> Iterator[Deployed]:  # fmt: skip
    """Run both on a *kind* of socket; see ``service`` and ``behind``."""
    environ = {**databases.environ, "WEB_CONCURRENCY": "2", **more.pop("environ", {})}
    with open_folder() as folder:  # nginx's workers are another user's
        path, pid_file = folder / "http.sock", folder / "pid"
        given = ["--bind", f"unix:{path}", "--pid", str(pid_file)]
        given += ["--access-logformat", '%(p)s "%(r)s" %(s)s', *arguments]
        with service(environ, *given, **more) as running:
            place: Any = {"ports": [running.port]} if kind == "TCP" else {"sockets": [path]}
            with behind(**place, changes=changes) as front:
                yield Deployed(running, front, pid_file, path)


class Answers:
    """What the service's log tells of requests, read on and on."""

    def __init__(self, running: Service) -> None:
        self._file = running.log_file
        self._read = 0
        self.seen: Counter[tuple[str, int, int]] = Counter()  # by method, number and status
        self.workers: set[int] = set()

    def read(self) -> "Answers":
        """Read what is new, and return this."""
        with self._file.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        new = new[: new.rfind(b"\n") + 1]
        self._read += len(new)
        for pid, method, number, status in LINE.findall(new.decode(errors="replace")):
            self.workers.add(int(pid))
            self.seen[method, int(number), int(status)] += 1
        return self


def short_pause_s() -> float:
    """Return for how long a client's connection idles: not at all, and some time."""
    return random.choice((0.0, 0.05, 0.3))


class Traffic:
    """*clients* who ask through nginx, until the block is left."""

    def __init__(
        self, place: Deployed, databases: Databases, *, clients: int = CLIENTS,
        pause_s: Callable[[], float] = short_pause_s,
    ) -> None:  # fmt: skip
        self._place = place
        self._url = databases.postgres
        self._mark = f"t{os.urandom(6).hex()}"
        self.answers = Answers(place.running)
        address = place.front.address
        self.reads = Load(address, clients=clients // 2, path="/books/1", pause_s=pause_s)
        self.adds = Load(
            address, clients=clients // 2, path="/tasks", pause_s=pause_s, body=self._task
        )

    def __enter__(self) -> "Traffic":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._rows("delete from tasks where title like %s returning id")

    @property
    def count(self) -> int:
        """How many requests were answered."""
        return len(self.reads.answered) + len(self.adds.answered)

    def add(self, clients: int) -> None:
        """Add *clients*, half of them for each kind of request."""
        self.reads.start(clients // 2)
        self.adds.start(clients // 2)

    def await_some(self, count: int = 100) -> None:
        """Wait for *count* answers more."""
        end = self.count + count
        wait_until(lambda: self.count >= end, "some load")

    def await_workers(self, workers: Callable[[], set[int]]) -> None:
        """Wait until each of *workers* has answered."""
        wait_until(lambda: workers() <= self.answers.read().workers, "each of them to answer")

    def stop(self) -> None:
        """Let each client finish its request."""
        self.reads.stop()
        self.adds.stop()

    def asked_by_nginx(self) -> Counter[tuple[str, int, str]]:
        """Return its requests by method, status, and the status of each time it asked for one."""
        self._place.front.statuses(self.count)
        return Counter(
            (entry["method"], entry["status"], entry["upstream_status"])
            for entry in self._place.front.entries()
        )

    def added(self) -> Counter[int]:
        """Return how often the task of each number is in the database."""
        rows = self._rows("select title, count(*) from tasks where title like %s group by title")
        return Counter({int(title.rpartition("-")[2]): count for title, count in rows})

    def assert_nothing_lost(self) -> None:
        """Compare all sides, after the stop: each request was answered once, and asked once."""
        for load, status in ((self.reads, 200), (self.adds, 201)):
            assert not load.failures, load.failures
            assert load.refused == 0
            assert set(load.statuses) == {status}, self._reasons(load)
        expected = {
            (READ, 200, "200"): len(self.reads.answered),
            (ADD, 201, "201"): len(self.adds.answered),
        }
        assert self.asked_by_nginx() == expected, self.asked_by_nginx()
        wait_until(lambda: self.answers.read().seen.total() >= self.count, "the service's lines")
        wrong = self.answers.seen - Counter(
            [(READ, number, 200) for number in self.reads.answered]
            + [(ADD, number, 201) for number in self.adds.answered]
        )
        assert not wrong, wrong
        added = self.added()
        assert added == dict.fromkeys(self.adds.answered, 1), (
            f"{len(added)} of {len(self.adds.answered)}"
        )

    def _reasons(self, load: Load) -> list[str]:
        """Return the service's lines on the requests that ended with an error."""
        ids = [json.loads(text)["request_id"] for text in load.errors.values()]
        lines = self._place.running.log.splitlines()
        return [line for line in lines if any(one in line for one in ids)]

    def _task(self, number: int) -> bytes:
        return json.dumps({"agent_id": 1, "title": f"{self._mark}-{number}"}).encode()

    def _rows(self, query: str) -> list[Any]:
        with closing(psycopg2.connect(self._url)) as conn, conn, conn.cursor() as cursor:
            cursor.execute(query, (f"{self._mark}-%",))
            return cursor.fetchall()


def failed(load: Load, status: int) -> set[int]:
    """Return the requests that were not answered with *status*; all of them were answered."""
    assert (load.failures, load.refused) == ({}, 0)
    return {number for number, got in load.answered.items() if got != status}


@contextmanager
def held_up(front: Behind) -> Iterator[None]:
    """Let nginx do nothing, as on a machine that is busy with something else."""
    nginx_pid = pid_in(front.nginx.folder / "pid")
    assert nginx_pid is not None
    with stopped(*children(nginx_pid)):
        yield


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Let the processes do nothing, from the beginning of the block on."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: all(state(pid) == "T" for pid in pids), "them to stop")
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
