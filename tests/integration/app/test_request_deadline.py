"""A request's deadline, from the handler to the problem document, on a service of our own."""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from time import monotonic

import gevent
import pytest
from flask import Response
from gevent.event import Event

from app.api import problems, request_id
from app.service import DeadlineFlask
from embedded.postgres import Postgres as Server
from greenline.hub import deadline
from greenline.postgres.connect import connect
from greenline.postgres.pool import ConnectionPool
from tests.helpers.support import wait_until


@pytest.fixture
def pool(postgres: Server) -> Iterator[ConnectionPool]:
    """A pool of one."""
    made = ConnectionPool(partial(connect, postgres.url, 5.0), max_size=1)
    yield made
    made.close(2.0)


@pytest.fixture
def service() -> DeadlineFlask:
    """A service whose requests may take half a second."""
    return serving(0.5)


def serving(request_timeout_s: float) -> DeadlineFlask:
    app = DeadlineFlask(__name__, static_folder=None, request_timeout_s=request_timeout_s)
    request_id.register(app)
    problems.register(app)
    return app


def ask(
    service: DeadlineFlask, handler: Callable[[], object]
) -> tuple[int, dict[str, object], float]:
    service.add_url_rule("/", "handler", handler)
    started = monotonic()
    with gevent.Timeout(10):
        answer = service.test_client().get("/")
    return answer.status_code, answer.get_json(silent=True) or {}, monotonic() - started


def test_a_504_says_where_the_time_went(service: DeadlineFlask, pool: ConnectionPool) -> None:
    """Queueing, connecting and the database are reported apart, in milliseconds."""

    def handler() -> str:
        with pool.connection() as conn, conn.cursor() as cursor:
            cursor.execute("select pg_sleep(60)")
        return ""

    status, document, took_s = ask(service, handler)
    assert (status, document["code"]) == (504, "deadline_exceeded")
    assert set(document["spent_ms"]) == {"connecting", "postgres"}  # type: ignore[call-overload]
    assert took_s < 2


def test_a_route_can_ask_for_less(service: DeadlineFlask) -> None:
    """The limit is a decorator too; it cannot give more than the request has."""

    @deadline.limit(0.1)
    def handler() -> str:
        gevent.sleep(60)
        return ""

    status, _, took_s = ask(service, handler)
    assert status == 504
    assert took_s < 1.5


def test_the_time_in_the_queue_of_the_worker_counts() -> None:
    """A request that waited for longer than it may has no time left."""
    service = serving(1.5)  # a second more than the handler takes, which is not to be late
    service.add_url_rule("/", "handler", lambda: gevent.sleep(0.5) or "")
    queued = {"greenline.spent": {"queued": 1.6}}
    with gevent.Timeout(10):
        assert service.test_client().get("/", environ_overrides=queued).status_code == 504
        assert service.test_client().get("/").status_code == 200


def test_a_handler_that_swallows_its_end_is_interrupted_again_and_named(
    service: DeadlineFlask, caplog: pytest.LogCaptureFixture
) -> None:
    """A bare except cannot hold the worker; the log has the stack of who did it."""

    def stubborn_handler() -> str:
        for _ in range(3):
            with suppress(BaseException):
                gevent.sleep(60)
        return "late"

    with caplog.at_level(logging.ERROR):
        status, _, took_s = ask(service, stubborn_handler)
    assert status == 200
    assert took_s < 5
    assert "goes on" in caplog.text
    assert "stubborn_handler" in caplog.text


def test_a_handler_that_waits_for_no_driver_is_interrupted(service: DeadlineFlask) -> None:
    """Whatever it waits for, the request ends as 504."""
    status, document, took_s = ask(service, Event().wait)
    assert (status, document["code"]) == (504, "deadline_exceeded")
    assert took_s < 2


def test_a_stream_may_take_its_time_but_no_chunk_may() -> None:
    """Each chunk has a limit of its own: the whole may take longer than a request."""
    service = serving(1.5)  # a second more than a chunk takes, which is not to be late

    def chunks() -> Iterator[bytes]:
        for _ in range(4):
            gevent.sleep(0.5)
            yield b"x"

    service.add_url_rule("/", "handler", lambda: Response(chunks()))
    assert service.test_client().get("/").data == b"xxxx"


def test_the_first_byte_of_a_stream_comes_in_the_requests_time(service: DeadlineFlask) -> None:
    """A handler that took its time leaves the rest of it to the first chunk, which is a 504."""

    def chunks() -> Iterator[bytes]:
        gevent.sleep(60)
        yield b"x"

    def handler() -> Response:
        gevent.sleep(0.3)
        return Response(chunks())

    status, document, took_s = ask(service, handler)
    assert (status, document["code"]) == (504, "deadline_exceeded")
    assert took_s < 1.6


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_a_streamed_answer_is_made_from_is_closed(service: DeadlineFlask, method: str) -> None:
    """An iterable with a close() is closed, read or not, as Flask alone does it."""

    class Source:
        closed = 0

        def __iter__(self) -> Iterator[bytes]:
            return iter([b"a", b"b"])

        def close(self) -> None:
            self.closed += 1

    source = Source()
    service.add_url_rule("/", "handler", lambda: Response(source))
    service.test_client().open("/", method=method).close()
    assert source.closed == 1


def test_a_chunk_that_does_not_come_ends_the_stream(service: DeadlineFlask) -> None:
    """The server sees the error and cuts the connection: the client does not wait for ever."""

    def chunks() -> Iterator[bytes]:
        yield b"x"
        gevent.sleep(60)

    service.add_url_rule("/", "handler", lambda: Response(chunks()))
    with gevent.Timeout(5), pytest.raises(Exception, match="exceeded its time limit"):
        service.test_client().get("/").get_data()


def test_a_stream_that_is_not_read_gives_its_connection_back(
    service: DeadlineFlask, pool: ConnectionPool
) -> None:
    """The server closes the answer when the client left, and the generator's blocks end."""

    def rows() -> Iterator[bytes]:
        with pool.connection() as conn, conn.cursor() as cursor:
            while True:
                cursor.execute("select 'row'")
                yield b"row"

    service.add_url_rule("/", "handler", lambda: Response(rows()))
    answer = service.test_client().get("/", buffered=False)
    assert next(answer.iter_encoded()) == b"row"
    assert pool.stats()["active"] == 1
    answer.close()
    wait_until(lambda: pool.stats()["idle"] == 1, "the connection to come back")


def test_without_a_request_the_pools_own_limits_hold(pool: ConnectionPool) -> None:
    """A script has no deadline: its statement may take as long as it takes."""
    with pool.connection() as conn, conn.cursor() as cursor:
        cursor.execute("select pg_sleep(1), 7")
        assert cursor.fetchone()[1] == 7  # type: ignore[index]
