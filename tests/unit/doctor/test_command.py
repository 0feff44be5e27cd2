"""greenline.doctor.command: what a DATABASE_URL shows."""

import pytest

from greenline.doctor.command import leads_to_pgbouncer


@pytest.mark.parametrize(
    ("url", "is_pgbouncer"),
    [
        ("postgresql://shop@db:6432/shop", True),
        ("postgresql://shop@db:6432", True),
        ("postgresql://shop@pgbouncer.internal:5432/shop", True),
        ("postgresql://my-pgbouncer/shop", True),
        ("postgresql://shop@db:5432/shop?pgbouncer=true", True),
        ("host=pgbouncer dbname=shop", True),
        ("host=db port=6432", True),
        ("postgresql://pgbouncer:6432@db:5432/shop", False),
        ("postgresql://shop@db:64321/pgbouncer", False),
        ("", False),
    ],
)
def test_a_pgbouncer_is_known_by_its_host_or_port(url: str, is_pgbouncer: bool) -> None:
    """Not by the user, the password or the name of the database."""
    assert leads_to_pgbouncer(url) is is_pgbouncer
