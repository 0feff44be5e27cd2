"""The error tree, and the drivers' errors in its words."""

from typing import Any

import psycopg2
import pymongo.errors
import pytest

from greenline.errors import (
    DeadlineExceeded,
    GreenlineError,
    PoolTimeout,
    StoreDown,
    StoreError,
)
from greenline.hub import deadline
from greenline.mongo.errors import translate as translate_mongo
from greenline.mongo.limits import read_max_connections
from greenline.postgres.errors import translate as translate_postgres


def test_the_docstring_is_the_default_message() -> None:
    """An error raised without words says what its class says."""
    assert str(PoolTimeout()) == "No connection became free in time."
    assert str(PoolTimeout("other words")) == "other words"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (psycopg2.OperationalError("connection refused"), StoreDown),
        (psycopg2.InterfaceError("connection already closed"), StoreDown),
        (psycopg2.ProgrammingError("no results to fetch"), StoreError),
    ],
    ids=["lost", "closed", "misuse"],
)
def test_a_lost_connection_is_an_outage(error: psycopg2.Error, expected: type) -> None:
    """Without a SQLSTATE the class decides."""
    assert type(translate_postgres(error)) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (pymongo.errors.ServerSelectionTimeoutError("none found"), StoreDown),
        (pymongo.errors.AutoReconnect("closed"), StoreDown),
        (pymongo.errors.NetworkTimeout("timed out"), StoreDown),
        (pymongo.errors.WaitQueueTimeoutError("pool"), PoolTimeout),
        (pymongo.errors.NotPrimaryError("stepped down"), StoreDown),
        (pymongo.errors.OperationFailure("shutting down", 91), StoreDown),
        (pymongo.errors.OperationFailure("bad value", 2), StoreError),
        (pymongo.errors.ExecutionTimeout("exceeded time limit", 50), DeadlineExceeded),
    ],
    ids=["selection", "reconnect", "timeout", "queue", "primary", "shutdown", "refused", "slow"],
)
def test_pymongos_errors_are_translated(
    error: pymongo.errors.PyMongoError, expected: type[GreenlineError]
) -> None:
    """By class first, then by the server's code."""
    assert type(translate_mongo(error)) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (pymongo.errors.NetworkTimeout("timed out"), DeadlineExceeded),
        (pymongo.errors.AutoReconnect("closed"), StoreDown),
        (pymongo.errors.ServerSelectionTimeoutError("none found"), StoreDown),
        (pymongo.errors.WaitQueueTimeoutError("pool"), PoolTimeout),
    ],
    ids=["timeout", "reconnect", "selection", "queue"],
)
def test_after_the_deadline_a_slow_server_is_no_outage(
    error: pymongo.errors.PyMongoError, expected: type[GreenlineError]
) -> None:
    """A timeout is the deadline's then, unless there was no server or no connection to wait for."""
    with deadline.limit(0):
        assert type(translate_mongo(error)) is expected


def test_no_time_to_ask_is_not_silence() -> None:
    """A server that had no time to tell its limit must not pass for one that never does."""

    class Slow:
        admin: "Slow"

        def command(self, _: str) -> None:
            raise pymongo.errors.ExecutionTimeout("exceeded time limit", 50)

    slow: Any = Slow()
    slow.admin = slow
    with pytest.raises(DeadlineExceeded):
        read_max_connections(slow)
