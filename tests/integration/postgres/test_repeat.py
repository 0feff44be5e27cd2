"""Postgres.repeat: how often, after which pauses, and no longer than the request may."""

from itertools import pairwise
from time import monotonic

import pytest

from greenline.errors import SerializationFailure
from greenline.hub import backoff, deadline
from greenline.postgres import client
from greenline.postgres.client import MAX_CONFLICTS, Postgres
from greenline.postgres.connection import Connection
from tests.helpers.pools import Make, run

SLACK_S = 1.0


class Conflicting:
    """Work that is in another's way each time, and when it was."""

    def __init__(self) -> None:
        self.begun_s: list[float] = []

    def __call__(self, conn: Connection) -> None:
        self.begun_s.append(monotonic())
        raise SerializationFailure


@pytest.fixture(autouse=True)
def _longest_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chance picks the longest pause that it may."""
    monkeypatch.setattr(backoff.random, "uniform", lambda _, most_s: most_s)


def test_each_pause_may_be_twice_as_long(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were in each other's way get out of it."""
    monkeypatch.setattr(client, "CONFLICT_PAUSE_S", 0.001)
    work = Conflicting()
    with pytest.raises(SerializationFailure):
        Postgres(make(1)).repeat(work)
    assert len(work.begun_s) == MAX_CONFLICTS
    pauses_s = [after - before for before, after in pairwise(work.begun_s)]
    assert all(pause_s >= 0.001 * 2**n for n, pause_s in enumerate(pauses_s, start=1)), pauses_s


def test_no_pause_is_begun_that_the_request_has_no_time_for(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conflict is raised at once: waiting for the deadline would not help."""
    monkeypatch.setattr(client, "CONFLICT_PAUSE_S", 30.0)
    work = Conflicting()
    pool = make(1)
    started = monotonic()
    with deadline.limit(5.0), pytest.raises(SerializationFailure):
        Postgres(pool).repeat(work)
    assert len(work.begun_s) == 1
    assert monotonic() - started < SLACK_S


def test_pauses_end_with_the_request(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many attempts as fit are made, and the last conflict is raised before the deadline."""
    monkeypatch.setattr(client, "CONFLICT_PAUSE_S", 0.05)
    monkeypatch.setattr(client, "MAX_CONFLICT_PAUSE_S", 60.0)
    work = Conflicting()
    pool = make(1)
    run(pool, "select 1")  # it connects
    # After 0.1, 0.3, 0.7 and 1.5 s; 3.1 s are too many.
    with deadline.limit(2.0), pytest.raises(SerializationFailure):
        Postgres(pool).repeat(work)
    assert 2 <= len(work.begun_s) <= 5
