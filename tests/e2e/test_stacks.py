"""``greenline stacks``: where each greenlet of a worker is, also while its hub is blocked."""

import re
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Event

import psycopg2

from embedded.mongo import Mongo
from tests.e2e.hosting import hosting
from tests.helpers.forms import in_the_long_form
from tests.helpers.support import Service, run, wait_until

APP = "tests.e2e.watched_databases:app"
LARGE_BYTES = 20_000_000  # more than the kernel keeps for a client that does not read
COMMAND = ["python", "-m", "greenline", "stacks"]


def stacks(target: object) -> str:
    return run([*COMMAND, str(target)], {}).stdout


@contextmanager
def waiting(running: Service, file: Path, *paths: str, url: str = "") -> Iterator[None]:
    """
    Ask for each path; the application waits until the block ends.

    For the file that is made then, or for the lock that is held on the database of *url*.
    """
    with ExitStack() as held, ThreadPoolExecutor(len(paths)) as clients:
        if url:
            connection = held.enter_context(closing(psycopg2.connect(url)))
            connection.cursor().execute("SELECT pg_advisory_xact_lock(1)")
        answers = [clients.submit(running.get, f"{path}?file={file}") for path in paths]
        try:
            yield
        finally:
            file.touch()
            if url:
                connection.rollback()
        assert {each.result().status for each in answers} == {200}, running.log


def test_each_request_is_shown_where_it_waits(empty_database: str, tmp_path: Path) -> None:
    """With its route, its age and what it waits for; the worker goes on meanwhile."""
    with hosting(APP, URL=empty_database) as running:
        (worker,) = running.workers()
        paths = ("/postgres/books", "/lock", "/lock", "/sleep")
        entry = re.compile(
            r"^  (GET \S+)(?: \(route (\S+)\))?, [\d.]+ s old, waits for (.*)$", re.M
        )

        def all_wait() -> str:
            # One that is in progress may still connect.
            text = stacks(worker)
            found = {(path, waits_for) for path, _, waits_for in entry.findall(text)}
            is_all = found == {
                ("GET /postgres/books", "Postgres"),
                ("GET /lock", "a lock"),
                ("GET /lock", "a sleep"),
                ("GET /sleep", "a sleep"),
            }
            return text if is_all else ""

        with waiting(running, tmp_path / "go", *paths, url=empty_database):
            shown = wait_until(all_wait, "the requests to wait")
            assert running.get("/count").status == 200
        assert ("GET /postgres/books", "/postgres/<name>", "Postgres") in entry.findall(shown)
        assert 'cursor.execute("SELECT pg_advisory_xact_lock(1)")' in shown
        assert shown.startswith(f"worker {worker}: requests in progress: 4, other greenlets")
        assert "_handle" not in shown  # the frames of the worker are above those of each request
        assert "hub was blocked" not in running.log


def test_what_waits_for_its_turn_is_shown(tmp_path: Path) -> None:
    """And requests at one place are one group."""
    with hosting(APP, GREENLINE_MAX_IN_PROGRESS="3") as running:
        with waiting(running, tmp_path / "go", *["/sleep"] * 5):
            shown = wait_until(
                lambda: text if "wait for its turn" in (text := stacks("all")) else None,
                "the queue",
            )
        assert "  3 requests wait for a sleep" in shown
        assert re.search(r"2 requests wait for its turn\n  GET /sleep, ", shown)


def test_what_waits_for_a_slot_of_postgres_is_shown(empty_database: str, tmp_path: Path) -> None:
    """Where the server refuses a connection more, until another request has ended."""
    with hosting(APP, URL=empty_database) as running, ThreadPoolExecutor() as clients:
        (worker,) = running.workers()
        with waiting(running, tmp_path / "go", "/postgres/books", url=empty_database):
            wait_until(lambda: "Postgres" in _waits(stacks(worker)), "the connection to be in use")
            with closing(psycopg2.connect(empty_database)) as connection:
                # The one of the test, which has the lock, and one of the application.
                limit = f"ALTER DATABASE {connection.info.dbname} CONNECTION LIMIT 2"
                connection.cursor().execute(limit)
                connection.commit()
            asked = clients.submit(running.get, "/postgres/films")
            shown = wait_until(
                lambda: (
                    found if "a slot of Postgres" in (found := _waits(stacks(worker))) else None
                ),
                "the other request to wait",
            )
        assert asked.result().status == 200, running.log
    assert set(shown) == {"Postgres", "a slot of Postgres"}
    assert 'cursor.execute("SELECT pg_advisory_xact_lock(1)")' in shown["Postgres"]
    assert 'psycopg2.connect(os.environ["URL"])' in shown["a slot of Postgres"]


