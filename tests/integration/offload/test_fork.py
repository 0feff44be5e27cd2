"""
An application starts processes in its views, in every way that Python has.

``GREENLINE_LONG_TESTS=1`` does it in fifty requests at once, and by each start method.
"""

import os
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg2
import pytest

from embedded.postgres import Postgres
from tests.helpers.support import IS_LONG, Service, service, wait_until

AT_ONCE = 50 if IS_LONG else 6
BY_SPAWN = 50 if IS_LONG else 2  # each of them starts Python anew
BYSTANDERS = 4

FORKED = (
    "process", "process_query", "pool", "executor", "kept_pool", "kept_executor", "queue", "exits",
    "returns", "raises", "streams", "sys_exits", "execs", "run", "system",
)  # fmt: skip
SPAWNED = ("process", "pool", "executor")


@contextmanager
def forking(postgres: Postgres, *arguments: str, **environ: str) -> Iterator[tuple[Service, str]]:
    """Run the application, with a mark in the environment of all that it starts."""
    mark = f"forking-{os.urandom(6).hex()}"
    environ |= {"DATABASE_URL": postgres.url, "PGAPPNAME": mark, "FORKING": mark}
    with service(
        environ, "-k", "greenline.worker.GreenWorker", "-w", "1", *arguments,
        target="tests.e2e.forking:app", config="tests/e2e/plain_conf.py", wait=False,
    ) as running:  # fmt: skip
        wait_until(lambda: answers(running), "the worker to serve")
        yield running, mark


@pytest.fixture(scope="module")
def shared(postgres: Postgres) -> Iterator[Service]:
    """One service for all forms; in the end it stops, and nothing of it is left."""
    with forking(postgres) as (running, mark):
        yield running
        assert running.stop() == 0
        wait_until(lambda: not marked(mark), "the end of all processes")
        assert_all_released(running, postgres, mark)


def answers(running: Service) -> bool:
    try:
        return running.get("/count").status == 200
    except OSError:
        return False


def marked(mark: str) -> set[int]:
    """Return the processes that have *mark* in their environment."""
    found = set()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
        except OSError:
            continue  # it has ended, or is another user's
    return found


def assert_all_released(running: Service, postgres: Postgres, mark: str) -> None:
    """The port is free, and no backend of Postgres is left."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", running.port))
        sock.listen()
    admin = psycopg2.connect(postgres.superuser_url)
    admin.autocommit = True
    with admin.cursor() as cursor:

        def backends() -> int:
            cursor.execute("select from pg_stat_activity where application_name = %s", (mark,))
            return int(cursor.rowcount)

        wait_until(lambda: backends() == 0, "the end of the backends")
    admin.close()


def ask(running: Service, path: str, number: int) -> object:
    """Return "right", or what is wrong."""
    try:
        answer = running.get(f"{path}n={number}", timeout_s=120)
    except OSError as error:
        return repr(error)
    is_right = answer.status == 200 and answer.body == b"%d" % number**2
    return "right" if is_right else (answer.status, answer.body)


@contextmanager
def bystanders(running: Service) -> Iterator[Counter[object]]:
    """Ask for a statement again and again meanwhile, on some connections; count what comes back."""
    is_over = threading.Event()
    seen: Counter[object] = Counter()

    def stand_by(number: int) -> None:
        while not is_over.is_set():
            seen[ask(running, "/bystander?", number)] += 1

    with ThreadPoolExecutor(BYSTANDERS) as threads:
        standing = [threads.submit(stand_by, number) for number in range(BYSTANDERS)]
        wait_until(lambda: sum(seen.values()) >= BYSTANDERS, "bystanders")
        try:
            yield seen
        finally:
            is_over.set()
            for one in standing:
                one.result()


@pytest.mark.parametrize(
    ("form", "method"),
    [(form, "fork") for form in FORKED]
    + [(form, "spawn") for form in SPAWNED]
    + [("process", "forkserver")]
    + [(form, method) for form in ("queue",) for method in ("spawn", "forkserver") if IS_LONG]
    + [(form, "forkserver") for form in ("pool", "executor") if IS_LONG],
)
def test_all_answers_are_right_and_no_bystander_is_cut(
    shared: Service, form: str, method: str
) -> None:
    """Many views start processes at once; their answers, the bystanders' too, are all right."""
    count = AT_ONCE if method == "fork" else BY_SPAWN
    pid = shared.workers()
    with bystanders(shared) as beside, ThreadPoolExecutor(count) as clients:
        answered = Counter(
            clients.map(
                lambda number: ask(shared, f"/{form}?method={method}&", number), range(1, count + 1)
            )
        )
    assert answered == {"right": count}, shared.log
    assert set(beside) == {"right"}, shared.log
    assert shared.workers() == pid
    assert "--- Logging error ---" not in shared.log


def test_what_a_child_logs_is_in_the_log(shared: Service) -> None:
    """By logging, by a traceback of what it did not catch, once each, and no answer."""
    assert shared.get("/returns?n=4001").body == b"%d" % 4001**2
    assert shared.get("/raises?n=4002").body == b"%d" % 4002**2
    assert shared.log.count("the child 4001 returns\n") == 1
    assert shared.log.count("RuntimeError: the child 4002 fails\n") == 1


def left_children(log: str) -> dict[str, int]:
    """Return the process ids of the four children, by name; none where one is not logged yet."""
    found = re.findall(r"^(stay|detach|fork_twice|raw): (\d+)$", log, re.M)
    return {name: int(pid) for name, pid in found} if len(found) == 4 else {}


@pytest.mark.parametrize("ending", ["a killed worker", "a killed arbiter", "a stop"])
def test_children_end_with_their_worker(postgres: Postgres, ending: str) -> None:
    """However they were made; a child with a session of its own goes on."""
    with forking(postgres, "--graceful-timeout", "1") as (running, mark):
        (worker,) = running.workers()
        assert running.get("/left").status == 200
        children = wait_until(lambda: left_children(running.log), "what it has logged")
        assert set(children.values()) < marked(mark)
        try:
            if ending == "a stop":
                running.stop()
            elif ending == "a killed arbiter":
                running.process.kill()
                running.process.wait()
            else:
                os.kill(worker, signal.SIGKILL)
                for name, pid in children.items():
                    if name != "detach":
                        wait_until(lambda: pid not in marked(mark), name)  # noqa: B023
                wait_until(lambda: answers(running), "another worker")
                running.stop()
            wait_until(lambda: marked(mark) == {children["detach"]}, "the end of all the others")
            assert_all_released(running, postgres, mark)
        finally:
            os.kill(children["detach"], signal.SIGKILL)
        wait_until(lambda: not marked(mark), "the end of the detached child")


def test_a_child_made_while_the_application_is_loaded_does_not_serve(postgres: Postgres) -> None:
    """Arbiter and worker are left; the child ends where the worker would begin to serve."""
    with forking(postgres, FORKING_AT_IMPORT="1") as (running, mark):
        wait_until(lambda: running.log.count(" as well\n") == 1, "the child")
        wait_until(
            lambda: marked(mark) == {running.process.pid, *running.workers()}, "the child's end"
        )
        assert running.get("/process?n=3&method=fork").body == b"9"
        assert "Worker exiting" not in running.log
