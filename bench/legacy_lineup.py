"""
The applications of ``bench.legacy``, what is asked of them, and the servers that host them.

All come from the package index as they are. Each has one worker: ours without any setting, or
gunicorn's gthread with a number of threads, in the same environment of its own.
"""

import base64
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench import legacy_environments
from bench.http_lineup import GREEN
from bench.report import OURS
from bench.servers import ROOT, Gunicorn, ServerError, without_settings
from greenline.budget.plan import Deployment, PostgresFacts, postgres_plan

THREADS = (8, 16, 32)
MAX_CONNECTIONS = 100
# Postgres keeps three for superusers.
CONNECTIONS = MAX_CONNECTIONS - 3
# The promises: our req/s over those of the best gthread. BUSY where the work is CPU or database,
# EXPLAINED where a profile says why that is not reached, WAITS by clients where it waits.
BUSY, EXPLAINED = 0.95, 0.85
WAITS = {20: 0.95, 50: 1.4, 200: 5.0}
# Where the number of connections bounds both, this part of what they allow is promised.
CEILING_PART = 0.9
PINNED = ("--workers", "1", "--log-level", "warning", "--no-control-socket")


@dataclass(frozen=True)
class Application:
    """
    An application in the environment *name*, that gunicorn imports as *target*.

    *fill* is a module that makes its tables; None: it has none. ``{url}`` in a value of *env* is
    the address of its database, ``{sqlalchemy}`` the same with the driver named, because psycopg2
    is not SQLAlchemy's own choice any more, and ``{folder}`` a folder.
    """

    name: str
    target: str
    ready: str
    fill: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def environ(self, database_url: str, folder: Path) -> dict[str, str]:
        """Return the variables of its own."""
        known = {
            "url": database_url,
            "sqlalchemy": database_url.replace("postgresql:", "postgresql+psycopg2:"),
            "folder": folder,
        }
        filled = {name: value.format_map(known) for name, value in self.env.items()}
        return {"PYTHONPATH": str(ROOT), **filled}

    def make_tables(self, database_url: str, folder: Path) -> None:
        """Fill its database; raise ServerError when that fails."""
        if self.fill is None:
            return
        done = subprocess.run(
            [str(legacy_environments.find(self.name) / "bin" / "python"), "-m", self.fill],
            env={**os.environ, **self.environ(database_url, folder)},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerError(f"{self.fill}: {done.stderr.strip()[-3000:]}")


@dataclass(frozen=True)
class Work:
    """
    What is asked of an *application*: a GET of *path*, or with a *body* a POST.

    *waits*: a request waits for 200 ms or longer, and uses next to nothing meanwhile.
    *connections*: so many requests can be worked on at once, None: as many as there are; *ours*: on
    our worker, if they are fewer there.
    *explained*: why BUSY is not reached, where that is known; EXPLAINED is promised then.
    """

    name: str
    application: Application
    path: str
    marker: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    waits: bool = False
    connections: int | None = None
    ours: int | None = None
    explained: str | None = None

    def promised(self, clients: int, threads: int) -> float:
        """Return the lowest ratio of our req/s to those of gthread with *threads*."""
        if not self.waits:
            return EXPLAINED if self.explained else BUSY
        ceiling = self.ceiling(clients, threads)
        ratio = at_waits(clients)
        return ratio if ratio <= ceiling else round(CEILING_PART * ceiling, 2)

    def ceiling(self, clients: int, threads: int) -> float:
        """Return what the number of connections lets us reach, over gthread with *threads*."""
        theirs = self.connections or clients
        ours = self.ours or theirs
        return min(clients, ours) / min(clients, theirs, threads)

    def with_pool(self) -> "Work":
        """Return it as ``GREENLINE_POOL=1`` bounds it."""
        if not (self.waits and self.connections):
            return self
        # Half of the server's connections are for the hosts of the next release, and one of a
        # large pool is for requests that have one already.
        plan = postgres_plan(PostgresFacts(MAX_CONNECTIONS), Deployment(1, 1, 1))
        return replace(self, ours=min(plan.worker - 1, self.connections))


class Hosted(Gunicorn):
    """The gunicorn of the environment *name*, without settings of ours that *env* does not have."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        ready: str,
        env: Mapping[str, str],
        log: Path,
        cwd: Path,
    ) -> None:
        super().__init__(arguments, ready=ready, env=env, log=log, cwd=cwd)
        self.command[0] = str(legacy_environments.find(name) / "bin" / "gunicorn")
        self.env = without_settings(self.env, env)


def at_waits(clients: int) -> float:
    """Return what is promised where requests wait, for the next known number of *clients*."""
    return WAITS[min(WAITS, key=lambda known: abs(known - clients))]


DATABASE = {"DATABASE_URL": "{url}"}
SHOP = "bench.peers.legacy.shop"
MLFLOW = Application(
    "mlflow",
    "mlflow.server:app",
    "/health",
    "bench.peers.legacy.mlflow_fill",
    # What `mlflow server --backend-store-uri ... --gunicorn-opts ...` hands to its gunicorn.
    {
        "_MLFLOW_SERVER_FILE_STORE": "{sqlalchemy}",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "{folder}/artifacts",
        "_MLFLOW_SGI_NAME": "gunicorn",
    },
)
DJANGO = Application("django", f"{SHOP}.wsgi:application", "/", f"{SHOP}.fill", DATABASE)
DJANGO_60 = Application(
    "django", f"{SHOP}.wsgi:application", "/", f"{SHOP}.fill", {**DATABASE, "CONN_MAX_AGE": "60"}
)
FLASK = Application(
    "flask",
    "bench.peers.legacy.flask_app:app",
    "/",
    "bench.peers.legacy.flask_app",
    {**DATABASE, "SQLALCHEMY_DATABASE_URI": "{sqlalchemy}"},
)
HTTPBIN = Application("httpbin", "httpbin:app", "/json")
KINTO = Application(
    "kinto",
    "bench.peers.legacy.kinto_app:app",
    "/v1/",
    "bench.peers.legacy.kinto_app",
    {"DATABASE_URL": "{sqlalchemy}"},
)
SIGNED_IN = {"Cookie": "sessionid=benchsession{client}"}
# The waits for statements are 7 % of these pages, in Python and gevent. Those of eight threads are
# 4 %, in the switches of the kernel: they wait in libpq.
STATEMENTS = "many statements: a greenlet waits for each in Python, a thread in libpq"
# The client's own user: one of another client's session would be somebody else.
ORDER, ADMIN = "Signed in as bench{client}, page", "<strong>bench{client}</strong>"
BASIC = {"Authorization": "Basic " + base64.b64encode(b"bench:bench").decode()}
API = "/api/2.0/mlflow/runs"
WORKS = (
    Work(
        "mlflow-runs", MLFLOW, f"{API}/create", '"run_id"',
        body=json.dumps({"experiment_id": "2", "start_time": 1, "run_name": "bench"}),
        explained=STATEMENTS,
    ),
    Work(
        "mlflow-search", MLFLOW, f"{API}/search", '"param4"',
        body=json.dumps({"experiment_ids": ["1"], "max_results": 10}),
        explained=STATEMENTS,
    ),
    Work("django-orders", DJANGO, "/orders/17", ORDER, SIGNED_IN, explained=STATEMENTS),
    Work("django-orders-60", DJANGO_60, "/orders/17", ORDER, SIGNED_IN),
    Work("django-admin-60", DJANGO_60, "/admin/shop/order/", ADMIN, SIGNED_IN),
    Work(
        "django-sleep-60", DJANGO_60, "/sleep", "slept", SIGNED_IN,
        waits=True, connections=CONNECTIONS,
    ),
    Work("flask-orders", FLASK, "/orders", '"Customer 0"'),
    Work("flask-nested", FLASK, "/nested", "42"),
    Work("flask-pool-sleep", FLASK, "/pool-sleep", "slept", waits=True, connections=15),
    # Each request makes Postgres fork: that is work, and the processor bounds it.
    Work("flask-connect-sleep", FLASK, "/connect-sleep", "slept"),
    Work("httpbin-json", HTTPBIN, "/json", "Sample Slide Show"),
    Work("httpbin-delay", HTTPBIN, "/delay/0.2", "/delay/0.2", waits=True),
    Work("kinto-records", KINTO, "/v1/buckets/bench/collections/orders/records", "N-019", BASIC),
)  # fmt: skip


def gthread(threads: int) -> str:
    """Return what gthread with *threads* is called."""
    return f"gthread-{threads}"


def server(
    who: str,
    application: Application,
    database_url: str,
    folder: Path,
    given: Mapping[str, str],
) -> Hosted:
    """
    Return the server *who* of *application*, to be entered.

    :param given: environment variables for ours.
    """
    worker: Sequence[str] = GREEN
    if who != OURS:
        worker = ("--worker-class", "gthread", "--threads", who.removeprefix("gthread-"))
    folder.mkdir(parents=True, exist_ok=True)
    return Hosted(
        application.name,
        [*PINNED, *worker, application.target],
        ready=application.ready,
        env={
            **application.environ(database_url, folder),
            **(given if who == OURS else {}),
        },
        log=folder / f"{application.name}-{who}.log",
        # Not the checkout: gunicorn would read its gunicorn.conf.py.
        cwd=folder,
    )
