"""
Who takes part in ``bench.http``: ours, and what it is compared with.

Each has one worker and no access log. Threads and loops are each server's own choice, but for
gthread, whose single one would be no server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.http_shapes import SMALL, STOCK, Shape
from bench.report import OURS
from bench.servers import ROOT, Granian, Gunicorn, Server, Uvicorn, without_settings

READY = "/"
GREEN = ("--worker-class", "greenline.worker.GreenWorker")
GEVENT = ("--worker-class", "gevent")
GTHREAD = ("--worker-class", "gthread", "--threads", "4")
UVICORN = ("--workers", "1", "--loop", "uvloop", "--http", "httptools")
QUIET = ("--no-access-log", "--log-level", "warning")
GRANIAN = ("--workers", "1", "--log-level", "warning", "--interface")
# The setting with which the worker speeds up an unmodified Flask.
FAST_FLASK = "GREENLINE_FAST_FLASK"
# The one that ours is to match, and the others with a floor or a limit.
RIVAL = "uvicorn-starlette"
ADOPTED, THREADS, GRANIAN_WSGI = "green-adopted", "gthread-flask", "granian-flask"


@dataclass(frozen=True)
class Peer:
    """
    How one is started.

    :param env: settings of ours. Default none.
    :param is_small_only: whether it answers the small JSON object and nothing else. Default False.
    """

    who: str
    kind: type[Server]
    arguments: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    is_small_only: bool = False

    def answers(self, shape: Shape) -> bool:
        """Return whether it takes part in *shape*."""
        if self.who in shape.left_out:
            return False
        return shape == SMALL or not self.is_small_only

    def server(self, folder: Path) -> Server:
        """Return its server, to be entered; its log is in *folder*."""
        log = folder / f"{self.who}.log"
        env = {**self.env, "PYTHONPATH": str(ROOT)}
        server = self.kind(self.arguments, ready=READY, env=env, log=log, cwd=folder)
        server.env = without_settings(server.env, env)
        return server


def gunicorn(who: str, target: str, worker: Sequence[str], **more: str) -> Peer:
    """Return a gunicorn with one *worker*; *more* are settings of ours."""
    conf = ("-c", str(ROOT / "bench" / "peers" / "gunicorn_plain.py"))
    return Peer(who, Gunicorn, (*conf, *worker, target), more)


def lineup() -> list[Peer]:
    """Return all that answer each shape, ours first, and then those that answer one of them."""
    ours = "bench.peers.http_greenline:app"
    flask, starlette = "bench.peers.http_flask:app", "bench.peers.http_starlette:app"
    wsgi, fastapi = "bench.peers.json_wsgi:app", "bench.peers.json_fastapi:app"
    return [
        gunicorn(OURS, ours, GREEN),
        gunicorn("green-flask", flask, GREEN),
        gunicorn(ADOPTED, flask, GREEN, **{FAST_FLASK: "1"}),
        gunicorn(STOCK, flask, GEVENT),
        gunicorn(THREADS, flask, GTHREAD),
        Peer(GRANIAN_WSGI, Granian, (*GRANIAN, "wsgi", flask)),
        Peer(RIVAL, Uvicorn, (*UVICORN, *QUIET, starlette)),
        replace(gunicorn("green-wsgi", wsgi, GREEN), is_small_only=True),
        Peer("uvicorn-fastapi", Uvicorn, (*UVICORN, *QUIET, fastapi), is_small_only=True),
        Peer("granian-starlette", Granian, (*GRANIAN, "asgi", starlette), is_small_only=True),
        Peer("granian-fastapi", Granian, (*GRANIAN, "asgi", fastapi), is_small_only=True),
    ]


def plain(target: str) -> list[Peer]:
    """Return the workers that host the WSGI application *target*, ours first."""
    return [gunicorn(OURS, target, GREEN), gunicorn("gevent", target, GEVENT),
            gunicorn("gthread", target, GTHREAD)]  # fmt: skip
