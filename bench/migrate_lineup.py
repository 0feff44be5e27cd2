"""
The applications of ``bench.migrate``, unmodified, from the package index: how each is set up,
hosted and asked.

``{number}`` in a body is another number in each request, ``{run}`` in each round.
"""

import base64
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg2.extensions

from bench import legacy_environments
from bench.http_lineup import GREEN
from bench.legacy_lineup import PINNED, Hosted
from bench.report import OURS
from bench.servers import ROOT, ServerError

SYNC, GTHREAD, POOLED = "sync", "gthread-8", f"{OURS}, pooled"
SERVERS: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    SYNC: (("--worker-class", "sync"), {}),
    GTHREAD: (("--worker-class", "gthread", "--threads", "8"), {}),
    OURS: (GREEN, {}),
    POOLED: (GREEN, {"GREENLINE_POOL": "1"}),
}
JSON = {"Content-Type": "application/json"}
STORED = 50  # what is there to be read
SETUP_S = 300


@dataclass(frozen=True)
class Asked:
    """A GET of *path*, or with a *body* a POST; ``{NAME}`` in a header is one of the set-up's."""

    path: str
    marker: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None


@dataclass(frozen=True)
class Application:
    """
    An application, and what is asked of it.

    :param name: of its environment and its database.
    :param title: what the table calls it.
    :param arguments: of gunicorn, behind the worker class.
    :param set_up: makes tables and data; returns what the headers name.
    :param count: the statement that counts what :attr:`write` has stored.
    :param refused: statuses of its own that a write may have, by its documentation.
    """

    name: str
    title: str
    arguments: Sequence[str]
    ready: str
    set_up: Callable[["Site"], Mapping[str, str]]
    read: Asked
    write: Asked
    count: str
    env: Mapping[str, str] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Site:
    """An *application* with its database and a folder of its own."""

    application: Application
    url: str
    folder: Path

    @property
    def sqlalchemy_url(self) -> str:
        """The address with the driver: psycopg2 is not SQLAlchemy's own choice any more."""
        return self.url.replace("postgresql:", "postgresql+psycopg2:")

    @property
    def environ(self) -> dict[str, str]:
        """The variables of the application."""
        known = {"url": self.url, "sqlalchemy": self.sqlalchemy_url, "folder": str(self.folder)}
        filled = {name: value.format_map(known) for name, value in self.application.env.items()}
        return {"PYTHONPATH": str(ROOT), **filled}

    def server(self, who: str) -> Hosted:
        """Return the server *who*, to be entered."""
        worker, more = SERVERS[who]
        return Hosted(
            self.application.name,
            [*PINNED, *worker, *self.application.arguments],
            ready=self.application.ready,
            env={**self.environ, **more},
            log=self.folder / f"{who}.log",
            cwd=self.folder,
        )

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of its environment; raise ServerError when that fails."""
        done = subprocess.run(
            [str(legacy_environments.find(self.application.name) / "bin" / program), *arguments],
            env={**os.environ, **self.environ},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=SETUP_S,
        )
        if done.returncode:
            raise ServerError(f"{program} {arguments[0]}: {done.stderr.strip()[-3000:]}")

    def tell(self, requests: Sequence[tuple[str, str, object]], headers: Mapping[str, str]) -> None:
        """Have it store what *requests* name: a method, a path and a value."""
        with self.server(SYNC) as server:
            for method, path, value in requests:
                status, _, body = server.ask(method, path, {**JSON, **headers}, json.dumps(value))
                if status not in (200, 201):
                    raise ServerError(f"{method} {path}: {status} {body[:1000]!r}")


def basic(user: str, password: str) -> dict[str, str]:
    """Return the header that signs *user* in."""
    word = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {word}"}


def alert(resource: str, environment: str) -> dict[str, object]:
    """Return what alerta stores as one alert: another one for another resource."""
    return {
        "resource": resource,
        "event": "NodeDown",
        "environment": environment,
        "severity": "major",
        "service": ["Web"],
    }


def set_up_alerta(site: Site) -> Mapping[str, str]:
    """Fill its tables, which it makes when it starts."""
    alerts = [("POST", "/alert", alert(f"web{each}", "Production")) for each in range(STORED)]
    site.tell(alerts, {})
    return {}


def set_up_ihatemoney(site: Site) -> Mapping[str, str]:
    """Make two projects, and bills in one; its tables it makes when it starts."""
    config = f'SECRET_KEY = "bench"\nSQLALCHEMY_DATABASE_URI = "{site.sqlalchemy_url}"\n'
    config += "SESSION_COOKIE_SECURE = False\nACTIVATE_DEMO_PROJECT = False\n"
    (site.folder / "ihatemoney.cfg").write_text(config + "ALLOW_PUBLIC_PROJECT_CREATION = True\n")
    tokens = {}
    for name in ("trip", "log"):
        project = {
            "name": name, "id": name, "password": name, "contact_email": "a@example.com",
            "default_currency": "XXX",
        }  # fmt: skip
        known = basic(name, name)
        site.tell([("POST", "/api/projects", project)], {})
        site.tell([("POST", f"/api/projects/{name}/members", {"name": "Ann"})], known)
        with site.server(SYNC) as server:
            _, body = server.get(f"/api/projects/{name}/token", known)
            tokens[name] = json.loads(body)["token"]
    bills = [("POST", "/api/projects/trip/bills", bill(1, each)) for each in range(20)]
    site.tell(bills, {"Authorization": f"Bearer {tokens['trip']}"})
    return tokens


def bill(payer: int, number: object) -> dict[str, object]:
    """Return what ihatemoney stores as one bill."""
    return {
        "date": "2030-01-01",
        "what": f"Bread {number}",
        "payer": str(payer),
        "payed_for": [str(payer)],
        "amount": "12",
        "bill_type": "Expense",
    }


def set_up_kinto(site: Site) -> Mapping[str, str]:
    """Have its own commands make kinto.ini, the tables and a user; store records."""
    path = site.folder / "kinto.ini"
    backend = ("--backend", "postgresql", "--cache-backend", "postgresql")
    site.run("kinto", "init", "--ini", path.name, "--host", "127.0.0.1", *backend)
    text = path.read_text()
    old = "postgresql://postgres:postgres@localhost/postgres"
    if old not in text:
        raise ServerError(f"kinto.ini has no {old}")
    path.write_text(text.replace(old, site.sqlalchemy_url))
    site.run("kinto", "migrate", "--ini", path.name)
    site.run("kinto", "create-user", "--ini", path.name, "-u", "admin", "-p", "secret99")
    orders = "/v1/buckets/shop/collections/orders"
    known = basic("admin", "secret99")
    new: list[tuple[str, str, object]] = [
        ("PUT", path, {"data": {}})
        for path in ("/v1/buckets/shop", orders, "/v1/buckets/shop/collections/new")
    ]
    records = [
        ("PUT", f"{orders}/records/o{each}", {"data": {"number": f"N-{each:03}"}})
        for each in range(20)
    ]
    site.tell([*new, *records], known)
    return {}


def set_up_mlflow(site: Site) -> Mapping[str, str]:
    """Run the filling of bench.legacy."""
    site.run("python", "-m", "bench.peers.legacy.mlflow_fill")
    return {}


def set_up_pretix(site: Site) -> Mapping[str, str]:
    """Write its configuration, make its tables and an event."""
    data = site.folder / "data"
    data.mkdir()
    address = psycopg2.extensions.parse_dsn(site.url)
    lines = [
        "[pretix]", "instance_name=Bench", "url=http://127.0.0.1", f"datadir={data}",
        "plugins_default=", "[database]", "backend=postgresql", f"name={address['dbname']}",
        f"user={address['user']}", f"host={address['host']}", f"port={address['port']}",
    ]  # fmt: skip
    (site.folder / "pretix.cfg").write_text("\n".join(lines) + "\n")
    site.run("python", "-m", "bench.peers.legacy.pretix_fill")
    return {}


SIGNED_IN = basic("admin", "secret99")
TRIP, LOG = ({"Authorization": f"Bearer {{{name}}}"} for name in ("trip", "log"))
TOKEN = "bench" * 12
PRETIX = {"Authorization": f"Token {TOKEN}"}
MLFLOW_API = "/api/2.0/mlflow/runs"
FAIR = "/api/v1/organizers/bench/events/fair"
APPLICATIONS = (
    Application(
        "alerta",
        "alerta 9.1 (Flask; connects in each request)",
        ["alerta:create_app()"],
        "/management/healthcheck",
        set_up_alerta,
        Asked("/alerts?page-size=10&environment=Production", '"event": "NodeDown"'),
        Asked("/alert", body=json.dumps(alert("{run}-{number}", "Development"))),
        "select count(*) from alerts where environment = 'Development'",
        {"DATABASE_URL": "{url}"},
    ),
    Application(
        "ihatemoney",
        "ihatemoney 7.2 (Flask-SQLAlchemy)",
        ["ihatemoney.wsgi:application"],
        "/",
        set_up_ihatemoney,
        Asked("/api/projects/trip/bills", '"what": "Bread 3"', TRIP),
        Asked("/api/projects/log/bills", "", LOG, json.dumps(bill(2, "{number}"))),
        "select count(*) from bill where payer_id = 2",
        {"IHATEMONEY_SETTINGS_FILE_PATH": "{folder}/ihatemoney.cfg"},
    ),
    Application(
        "kinto",
        "kinto 26.5 (Pyramid, SQLAlchemy; `--paste kinto.ini`)",
        ["--paste", "kinto.ini"],
        "/v1/",
        set_up_kinto,
        Asked("/v1/buckets/shop/collections/orders/records?_limit=20", '"N-003"', SIGNED_IN),
        Asked("/v1/buckets/shop/collections/new/records", "", SIGNED_IN, '{"data": {"a": 1}}'),
        "select count(*) from objects where parent_id = '/buckets/shop/collections/new'"
        " and resource_name = 'record' and not deleted",
        # Two records of one millisecond: it asks the client to try again.
        refused=frozenset({"409"}),
    ),
    Application(
        "mlflow",
        "mlflow 3.17 (its tracking server: Flask, SQLAlchemy)",
        ["mlflow.server:app"],
        "/health",
        set_up_mlflow,
        Asked(
            f"{MLFLOW_API}/search",
            '"param4"',
            body=json.dumps({"experiment_ids": ["1"], "max_results": 10}),
        ),
        Asked(
            f"{MLFLOW_API}/create",
            '"run_id"',
            body=json.dumps({"experiment_id": "2", "start_time": 1, "run_name": "{number}"}),
        ),
        "select count(*) from runs where experiment_id = 2",
        {
            "_MLFLOW_SERVER_FILE_STORE": "{sqlalchemy}",
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "{folder}/artifacts",
            "_MLFLOW_SGI_NAME": "gunicorn",
        },
    ),
    Application(
        "pretix",
        "pretix 2026.8 (Django, CONN_MAX_AGE 120)",
        ["pretix.wsgi"],
        "/site.webmanifest",
        set_up_pretix,
        Asked(f"{FAIR}/items/?page_size=5", '"Ticket 1"', PRETIX),
        Asked(
            f"{FAIR}/categories/",
            "",
            PRETIX,
            json.dumps(
                {
                    "name": {"en": "{number}"},
                    "description": {"en": "-"},
                    "position": 1,
                    "is_addon": False,
                }
            ),
        ),
        "select count(*) from pretixbase_itemcategory",
        {"PRETIX_CONFIG_FILE": "{folder}/pretix.cfg", "PRETIX_TOKEN": TOKEN},
    ),
)
