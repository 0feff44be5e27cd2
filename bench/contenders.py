"""
Who takes part in the article's experiment, and what they are asked.

Every contender is a gunicorn started with the same number of workers. The scripts run on the
stock gevent worker with nothing else set, from a folder without a ``gunicorn.conf.py``; ours
as it runs in production.
"""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.report import OURS
from bench.servers import ROOT, Gunicorn, ServerError

SCRIPTS = ROOT / "bench" / "scripts"
PSYCOGREEN = "psycogreen"
SCRIPT = ("--worker-class", "gevent", "--no-control-socket", "connect_per_request:app")


@dataclass(frozen=True)
class Work:
    """One kind of query: how long it sleeps, on how many workers, how often it is measured."""

    name: str
    seconds: int
    workers: int
    clients: tuple[int, ...]
    arguments: tuple[str, ...] = ()
    repeats: int = 1


@dataclass(frozen=True)
class Contender:
    """How one is started, when it is ready, and where its query is."""

    who: str
    arguments: tuple[str, ...]
    env: Mapping[str, str]
    ready: str
    path: str
    cwd: Path = SCRIPTS

    def gunicorn(self, work: Work, log: Path) -> Gunicorn:
        """Return its gunicorn for *work*, to be entered."""
        arguments = [*self.arguments, "--workers", str(work.workers), *work.arguments]
        return Gunicorn(arguments, ready=self.ready, env=self.env, log=log, cwd=self.cwd)

    def query(self, seconds: int) -> str:
        """Return the path and query string that make it sleep for *seconds*."""
        return f"{self.path}?seconds={seconds}"


def contenders(database_url: str, mongodb_uri: str) -> list[Contender]:
    """Return the script without and with psycopg2's hook, and ours."""
    url = {"DATABASE_URL": database_url}
    ours = {**url, "MONGODB_URI": mongodb_uri, "GREENLINE_DIAGNOSTICS": "1"}
    ours |= {"AUTH": "off", "GREENLINE_SURGE_HOSTS": "0"}  # no deploy rolls here
    return [
        Contender("stock-gevent", SCRIPT, url, "/ready", "/"),
        Contender(PSYCOGREEN, SCRIPT, {**url, "BENCH_PSYCOGREEN": "1"}, "/ready", "/"),
        Contender(
            OURS,
            ("-c", "gunicorn.conf.py", "app.wsgi:app"),
            ours,
            "/readyz",
            "/diagnostics/sleep",
            ROOT,
        ),
    ]


def flask(*command: str, env: Mapping[str, str]) -> str:
    """Run a command of our service and return what it printed."""
    program = str(Path(sys.executable).parent / "flask")
    done = subprocess.run(
        [program, *command], cwd=ROOT, env=dict(env), capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        raise ServerError(f"flask {' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout
