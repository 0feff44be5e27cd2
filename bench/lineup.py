"""
Who takes part in ``bench.postgres`` and ``bench.api``: ours, and what it is compared with.

Each has one worker where nothing else is said, pools of one size to the same databases, and no
access log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.report import OURS
from bench.servers import ROOT, Gunicorn, Server, Uvicorn

POOL_SIZE = 20
MONGODB_POOL_SIZE = 100  # pymongo's own default
THREADS = 40  # as many as FastAPI has for what blocks
READY = "/books/1"  # imports, pools and lazy connects are done when it answers
READY_DOCUMENTS = f"/states/{1:024x}"
# The two settings that make our service what it would be without our wait callback and PREPARE.
WAIT, PREPARE = "GREENLINE_PG_WAIT", "POSTGRES_PREPARE"
WITHOUT_PREPARE = "psycogreen"
OURS_QUIET = ("-c", str(ROOT / "bench" / "peers" / "gunicorn_quiet.py"))
FAST = ("--loop", "uvloop", "--http", "httptools")
QUIET = ("--no-access-log", "--log-level", "warning")
IN_THREADS = ("-c", "bench/peers/gunicorn_plain.py", "--worker-class", "gthread")


@dataclass(frozen=True)
class Peer:
    """How one is started."""

    who: str
    kind: type[Server]
    arguments: Sequence[str]
    env: Mapping[str, str]
    ready: str = READY

    def server(self, folder: Path) -> Server:
        """Return its server, to be entered; its log is in *folder*."""
        log = folder / f"{self.who}.log"
        return self.kind(self.arguments, ready=self.ready, env=self.env, log=log)


def lineup(database_url: str, mongodb_uri: str) -> list[Peer]:
    """Return who reads books, ours first."""
    shared = {"DATABASE_URL": database_url, "POSTGRES_POOL_SIZE": str(POOL_SIZE)}

    def flask(who: str, app: str, wait: str, prepare: str) -> Peer:
        # Postgres gets the server's name, so that the bench can look at what it is asked.
        named = {**shared, "DATABASE_URL": f"{database_url}&application_name={who}"}
        settings = {"MONGODB_URI": mongodb_uri, "AUTH": "off", WAIT: wait, PREPARE: prepare}
        arguments = (*OURS_QUIET, *_workers(1), app)
        return Peer(who, Gunicorn, arguments, {**named, **settings})

    return [
        flask(OURS, "app.wsgi:app", "greenline", "1"),
        flask(WITHOUT_PREPARE, "bench.peers.psycogreen_flask:app", "psycogreen", "0"),
        _asgi("starlette-asyncpg", "starlette_asyncpg", shared),
        _asgi("fastapi-sqlalchemy", "fastapi_sqlalchemy", shared),
        _asgi("fastapi-sqlalchemy-sync", "fastapi_sqlalchemy_sync", shared),
    ]


def with_keys(database_url: str, mongodb_uri: str) -> list[Peer]:
    """Return who reads agents for those who have an API key, ours first."""
    shared = {"DATABASE_URL": database_url, "POSTGRES_POOL_SIZE": str(POOL_SIZE)}
    ours = {**shared, "MONGODB_URI": mongodb_uri, "AUTH": "on"}
    return [
        _ours(1, ours, "/readyz"),
        _asgi("fastapi-sqlalchemy", "fastapi_sqlalchemy", shared),
    ]


def documents(database_url: str, mongodb_uri: str, workers: int = 1) -> list[Peer]:
    """Return who has states and messages, each with so many *workers*, ours first."""
    shared = {"MONGODB_URI": mongodb_uri, "MONGODB_MAX_POOL_SIZE": str(MONGODB_POOL_SIZE)}
    ours = {**shared, "DATABASE_URL": database_url, "AUTH": "off"}
    count = _workers(workers)
    in_threads = (*IN_THREADS, *count, "--threads", str(THREADS), "bench.peers.gthread_flask:app")
    ready = READY_DOCUMENTS
    return [
        _ours(workers, ours, ready),
        _asgi("fastapi-pymongo-async", "fastapi_pymongo_async", shared, ready, workers),
        _asgi("fastapi-to-thread", "fastapi_to_thread", shared, ready, workers),
        Peer("gthread", Gunicorn, in_threads, shared, ready),
    ]


def _ours(workers: int, env: Mapping[str, str], ready: str) -> Peer:
    arguments = (*OURS_QUIET, *_workers(workers), "app.wsgi:app")
    return Peer(OURS, Gunicorn, arguments, env, ready)


def _asgi(
    who: str, module: str, env: Mapping[str, str], ready: str = READY, workers: int = 1
) -> Peer:
    arguments = (*_workers(workers), *FAST, *QUIET, f"bench.peers.{module}:app")
    return Peer(who, Uvicorn, arguments, env, ready)


def _workers(count: int) -> tuple[str, str]:
    return ("--workers", str(count))
