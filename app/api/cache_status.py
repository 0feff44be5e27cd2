"""
Say in ``Cache-Status`` (:rfc:`9211`) whether an answer comes from the cache of the worker.

Each worker has its own, so the name of the cache has the worker's process id.
"""

import os
from functools import cache
from typing import Any

from app.api import http

HEADER = "Cache-Status"
ENVIRON = "greenline.cached"
FORWARDED = {"miss": "fwd=miss", "collapsed": "fwd=miss; collapsed"}


def note(where: str) -> None:
    """
    Note where the answer of the current request comes from.

    :param where: as :meth:`greenline.cache.Cache.get_or_load` notes it.
    """
    http.environ()[ENVIRON] = where


def add(environ: dict[str, Any], headers: list[tuple[str, str]]) -> None:
    """Add the header to those of an answer."""
    where = environ.get(ENVIRON)
    if where is None:
        found = "fwd=bypass" if environ["REQUEST_METHOD"] in ("GET", "HEAD") else "fwd=method"
    else:
        found = FORWARDED.get(where, "hit")
    headers.append((HEADER, f"{_name()}; {found}"))


@cache
def _name() -> str:
    return f"greenline-{os.getpid()}"
