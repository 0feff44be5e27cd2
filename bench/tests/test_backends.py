"""Counting a role's connections without taking one."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import psycopg2
import pytest

from bench.backends import Backends, Highest
from embedded.postgres import Postgres, temporary
from tests.helpers.support import SLOT_WAIT_S, wait_until

MAX_CONNECTIONS = 10
# Postgres keeps three for superusers.
ALLOWED = 7


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A small Postgres without other connections."""
    with temporary(MAX_CONNECTIONS) as server:
        yield server


@pytest.fixture
def backends(server: Postgres) -> Iterator[Backends]:
    """Look at that server."""
    with closing(Backends(server.superuser_url)) as backends:
        yield backends


def test_looking_takes_no_connection(server: Postgres, backends: Backends) -> None:
    """While we look, a role gets every connection that it gets when we do not look."""
    with ExitStack() as held:
        for _ in range(ALLOWED):
            held.enter_context(closing(psycopg2.connect(server.url)))
        assert backends.count() == ALLOWED
        with pytest.raises(psycopg2.OperationalError, match="reserved"):
            psycopg2.connect(server.url, connect_timeout=SLOT_WAIT_S)


def test_another_role_does_not_count(server: Postgres, backends: Backends) -> None:
    """A superuser's connection is not the role's, but somebody is still there."""
    with closing(psycopg2.connect(server.superuser_url)):
        # A backend may outlive its client for a moment.
        assert wait_until(lambda: backends.count() == 0, "those of others to be gone")
        assert not backends.gone()
    assert wait_until(backends.gone, "all to be gone")


def test_highest_is_kept_when_they_are_gone(server: Postgres, backends: Backends) -> None:
    """The highest number seen stays, whatever is there in the end."""
    with Highest(backends, every_s=0.01) as highest:
        with ExitStack() as held:
            for _ in range(3):
                held.enter_context(closing(psycopg2.connect(server.url)))
            assert wait_until(lambda: highest.seen == 3, "all three to be seen")
        assert wait_until(backends.gone, "all to be gone")
    assert highest.seen == 3