def _waits(shown: str) -> dict[str, str]:
    """Return the stack of each request by what it waits for."""
    entries = [entry.partition("\n") for entry in shown.split("\n\n")[1:]]
    return {head.partition(", waits for ")[2]: stack for head, _, stack in entries}


def test_what_waits_for_its_client_is_shown() -> None:
    """It has a large answer, which the client does not read yet."""
    with (
        hosting(APP, GREENLINE_WRITE_TIMEOUT="300") as running,
        socket.create_connection(("127.0.0.1", running.port), timeout=60) as client,
    ):
        (worker,) = running.workers()
        request = f"GET /large?bytes={LARGE_BYTES} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        client.sendall(request.encode())
        entry = r"^  GET /large, [\d.]+ s old, waits for the client$"
        wait_until(lambda: re.search(entry, stacks(worker), re.MULTILINE), "the request to wait")
        answer = b"".join(iter(lambda: client.recv(1 << 20), b""))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n" + bytes(LARGE_BYTES))


def test_a_blocked_hub_shows_its_requests_and_the_code_that_blocks(
    empty_database: str, tmp_path: Path
) -> None:
    """From the shared memory: its greenlets cannot be asked."""
    paths = ("/postgres/books", "/sleep")
    # Else the view would be interrupted between two pauses.
    with hosting(APP, URL=empty_database, GREENLINE_SWITCH_INTERVAL_MS="0") as running:
        (worker,) = running.workers()
        with waiting(running, tmp_path / "go", *paths, url=empty_database):
            # One that is in progress may still connect.
            both = {"Postgres", "a sleep"}
            wait_until(lambda: set(_waits(stacks(worker))) == both, "the requests to wait")
            with waiting(running, tmp_path / "unblock", "/block"):
                shown = wait_until(
                    lambda: text if "in progress: 3" in (text := stacks(worker)) else None,
                    "the block",
                )
        # Afterwards it is named as well.
        before = (
            r"its hub was blocked before:\n    \d+ s ago for \d+\.\d\d s in watched_databases\.\w+"
        )
        wait_until(lambda: re.search(before, stacks(worker)), "the last block")
    head, rest = shown.split("\n", 1)
    assert re.fullmatch(rf"worker {worker}: its hub has been blocked for \d+\.\d s, here:", head)
    where, requests = rest.split("  requests in progress: 3\n")
    assert "pause(0.02)" in where
    found = set(re.findall(r"^    GET (.*), [\d.]+ s old(?:, waits for (.*))?$", requests, re.M))
    assert found == {
        ("/block", ""), ("/sleep", ""), ("/postgres/books (route /postgres/<name>)", "Postgres"),
    }  # fmt: skip


@in_the_long_form
def test_an_arbiter_stands_for_its_workers() -> None:
    """Each with a text of its own."""
    with hosting(APP, "-w", "2") as running:
        wait_until(lambda: len(running.workers()) == 2, "two workers")
        shown = wait_until(
            lambda: text if (text := stacks(running.process.pid)).count("worker ") == 2 else None,
            "two texts",
        )
        for worker in running.workers():
            assert f"worker {worker}: requests in progress: 0, " in shown


def test_what_cannot_be_asked_is_named() -> None:
    """One line, and an exit status."""
    with subprocess.Popen(["sleep", "60"]) as other:
        reasons = {
            "nginx": "Error: 'nginx' is no process id, and not 'all'",
            str(2**22 + 1): f"Error: there is no process {2**22 + 1}",
            str(other.pid): f"Error: process {other.pid} is no gunicorn with "
            "greenline.worker.GreenWorker",
        }
        for target, reason in reasons.items():
            done = run([*COMMAND, target], {}, check=False)
            assert (done.returncode, done.stderr.strip()) == (1, reason)
        other.kill()


def test_mongodb_is_named(folder: Path) -> None:
    """For a client of pymongo's that the application has made."""
    with (
        Mongo(folder / "stacks", durable=False) as server,
        hosting(APP, URI=f"{server.url}stacks") as running,
    ):
        (worker,) = running.workers()
        is_over = Event()

        def ask() -> set[int]:
            return {running.get("/mongo").status for _ in iter(is_over.is_set, True)}

        with ThreadPoolExecutor() as clients:
            asking = [clients.submit(ask) for _ in range(5)]
            try:
                wait_until(lambda: "/mongo" in (text := stacks(worker)) and "MongoDB" in text, "it")
            finally:
                is_over.set()
            assert [each.result() for each in asking] == [{200}] * 5, running.log
