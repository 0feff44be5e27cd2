"""
Who takes part in ``bench.http``: ours, and what it is compared with.

Each has one worker and no access log, and answers the same small JSON object. Threads and loops
are each server's own choice, but for gthread, whose single one would be no server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.report import OURS
from bench.servers import Granian, Gunicorn, Server, Uvicorn

READY = "/"
GREEN = ("--worker-class", "greenline.worker.GreenWorker")
GEVENT = ("--worker-class", "gevent", "--http-parser")
GTHREAD = ("--worker-class", "gthread", "--threads", "4")
UVICORN = ("--workers", "1", "--loop", "uvloop", "--http", "httptools")
QUIET = ("--no-access-log", "--log-level", "warning")
GRANIAN = ("--workers", "1", "--log-level", "warning", "--interface")
# The one that ours is to match.
RIVAL = "uvicorn-starlette"


@dataclass(frozen=True)
class Peer:
    """How one is started."""

    who: str
    kind: type[Server]
    arguments: Sequence[str]

    def server(self, folder: Path) -> Server:
        """Return its server, to be entered; its log is in *folder*."""
        log = folder / f"{self.who}.log"
        return self.kind(self.arguments, ready=READY, env={}, log=log)


def lineup() -> list[Peer]:
    """Return all of them, ours first."""

    def gunicorn(who: str, app: str, *worker: str) -> Peer:
        conf = ("-c", "bench/peers/gunicorn_plain.py")
        return Peer(who, Gunicorn, (*conf, *worker, f"bench.peers.{app}:app"))

    def uvicorn(who: str, app: str) -> Peer:
        return Peer(who, Uvicorn, (*UVICORN, *QUIET, f"bench.peers.{app}:app"))

    def granian(who: str, app: str, interface: str) -> Peer:
        return Peer(who, Granian, (*GRANIAN, interface, f"bench.peers.{app}:app"))

    return [
        gunicorn(OURS, "json_greenline", *GREEN),
        gunicorn("green-flask", "json_flask", *GREEN),
        gunicorn("green-wsgi", "json_wsgi", *GREEN),
        gunicorn("gevent-flask-python", "json_flask", *GEVENT, "python"),
        gunicorn("gevent-flask-auto", "json_flask", *GEVENT, "auto"),
        gunicorn("gthread-flask", "json_flask", *GTHREAD),
        granian("granian-flask", "json_flask", "wsgi"),
        uvicorn(RIVAL, "json_starlette"),
        uvicorn("uvicorn-fastapi", "json_fastapi"),
        granian("granian-starlette", "json_starlette", "asgi"),
        granian("granian-fastapi", "json_fastapi", "asgi"),
    ]
