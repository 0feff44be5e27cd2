"""A WSGI application that opens both databases when it is imported."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from greenline import mongo, postgres

pg = postgres.open()
same = postgres.open(name="reports", max_size=None)
client = mongo.open()


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer with what both databases hold, and how many connections the worker may have."""
    with pg.connection() as conn, conn.cursor() as cursor:
        cursor.execute("select pg_sleep(0.05), 7")
        _, seven = cursor.fetchone() or (None, None)
    (eight,) = same.fetch("eight", "select %(n)s + 1", {"n": 7})[0]
    with client.database() as database:
        nine = database.things.count_documents({}) + 9
    plan = pg.plan
    document = {"numbers": [seven, eight, nine], "most": plan and plan.max_pool_size}
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(document).encode()]
