"""
Who takes part in the article's experiment, and what they are asked.

Every contender is a gunicorn started with the same number of workers. The scripts have nothing set
but what their column says, and run from a folder without a ``gunicorn.conf.py``; our service runs
as in production.
"""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.report import OURS
from bench.servers import ROOT, Gunicorn, ServerError

SCRIPTS = ROOT / "bench" / "scripts"
STOCK, PSYCOGREEN, SQLALCHEMY = "stock-gevent", "psycogreen", "psycogreen-sqlalchemy"
PGBOUNCER, SERVICE = "gthread-pgbouncer", "greenline-service"
THREADS = "100"
CONNECTING = "connect_per_request:app"


@dataclass(frozen=True)
class Work:
    """
    One kind of query: how long it sleeps, on how many workers, how often it is asked.

    *is_warm*: each client has asked once before; else only ours takes part.
    """

    name: str
    seconds: int
    workers: int
    clients: tuple[int, ...]
    arguments: tuple[str, ...] = ()
    repeats: int = 1
    asked: int = 1  # by each client
    path: str = "/"  # of the scripts
    body: bytes = b"1 rows\n"  # their answer
    is_warm: bool = True

    @property
    def is_sleep(self) -> bool:
        """Whether it sleeps in Postgres, which our service does as well."""
        return self.path == "/"


@dataclass(frozen=True)
class Contender:
    """How one is started, when it is ready, and where its query is."""

    who: str
    arguments: tuple[str, ...]
    env: Mapping[str, str]
    ready: str = "/ready"
    path: str = ""  # in place of the work's
    cwd: Path = SCRIPTS

    def gunicorn(self, work: Work, log: Path, more: Mapping[str, str]) -> Gunicorn:
        """Return its gunicorn for *work*, with *more* in its environment, to be entered."""
        arguments = [*self.arguments, "--workers", str(work.workers), *work.arguments]
        env = {**self.env, **more}
        return Gunicorn(arguments, ready=self.ready, env=env, log=log, cwd=self.cwd)

    def query(self, work: Work, seconds: float) -> str:
        """Return the path and query string of *work* that sleeps for *seconds*."""
        return f"{self.path or work.path}?seconds={seconds}"


def contenders(database_url: str, mongodb_uri: str) -> list[Contender]:
    """Return the scripts on other workers and on ours, and our service."""
    url = {"DATABASE_URL": database_url}
    # No deploy rolls here; the scripts' folder has no greenline.
    ours = {**url, "GREENLINE_SURGE_HOSTS": "0", "PYTHONPATH": str(ROOT)}
    service = {**ours, "MONGODB_URI": mongodb_uri, "GREENLINE_DIAGNOSTICS": "1", "AUTH": "off"}
    return [
        Contender(STOCK, _on("gevent"), url),
        Contender(PSYCOGREEN, _on("gevent"), {**url, "BENCH_PSYCOGREEN": "1"}),
        Contender(SQLALCHEMY, _on("gevent", "sqlalchemy_pool:app"), url),
        Contender(PGBOUNCER, ("--threads", THREADS, *_on("gthread")), url),
        Contender(OURS, _on("greenline.worker.GreenWorker"), {**ours, "GREENLINE_POOL": "1"}),
        Contender(
            SERVICE,
            ("-c", "gunicorn.conf.py", "app.wsgi:app"),
            service,
            "/readyz",
            "/diagnostics/sleep",
            ROOT,
        ),
    ]


def _on(worker: str, app: str = CONNECTING) -> tuple[str, ...]:
    return ("--worker-class", worker, "--no-control-socket", app)


def flask(*command: str, env: Mapping[str, str]) -> str:
    """Run a command of our service and return what it printed."""
    program = str(Path(sys.executable).parent / "flask")
    done = subprocess.run(
        [program, *command], cwd=ROOT, env=dict(env), capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        raise ServerError(f"flask {' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout
