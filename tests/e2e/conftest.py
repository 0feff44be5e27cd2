"""One running service for the tests that only ask it."""

from collections.abc import Iterator

import pytest

from tests.support import Databases, Service, service

OPS_TOKEN = "sesame"


@pytest.fixture(scope="session")
def api(databases: Databases) -> Iterator[Service]:
    """The service on both servers, with the sample data."""
    more = {"GREENLINE_DIAGNOSTICS": "1", "OPS_TOKEN": OPS_TOKEN}
    with service({**databases.environ, **more}) as running:
        yield running
