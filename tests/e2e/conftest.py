"""One running service for the tests that only ask it."""

from collections.abc import Iterator

import pytest

from tests.support import Databases, Service, service


@pytest.fixture(scope="session")
def api(databases: Databases) -> Iterator[Service]:
    """The service on both servers, with the sample data."""
    with service({**databases.environ, "GREENLINE_DIAGNOSTICS": "1"}) as running:
        yield running
