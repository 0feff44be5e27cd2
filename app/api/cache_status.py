"""
Say in ``Cache-Status`` (:rfc:`9211`) whether an answer comes from the cache of the worker.

Each worker has its own, so the name of the cache has the worker's process id. A hit is also what
another request has loaded meanwhile.
"""

import os
from functools import cache
from typing import Any

from app.api import http

HEADER = "Cache-Status"
ENVIRON = "greenline.is_kept"


def note(is_kept: bool) -> None:
    """
    Note where the answer of the current request comes from.

    :param is_kept: it was in the cache.
    """
    http.environ()[ENVIRON] = is_kept


def add(environ: dict[str, Any], headers: list[tuple[str, str]]) -> None:
    """Add the header to those of an answer."""
    is_kept = environ.get(ENVIRON)
    if is_kept is None:
        found = "fwd=bypass" if environ["REQUEST_METHOD"] in ("GET", "HEAD") else "fwd=method"
    else:
        found = "hit" if is_kept else "fwd=miss"
    headers.append((HEADER, f"{_name()}; {found}"))


@cache
def _name() -> str:
    return f"greenline-{os.getpid()}"
