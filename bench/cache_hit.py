"""
What a hit adds to a request, and the memory of a full cache: ``python -m bench.cache_hit``.

Each figure is the least of several rounds in this process, which is patched as a worker is. A hit
is judged by what a request of a plain view takes here, without a socket. The last line is JSON.
"""
# ruff: noqa: E402

from greenline.patch import patch_all

patch_all()

import gc
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import thread_time
from typing import Any

from app.api import answer_headers, cache_status
from app.store.cached import Cached
from app.store.ports import Stored
from greenline.cache import Cache
from greenline.cache.feed import Feed
from greenline.flask import Flask
from greenline.flask.cached import cached

ROUNDS, TIMES = 30, 1_000
MAX_BYTES = 64_000_000
ENVIRON = {
    "REQUEST_METHOD": "GET", "SERVER_NAME": "x", "SERVER_PORT": "80", "HTTP_HOST": "x",
    "wsgi.url_scheme": "http", "QUERY_STRING": "", "SCRIPT_NAME": "", "SERVER_PROTOCOL": "HTTP/1.1",
}  # fmt: skip
BOOK = b'{"id":1,"title":"' + b"x" * 300 + b'"}'


class Books:
    """A repository that reads nothing."""

    name = "books"

    def get(self, item_id: Any) -> Stored:
        return Stored(item_id, 1, BOOK)


def us(*calls: Callable[[], object]) -> list[float]:
    """Return the microseconds of the processor that each call takes; the rounds are interleaved."""
    least_s = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for number, call in enumerate(calls):
            began_s = thread_time()
            for _ in range(TIMES):
                call()
            least_s[number] = min(least_s[number], thread_time() - began_s)
    return [round(each / TIMES * 1e6, 2) for each in least_s]


def of_the_service(feed: Feed) -> float:
    """Return what a hit costs: the repository of the cache, and the header."""
    books = Books()
    kept = Cached(books, Cache(MAX_BYTES, 600, feed=feed), bool)  # type: ignore[arg-type]

    more, less = us(lambda: kept.get(1), lambda: books.get(1))
    with_header, without = us(_answering([cache_status.add]), _answering([]))
    return round(more - less + with_header - without, 2)


def _answering(adds: Sequence[answer_headers.Add]) -> Callable[[], object]:
    """Return what makes an answer to which *adds* add their headers."""

    def plain(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return ()

    app = Flask("hit")
    app.wsgi_app = plain  # type: ignore[method-assign]
    answer_headers.register(app, adds)
    return lambda: app.wsgi_app(dict(ENVIRON), _ignore)


def of_a_view() -> tuple[float, float]:
    """Return what a request of a plain view costs, and what a hit of the same view adds."""
    app = Flask("hit")
    app.testing = True  # an error of it is raised
    body = {"id": 1, "title": "x" * 300}

    @app.get("/kept")
    @cached(Cache(MAX_BYTES, 600))
    def kept() -> dict[str, Any]:
        return body

    @app.get("/plain")
    def plain() -> dict[str, Any]:
        return body

    def ask(path: str) -> None:
        answer: Any = app.wsgi_app({**ENVIRON, "PATH_INFO": path}, _ignore)
        getattr(answer, "close", bool)()

    plain_us, kept_us = us(lambda: ask("/plain"), lambda: ask("/kept"))
    return plain_us, round(kept_us - plain_us, 2)


def memory() -> float:
    """Return the memory that a full cache of items takes, over its bound."""
    cache = Cache(MAX_BYTES, 600)
    gc.collect()
    before = _rss_bytes()
    number = 0
    while not cache.stats()["evictions"]:
        number += 1
        item = Stored(number, 1, BOOK + b" " * (number % 500))
        cache.get_or_load(f"books {number}", lambda item=item: item, tags=["books items"])
    gc.collect()
    return round((_rss_bytes() - before) / MAX_BYTES, 3)


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _ignore(*_: object) -> None:
    pass


def main() -> None:
    """Print the figures."""
    figures = {"memory of a full cache over its bound": memory()}
    with tempfile.TemporaryDirectory() as folder:
        figures["a hit of the service"] = of_the_service(Feed("bench", 600, Path(folder)))
    figures["a request of a plain view"], figures["a hit of a view"] = of_a_view()
    for what, figure in figures.items():
        print(f"{what}: {figure:g}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
