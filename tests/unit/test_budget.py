"""greenline.budget: the arithmetic of connections."""

import pytest

from greenline.budget import PostgresLimits, mongodb_share, postgres_share

STOCK = PostgresLimits(
    max_connections=100, superuser_reserved_connections=3, reserved_connections=0
)


@pytest.mark.parametrize(
    ("workers", "share"), [(1, 93), (2, 45), (4, 21), (23, 2), (31, 1)], ids=lambda n: str(n)
)
def test_a_stock_postgres_is_split_evenly(workers: int, share: int) -> None:
    """(100 - 3 reserved - 2 head-room - two more a worker) / workers, rounded down."""
    found = postgres_share(STOCK, workers)
    assert (found.size, found.fits) == (share, True)


@pytest.mark.parametrize("workers", range(1, 32))
def test_all_workers_together_never_exceed_the_server(workers: int) -> None:
    """Pools, readiness and head-room fit into what is not reserved, for any number of workers."""
    total = workers * (postgres_share(STOCK, workers).size + 2) + 2
    assert total <= 100 - 3


def test_reserved_connections_are_not_ours() -> None:
    """PostgreSQL 16's reserved_connections count beside those for superusers."""
    limits = PostgresLimits(100, superuser_reserved_connections=3, reserved_connections=10)
    assert postgres_share(limits, 1).size == 83


def test_too_many_workers_get_one_connection_and_a_warning() -> None:
    """Below one a worker could do nothing at all, so it says that it does not fit."""
    found = postgres_share(STOCK, 32)
    assert (found.size, found.fits) == (1, False)
    assert "DOES NOT FIT" in str(found)


@pytest.mark.parametrize(("wanted", "fits"), [(45, True), (46, False)])
def test_a_size_that_was_set_is_kept_and_checked(wanted: int, fits: bool) -> None:
    """POSTGRES_POOL_SIZE wins over the share, and says when the server cannot hold it."""
    found = postgres_share(STOCK, 2, wanted)
    assert (found.size, found.fits) == (wanted, fits)


def test_the_sum_is_shown() -> None:
    """A person can check the share by hand."""
    assert str(postgres_share(STOCK, 2)) == (
        "45 connections a worker (max_connections 100 - 3 reserved "
        "- 4 for readiness and cancelling - 2 head-room, by 2 workers)"
    )


@pytest.mark.parametrize(
    ("allowed", "workers", "wanted", "size", "fits"),
    [
        (None, 2, None, 100, True),
        (None, 2, 7, 7, True),
        (838_860, 2, None, 100, True),
        (100, 2, None, 45, True),
        (100, 2, 46, 46, False),
        (8, 2, None, 1, False),
    ],
    ids=["silent", "silent, set", "plenty", "scarce", "set too high", "too scarce"],
)
def test_mongodb_follows_the_server_where_it_tells(
    allowed: int | None, workers: int, wanted: int | None, size: int, fits: bool
) -> None:
    """The server's limit less our monitors, at most pymongo's default."""
    found = mongodb_share(allowed, workers, wanted)
    assert (found.size, found.fits) == (size, fits)
