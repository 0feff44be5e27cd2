"""
Who takes part in ``bench.postgres``: ours, and what it is compared with.

Each has one worker, a pool of POOL_SIZE connections to the same Postgres, and no access log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.report import OURS
from bench.servers import Gunicorn, Server, Uvicorn

POOL_SIZE = 20
READY = "/books/1"  # imports, pools and lazy connects are done when it answers
# The two settings that make our service what it would be without our wait callback and PREPARE.
WAIT, PREPARE = "GREENLINE_PG_WAIT", "POSTGRES_PREPARE"
WITHOUT_PREPARE = "psycogreen"
ONE_WORKER = ("-c", "bench/peers/gunicorn_quiet.py", "--workers", "1")
FAST = ("--workers", "1", "--loop", "uvloop", "--http", "httptools")
QUIET = ("--no-access-log", "--log-level", "warning")


@dataclass(frozen=True)
class Peer:
    """How one is started."""

    who: str
    kind: type[Server]
    arguments: Sequence[str]
    env: Mapping[str, str]

    def server(self, folder: Path) -> Server:
        """Return its server, to be entered; its log is in *folder*."""
        log = folder / f"{self.who}.log"
        return self.kind(self.arguments, ready=READY, env=self.env, log=log)


def lineup(database_url: str, mongodb_uri: str) -> list[Peer]:
    """Return all of them, ours first."""
    shared = {"DATABASE_URL": database_url, "POSTGRES_POOL_SIZE": str(POOL_SIZE)}

    def flask(who: str, app: str, wait: str, prepare: str) -> Peer:
        # Postgres is told who asks, so that the bench can look at what it is asked.
        named = {**shared, "DATABASE_URL": f"{database_url}&application_name={who}"}
        settings = {"MONGODB_URI": mongodb_uri, WAIT: wait, PREPARE: prepare}
        return Peer(who, Gunicorn, (*ONE_WORKER, app), {**named, **settings})

    def asgi(who: str, module: str) -> Peer:
        return Peer(who, Uvicorn, (*FAST, *QUIET, f"bench.peers.{module}:app"), shared)

    return [
        flask(OURS, "app.wsgi:app", "greenline", "1"),
        flask(WITHOUT_PREPARE, "bench.peers.psycogreen_flask:app", "psycogreen", "0"),
        asgi("starlette-asyncpg", "starlette_asyncpg"),
        asgi("fastapi-sqlalchemy", "fastapi_sqlalchemy"),
        asgi("fastapi-sqlalchemy-sync", "fastapi_sqlalchemy_sync"),
    ]
