"""
Answer a request for one item that the cache holds before Flask looks for its route.

What Flask does for a request takes longer than a hit. A request that may have any other answer than
the item goes on to Flask.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from flask import Flask
from werkzeug.exceptions import BadHost
from werkzeug.routing import Map

from app.api import accept, cache_status, versions
from app.api.operations import Scope
from app.api.resource import Resource
from app.store.cached import Cached
from app.store.ports import Stored

JSON = ("Content-Type", accept.JSON)
ROUTE = "greenline.route"  # read by the worker's log and metrics
MAX_REMEMBERED_HOSTS = 100  # clients choose them
_MAP = Map()  # as that of Flask, it has no names of hosts

Environ = dict[str, Any]
Admits = Callable[[Environ, Scope], bool]
# Of a resource: what finds an item by its id, the right to read it, and the rest of its route.
Kept = tuple[Callable[[str], Stored | None], Scope, str]


def register(app: Flask, resources: Sequence[Resource[Any]], admits: Admits) -> None:
    """
    Answer requests for the kept items of *resources*.

    :param app: the application.
    :param resources: those whose repository is no cache are left out.
    :param admits: as :meth:`app.api.access.Access.admits`.
    """
    kept: dict[str, Kept] = {
        f"/{each.name}": (each.repository.kept_item, each.read, f"/<{each.converter}:item_id>")
        for each in resources
        if isinstance(each.repository, Cached)
    }
    if kept:
        app.wsgi_app = _KeptItems(app.wsgi_app, kept, admits)  # type: ignore[method-assign]


class _KeptItems:
    """A WSGI application around *application*."""

    def __init__(self, application: Any, kept: dict[str, Kept], admits: Admits) -> None:
        self._application = application
        self._kept = kept
        self._admits = admits

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        path, _, item_id = environ["PATH_INFO"].rpartition("/")
        kept = self._kept.get(path)
        if kept is not None and environ["REQUEST_METHOD"] == "GET":
            kept_item, scope, rest = kept
            # With a condition the answer may be 304, and no route is for a WebSocket. The right is
            # looked up before the item: a hit is counted.
            if (
                "HTTP_IF_NONE_MATCH" not in environ
                and "HTTP_UPGRADE" not in environ
                and _is_host(environ["wsgi.url_scheme"], environ.get("HTTP_HOST"))
                and accept.allows(environ)
                and self._admits(environ, scope)
                and (stored := kept_item(item_id)) is not None
            ):
                environ[ROUTE] = path + rest
                environ[cache_status.ENVIRON] = "hit"
                length = ("Content-Length", str(len(stored.json)))
                start_response("200 OK", [JSON, length, versions.etag(stored)])
                return [stored.json]
        answer: Iterable[bytes] = self._application(environ, start_response)
        return answer


@lru_cache(MAX_REMEMBERED_HOSTS)
def _is_host(scheme: str, host: str | None) -> bool:
    """Return whether Flask would look for a route: to some hosts Werkzeug answers 400."""
    try:
        _MAP.bind_to_environ(
            {"wsgi.url_scheme": scheme, "HTTP_HOST": host, "REQUEST_METHOD": "GET"}
        )
    except BadHost:
        return False
    return True
