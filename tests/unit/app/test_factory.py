"""app.factory: how the memory of the cache is divided."""

import pytest

from app.factory import create_app
from config import load
from greenline.cache import cache
from greenline.mongo import OpenMongo
from greenline.postgres import OpenPostgres

MONGO = "mongodb://127.0.0.1:1/none"


@pytest.mark.parametrize(
    ("uri", "divided"),
    [
        ("off", {"postgres": 1_000_000}),
        (MONGO, {"postgres": 500_000, "mongodb": 500_000}),
        (f"{MONGO}?readPreference=primary", {"postgres": 500_000, "mongodb": 500_000}),
        (f"{MONGO}?readPreference=secondary", {"postgres": 1_000_000}),
    ],
    ids=["no MongoDB", "primary by default", "primary", "secondaries"],
)
def test_what_is_not_kept_takes_no_memory(
    uri: str, divided: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products are kept where the primary answers the reads."""
    for opened in (OpenPostgres, OpenMongo):
        monkeypatch.setattr(opened, "feed", lambda _: None)
    settings = {
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "MONGODB_URI": uri,
        "GREENLINE_CACHE_BYTES": "1000000",
        "WEB_CONCURRENCY": "1",
    }
    before = set(cache._caches)
    app = create_app(load(settings))
    made = set(cache._caches) - before
    app.extensions["greenline"].close()
    assert {each.name: each.max_bytes for each in made if each.name != "keys"} == divided
