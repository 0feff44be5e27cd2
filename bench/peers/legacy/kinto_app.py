"""
kinto with Postgres behind its storage, its cache and its permissions.

``python -m bench.peers.legacy.kinto_app`` makes the tables and fills them.
"""

import base64
import json
import os

import kinto
from kinto.core.scripts import migrate
from webob import Request

URL = os.environ["DATABASE_URL"]
SETTINGS = {
    "kinto.userid_hmac_secret": "bench",
    "kinto.storage_backend": "kinto.core.storage.postgresql",
    "kinto.storage_url": URL,
    "kinto.cache_backend": "kinto.core.cache.postgresql",
    "kinto.cache_url": URL,
    "kinto.permission_backend": "kinto.core.permission.postgresql",
    "kinto.permission_url": URL,
    "multiauth.policies": "basicauth",
    "multiauth.policy.basicauth.use": ("kinto.core.authentication.BasicAuthAuthenticationPolicy"),
    "kinto.bucket_create_principals": "system.Authenticated",
}
RECORDS = 20

app = kinto.main({}, config=None, **SETTINGS)


def fill() -> None:
    """Make the tables, and a collection with RECORDS records."""
    migrate({"registry": app.registry})
    _put("/v1/buckets/bench", {})
    _put("/v1/buckets/bench/collections/orders", {})
    for each in range(RECORDS):
        data = {"number": f"N-{each:03}", "total": each}
        _put(f"/v1/buckets/bench/collections/orders/records/order{each}", data)


def _put(path: str, data: dict[str, object]) -> None:
    """Have the application create what *path* names."""
    request = Request.blank(path, method="PUT", content_type="application/json")
    request.headers["Authorization"] = "Basic " + base64.b64encode(b"bench:bench").decode()
    request.body = json.dumps({"data": data}).encode()
    response = request.get_response(app)
    if response.status_code not in (200, 201):
        raise SystemExit(f"{path}: {response.status} {response.text}")


if __name__ == "__main__":
    fill()
