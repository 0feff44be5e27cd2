"""
A page that takes SLEEP_S in Postgres: with our cache, with a naive one, and without.

``/loads`` says how often each was loaded.
"""
# ruff: noqa: E402

from greenline.patch import patch_all

patch_all()

import time
from collections import Counter
from collections.abc import Callable

from greenline import postgres
from greenline.cache import Cache
from greenline.flask import Flask

SLEEP_S, TTL_S = 0.2, 60.0

app = Flask(__name__)
db = postgres.open()
cache = Cache(1_000_000, TTL_S)
naive: dict[str, tuple[float, str]] = {}
loads: Counter[str] = Counter()


def load(who: str) -> Callable[[], str]:
    def page() -> str:
        loads[who] += 1
        with db.connection(autocommit=True) as conn, conn.cursor() as cursor:
            cursor.execute("select pg_sleep(%s)", (SLEEP_S,))
        return "x" * 10_000

    return page


@app.get("/ready")
def ready() -> str:
    return "yes"


@app.get("/cached/<key>")
def cached(key: str) -> str:
    return cache.get_or_load(key, load("cached"))


@app.get("/naive/<key>")
def naively(key: str) -> str:
    found = naive.get(key)
    if found is None or found[0] < time.monotonic():
        found = naive[key] = time.monotonic() + TTL_S, load("naive")()
    return found[1]


@app.get("/plain/<key>")
def plainly(key: str) -> str:
    return load("plain")()


@app.get("/loads")
def counted() -> dict[str, int]:
    return dict(loads)
