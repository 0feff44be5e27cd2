"""
Products that lack a field, asked for both ways, as no. 4 compares them.

Of COUNT products one in ``SHARE`` does not have the field, and as many hold its default instead.
``?lacking=gtin`` finds the first, ``?gtin=`` the others; each has a compound index.
"""

import json
from collections.abc import Iterator
from typing import Any

from bench.bodies import Answer
from bench.rounds import Work
from bench.servers import Server, ServerError

COUNT, BATCH, SHARE = 20_000, 1_000, 100
DEFAULT = ""
COUNTRIES = ("DK", "NO", "SE")
MISSING = Work("lacking-missing", "/products?lacking=gtin&limit=50")
HOLDS_DEFAULT = Work("lacking-default", f"/products?gtin={DEFAULT}&limit=50")
JSON = {"Content-Type": "application/json"}


def fill(server: Server) -> None:
    """Store COUNT products through *server*."""
    for first in range(0, COUNT, BATCH):
        items = [product(number) for number in range(first, first + BATCH)]
        body = json.dumps({"items": items})
        status, _, answer = server.ask("POST", "/products/batch", JSON, body, timeout_s=60)
        if status != 201:
            raise ServerError(f"/products/batch answers {status}: {answer[:300]!r}")


def product(number: int) -> dict[str, Any]:
    """Return a product; some have no gtin, others the default one."""
    made: dict[str, Any] = {
        "offerId": f"bench-{number:06}",
        "title": f"Product {number}",
        "description": f"What there is to say about product {number}.",
        "link": f"https://shop.example/products/{number}",
        "imageLink": f"https://shop.example/images/{number}.jpg",
        "price": {"value": f"{number % 500 + 1}.95", "currency": "DKK"},
        "brand": f"Brand {number % 50}",
        "gtin": f"{4_000_000_000_000 + number}",
        "mpn": f"MPN-{number:06}",
        "slug": {country: f"product-{number}-{country.lower()}" for country in COUNTRIES},
    }
    if number % SHARE == 0:
        del made["gtin"]
    elif number % SHARE == 1:
        made["gtin"] = DEFAULT
    return made


def wrong(missing: Answer, holds_default: Answer) -> Iterator[str]:
    """Say what is wrong with the answers to both questions: each finds a page of its own."""
    for work, (status, body) in ((MISSING, missing), (HOLDS_DEFAULT, holds_default)):
        if status != 200:
            yield f"{work.path}: answers {status}"
            continue
        found = [item.get("gtin") for item in json.loads(body)["items"]]
        if len(found) != 50 or set(found) != {None if work is MISSING else DEFAULT}:
            yield f"{work.path}: finds {len(found)} products with {sorted(map(str, set(found)))}"
