"""What a connect waits for in the hub."""

import socket
from collections.abc import Callable
from contextlib import ExitStack, closing

import gevent
import psycopg2
import pytest
from psycopg2.extensions import connection as PsycopgConnection
from psycopg2.extensions import set_wait_callback
from psycopg2.extras import wait_select

from embedded.postgres import Postgres
from greenline.hub import deadline
from greenline.postgres import wait
from greenline.postgres.connection import READ_EVENT, WRITE

wait_once = wait._wait_once


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The events for which a connection that is not settled has waited."""
    found: list[int] = []

    def noting(conn: PsycopgConnection, events: int) -> None:
        found.append(events)
        wait_once(conn, events)

    monkeypatch.setattr(wait, "_wait_once", noting)
    return found


def test_a_connect_to_the_own_host_waits_for_the_answer_alone(
    postgres: Postgres, waits: list[int]
) -> None:
    """The kernel's connect returns with the socket connected."""
    with closing(psycopg2.connect(postgres.url)):
        assert set(waits) == {READ_EVENT}


@pytest.mark.parametrize("hook", [wait.wait, wait.keeping_promises(wait_select)])
def test_a_connect_has_a_part_of_its_own_in_the_time(
    postgres: Postgres, hook: Callable[[PsycopgConnection], None]
) -> None:
    """It is not counted as a statement's."""
    spent: dict[str, float] = {}
    set_wait_callback(hook)
    try:
        with deadline.limit(30.0, spent):
            with closing(psycopg2.connect(postgres.url)) as conn:
                assert set(spent) == {"connecting"}
                with conn.cursor() as cursor:
                    cursor.execute("select 1")
        assert set(spent) == {"connecting", "postgres"}
    finally:
        set_wait_callback(wait.wait)


def test_a_connect_that_the_server_does_not_take_waits_in_the_hub(waits: list[int]) -> None:
    """The kernel has no place in the listener's backlog."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listener.getsockname()
        full = stack.enter_context(socket.create_connection(address))
        assert full.getpeername() == address
        connecting = gevent.spawn(
            psycopg2.connect, host=address[0], port=address[1], connect_timeout=2, user="x"
        )
        with pytest.raises(psycopg2.OperationalError, match="timeout expired"):
            connecting.get(timeout=30)
        assert waits == [WRITE]
