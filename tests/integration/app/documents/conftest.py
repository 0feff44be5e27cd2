"""Two collections of a test's own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from tests.integration.app.documents.pair import Pair


@pytest.fixture
def pair(empty_mongo: str, tmp_path: Path) -> Iterator[Pair]:
    """A source and a target in a new database."""
    client: MongoClient[dict[str, Any]] = MongoClient(empty_mongo)
    with client:
        yield Pair(empty_mongo, client, tmp_path)
