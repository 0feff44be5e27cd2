"""``GREENLINE_POOL=1``: an unmodified application that connects in each request, on the worker."""

import socket
from concurrent.futures import ThreadPoolExecutor

import psycopg2
import pytest

from embedded.postgres import Postgres, temporary
from tests.e2e.hosting import at_once, hosting
from tests.helpers.support import wait_until
from tests.helpers.watch import count

FLASK, PLAIN = "tests.e2e.connecting:app", "tests.e2e.connecting:plain"
CARELESS = "tests.e2e.connecting:careless"
SIZE = 4
BACKENDS = """
select count(*) from pg_stat_activity
where datname = %s and backend_type = 'client backend' and pid <> pg_backend_pid()
"""
IN_TRANSACTION = f"{BACKENDS} and state like 'idle in transaction%%'"
SLEEPING = f"{BACKENDS} and state = 'active' and query like '%%pg_sleep%%'"


def settings(url: str, **more: str) -> dict[str, str]:
    return {
        "GREENLINE_POOL": "1", "DATABASE_URL": url, "POSTGRES_POOL_SIZE": str(SIZE), **more
    }  # fmt: skip


def test_a_connect_in_each_request_is_bounded(postgres: Postgres, empty_database: str) -> None:
    """A hundred at once share four connections, and each is answered."""
    name = psycopg2.extensions.parse_dsn(empty_database)["dbname"]
    with hosting(FLASK, **settings(empty_database)) as running:
        answers, _ = at_once(running, "/sleep/0.05", 100)
        # Besides the pool's, the one for questions.
        assert count(postgres, BACKENDS, name) <= SIZE + 1
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in answers}) <= SIZE


@pytest.mark.parametrize("target", [FLASK, PLAIN], ids=["Flask", "plain"])
def test_none_in_time_is_a_503(target: str, postgres: Postgres, empty_database: str) -> None:
    """The application does not handle it: the answer says that a retry may help."""
    name = psycopg2.extensions.parse_dsn(empty_database)["dbname"]
    given = settings(f"{empty_database}&connect_timeout=1", POSTGRES_POOL_SIZE="1")
    with hosting(target, **given) as running, ThreadPoolExecutor() as clients:
        holding = clients.submit(running.get, "/sleep/4.0")
        wait_until(lambda: count(postgres, SLEEPING, name) == 1, "it to hold the connection")
        refused = running.get("/sleep/0.0")
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert holding.result().status == 200
        assert running.get("/sleep/0.0").status == 200


def test_code_that_has_got_one_fails_for_another_reason(
    postgres: Postgres, empty_database: str
) -> None:
    """It handles that there is none, and tries again: a retry of the request is of no use."""
    name = psycopg2.extensions.parse_dsn(empty_database)["dbname"]
    given = settings(f"{empty_database}&connect_timeout=1", POSTGRES_POOL_SIZE="1")
    with hosting(FLASK, **given) as running, ThreadPoolExecutor() as clients:
        holding = clients.submit(running.get, "/sleep/2.5")
        wait_until(lambda: count(postgres, SLEEPING, name) == 1, "it to hold the connection")
        assert running.get("/insist").status == 500
        assert holding.result().status == 200


def test_none_before_the_deadline_is_a_503_too(empty_database: str) -> None:
    """It is no fault of the application's time, which a 504 would say."""
    given = settings(empty_database, POSTGRES_POOL_SIZE="1", GREENLINE_POOL_TAKE_OVER="0")
    with hosting(FLASK, REQUEST_TIMEOUT="1", **given) as running:
        assert running.get("/forget").status == 200  # it keeps the only connection
        refused = running.get("/sleep/0.0")
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")


def test_an_error_at_the_end_of_the_answer_ends_the_transaction(empty_database: str) -> None:
    """All of them keep a connection: each can be taken over."""
    with hosting(CARELESS, **settings(empty_database)) as running:
        assert {running.get("/").status for _ in range(3 * SIZE)} == {200}
        assert "the end of the body" in running.log


def test_a_child_that_connects_waits_for_no_connection_of_its_parent() -> None:
    """The worker has one connection, which the request that waits for the child keeps."""
    with temporary(10) as server, hosting(FLASK, **settings(server.url)) as running:
        assert running.get("/child").body == b"0", running.log


def test_a_client_that_has_gone_is_no_lack_of_connections(
    postgres: Postgres, empty_database: str
) -> None:
    """The code that waits for a connection gets another error, without a SQLSTATE."""
    name = psycopg2.extensions.parse_dsn(empty_database)["dbname"]
    given = settings(empty_database, POSTGRES_POOL_SIZE="1")
    with hosting(FLASK, **given) as running, ThreadPoolExecutor() as clients:
        holding = clients.submit(running.get, "/sleep/4.0")
        wait_until(lambda: count(postgres, SLEEPING, name) == 1, "it to hold the connection")
        with socket.create_connection(("127.0.0.1", running.port)) as gone:
            gone.sendall(b"GET /sleep/0.0 HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: "ClientGone" in running.log, "the end of its request")
        assert holding.result().status == 200
        assert "too many clients" not in running.log


def test_no_transaction_outlives_its_request(postgres: Postgres, empty_database: str) -> None:
    """One that code has left open is rolled back; its connection goes on to work."""
    name = psycopg2.extensions.parse_dsn(empty_database)["dbname"]
    with hosting(FLASK, **settings(empty_database)) as running:
        for _ in range(2 * SIZE):
            assert running.get("/forget").status == 200
        for _ in range(3):
            assert running.get("/again").status == 200
            wait_until(lambda: count(postgres, IN_TRANSACTION, name) == 0, "the end of all")
        assert running.get("/kept").body.decode() == str(2 * SIZE)
        assert count(postgres, BACKENDS, name) <= SIZE + 1
