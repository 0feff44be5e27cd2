"""A WSGI application on both databases, which are opened by a call: at import, or in post_fork."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from greenline import mongo, postgres
from greenline.mongo import OpenMongo
from greenline.postgres import OpenPostgres


@dataclass
class Opened:
    """What open_both has opened in this process."""

    pg: OpenPostgres
    same: OpenPostgres
    client: OpenMongo


opened: list[Opened] = []


def open_both() -> None:
    """Open both databases; Postgres twice."""
    pg = postgres.open()
    opened.append(Opened(pg, postgres.open(name="reports", max_size=None), mongo.open()))


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer with what both databases hold, and how many connections the worker may have."""
    (mine,) = opened
    with mine.pg.connection() as conn, conn.cursor() as cursor:
        cursor.execute("select pg_sleep(0.05), 7")
        _, seven = cursor.fetchone() or (None, None)
    (eight,) = mine.same.fetch("eight", "select %(n)s + 1", {"n": 7})[0]
    with mine.client.database() as database:
        nine = database.things.count_documents({}) + 9
    plan = mine.pg.plan
    document = {"numbers": [seven, eight, nine], "most": plan and plan.max_pool_size}
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(document).encode()]
