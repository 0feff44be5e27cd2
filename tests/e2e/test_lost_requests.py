"""What the log tells of requests whose database went away under them."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg2
import pytest

from embedded.mongo import Mongo
from embedded.postgres import Postgres, temporary
from tests.helpers.support import Answer, Databases, Service, run, service, wait_until

READS = 8
BUSY = """
    select count(*) from pg_stat_activity
    where usename = 'greenline' and state = 'active' and query ~ %s
"""


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A Postgres that is killed."""
    with temporary() as server:
        yield server


def test_a_lost_request_is_one_line(server: Postgres, mongo: Mongo) -> None:
    """The server is killed while reads sleep and a delete waits: nothing was written of it."""
    databases = Databases(server.url, mongo.url)
    run(["flask", "db", "upgrade", "sample"], databases.environ)
    environ = {**databases.environ, "WEB_CONCURRENCY": "1", "GREENLINE_DIAGNOSTICS": "1"}
    with service(environ) as running, ThreadPoolExecutor(READS + 1) as threads:
        with closing(psycopg2.connect(server.superuser_url)) as conn, conn.cursor() as cursor:
            cursor.execute("select from books where id = 1 for update")  # the delete waits for it
            sleep = "/diagnostics/sleep?seconds=20"
            reads = [threads.submit(running.get, sleep, headers=named(n)) for n in range(READS)]
            write = threads.submit(running.ask, "DELETE", "/books/1", headers=named(READS))
            wait_until(lambda: busy(server, "execute sleep") == READS, "the reads to sleep")
            wait_until(lambda: busy(server, "delete") == 1, "the delete to wait")
            server.kill()
        answers = [each.result(timeout=40) for each in (*reads, write)]
        assert [code(answer) for answer in answers] == ["store_down"] * (READS + 1)
        running.stop()  # the log is written behind the answers
        assert [lines(running, n) for n in range(READS + 1)] == [1] * (READS + 1)
        assert "Traceback" not in running.log


def named(number: int) -> dict[str, str]:
    """Return the header that gives a request its id."""
    return {"X-Request-Id": f"lost-{number}"}


def busy(server: Postgres, words: str) -> int:
    """Return how many backends work on a statement with *words* in it."""
    with closing(psycopg2.connect(server.superuser_url)) as conn, conn.cursor() as cursor:
        cursor.execute(BUSY, (words,))
        (row,) = cursor.fetchall()
    return int(row[0])


def code(answer: Answer) -> str:
    return str(answer.json["code"])


def lines(running: Service, number: int) -> int:
    """Return how often the log tells why the request failed, in one line."""
    head = r"^\[.+\] \[\d+\] \[WARNING\] app\.api\.problems: "
    line = rf"{head}request lost-{number}: Postgres: \S.+$"
    return len(re.findall(line, running.log, re.MULTILINE))
