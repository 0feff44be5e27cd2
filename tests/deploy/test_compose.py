"""
deploy/compose.yml: it is one, it keeps its promises, and it runs as far as images can be had.

1. podman-compose runs it on the host's network, with the service's own image.
2. nginx is Debian's; Postgres 18 is the embedded one, whose entrypoint ``stand_in/postgres.sh``
   repeats; MongoDB is SecantusDB, so that the making of the replica set is not run.
3. The test starts one after another, and waits for what ``depends_on`` names: on an old podman, and
   without systemd, podman-compose cannot.
"""

import importlib.util
import json
import subprocess
import sysconfig
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from embedded import cluster
from tests.deploy import podman as containers
from tests.deploy.behind import CONF, replaced
from tests.deploy.podman import BASE, ENVIRON, IMAGE, build, podman, require
from tests.helpers.support import BIN, CHECKOUT, Service, free_port, run, wait_until

FILE = CHECKOUT / "deploy/compose.yml"
STAND_IN = Path(__file__).with_name("stand_in")
NGINX = "localhost/greenline-test-nginx"
# What a merge would keep, and the host's network excludes.
NOT_ON_THE_HOST, RESET = {"networks", "ports", "hostname"}, "RESET"
KEY = ("flask", "keys", "create", "--name=first", "--scopes=read")


def services() -> dict[str, Any]:
    """Return the services of the file."""
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]
    return found


def test_it_fits_the_schema_of_compose_files() -> None:
    """The specification's own schema, which check-jsonschema brings along."""
    schema = ["--builtin-schema", "vendor.compose-spec"]
    run(["check-jsonschema", *schema, str(FILE)], {})


def test_what_needs_something_waits_until_it_is_well() -> None:
    """Databases, then the schema, then the service, then nginx."""
    wanted = {
        "nginx": {"service": "service_healthy"},
        "service": {
            "migrate": "service_completed_successfully",
            "postgres": "service_healthy",
            "mongodb": "service_healthy",
        },
        "migrate": {"postgres": "service_healthy"},
    }
    for name, service in services().items():
        needs = {key: one["condition"] for key, one in service.get("depends_on", {}).items()}
        assert needs == wanted.get(name, {}), name
    for name in ("postgres", "mongodb"):
        assert "healthcheck" in services()[name]


def test_the_service_may_take_the_time_to_stop() -> None:
    """Else it is killed at the moment at which gunicorn ends what is left."""
    any_app = "wsgiref.simple_server:demo_app"
    conf = ["gunicorn", "-c", "gunicorn.conf.py", "--print-config", any_app]
    urls = {"DATABASE_URL": "postgresql://h/d", "MONGODB_URI": "mongodb://h"}
    said = run(conf, urls).stdout
    (line,) = [line for line in said.splitlines() if line.startswith("graceful_timeout ")]
    grace_s = int(services()["service"]["stop_grace_period"].removesuffix("s"))
    assert grace_s >= int(line.split("=")[1]) + 5


def test_the_services_own_containers_write_nowhere_and_may_nothing() -> None:
    """Neither the service nor what changes the schema."""
    for name in ("service", "migrate"):
        service = services()[name]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


@dataclass(frozen=True)
class Project:
    """A project of podman-compose with a name of its own."""

    name: str
    files: tuple[Path, ...]
    password: str

    def compose(self, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
        """Run podman-compose."""
        files = [word for file in self.files for word in ("-f", str(file))]
        command = [str(BIN / "podman-compose"), "--in-pod=false", "-p", self.name, *files]
        environ = {**ENVIRON, "POSTGRES_PASSWORD": self.password, **more}
        return subprocess.run(
            [*command, *arguments], env=environ, capture_output=True, text=True, timeout=180
        )

    def done(self, *arguments: str) -> str:
        """Run podman-compose, which succeeds, and return what it said."""
        done = self.compose(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def container(self, service: str) -> str:
        """Return the name of the container of *service*."""
        label = f"--filter=label=com.docker.compose.service={service}"
        mine = f"--filter=label=io.podman.compose.project={self.name}"
        return podman("ps", "--all", label, mine, "--format={{.Names}}").stdout.strip()

    def state(self, service: str) -> dict[str, Any]:
        """Return what podman knows of the state of *service*."""
        found: dict[str, Any] = json.loads(podman("inspect", self.container(service)).stdout)[0]
        return found["State"]  # type: ignore[no-any-return]

    def environ(self, service: str) -> dict[str, str]:
        """Return the environment of *service*."""
        config = json.loads(podman("inspect", self.container(service)).stdout)[0]["Config"]
        return dict(each.split("=", 1) for each in config["Env"])

    def is_healthy(self, service: str) -> bool:
        """Ask once as its health check does."""
        name = self.container(service)
        return podman("healthcheck", "run", name, check=False).returncode == 0


@pytest.fixture
def project(tmp_path: Path) -> Iterator[tuple[Project, Service]]:
    """The file with the stand-ins, and how to ask its nginx; nothing of it is left."""
    require()
    build(IMAGE)
    build(NGINX, STAND_IN / "nginx")
    port = free_port()
    conf = tmp_path / "nginx.conf"
    listen = f"listen 127.0.0.1:{port} backlog=2048;"
    conf.write_text(replaced(CONF.read_text(), "listen 80 backlog=2048;", listen))
    override = tmp_path / "override.yml"
    override.write_text(overridden(conf))
    one = Project(f"greenline-test-{uuid.uuid4().hex[:8]}", (FILE, override), uuid.uuid4().hex)
    process = subprocess.Popen(["sleep", "infinity"])
    try:
        yield one, Service(process, port, conf)
    finally:
        process.kill()
        process.wait()
        one.compose("down", "--volumes", "--timeout=40")


def overridden(conf: Path) -> str:
    """Return what is other here than in the file: addresses, and images that can be had."""
    postgres, mongo, health = free_port(), free_port(), free_port()
    limits = {"ulimits": {"nofile": 20_000, "nproc": 4_000}}
    host = {**limits, "network_mode": "host"}
    mine = {
        "image": IMAGE,
        "environment": {
            "DATABASE_URL": f"postgresql://greenline@127.0.0.1:{postgres}/greenline",
            "MONGODB_URI": f"mongodb://127.0.0.1:{mongo}/greenline",
            "PORT": str(health),
        },
    }
    spec = importlib.util.find_spec(cluster.PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    command = [
        word.replace("127.0.0.1:8000", f"127.0.0.1:{health}")
        for word in services()["service"]["command"]
    ]
    document: dict[str, dict[str, Any]] = {
        "nginx": {**host, "image": NGINX, "volumes": [f"{conf}:/etc/nginx/nginx.conf:ro"]},
        "service": {**host, **mine, "command": command},
        "migrate": {**host, **mine},
        "postgres": {
            **host,
            "image": BASE,
            "entrypoint": "/postgres.sh",
            "environment": {
                "PATH": f"/pg/{package.name}/pginstall18/bin:/usr/bin:/bin",
                "PGHOST": "/var/lib/postgresql",
                "PGPORT": str(postgres),
            },
            "volumes": [
                f"{package}:/pg/{package.name}:ro",
                f"{package}.libs:/pg/{package.name}.libs:ro",
                f"{STAND_IN}/postgres.sh:/postgres.sh:ro",
            ],
        },
        "mongodb": {
            **host,
            "image": BASE,
            "command": ["python3", "-m", "secantus", "--port", str(mongo)],
            "working_dir": "/data/db",
            "environment": {"PYTHONPATH": "/packages"},
            "volumes": [f"{sysconfig.get_path('platlib')}:/packages:ro"],
        },
    }
    for name, service in services().items():
        document[name].update(dict.fromkeys(NOT_ON_THE_HOST & service.keys(), RESET))
    # What is to be dropped has a tag of its own.
    return yaml.safe_dump({"services": document}).replace(RESET, "!reset null")


def test_without_a_password_it_says_where_to_put_one(project: tuple[Project, Service]) -> None:
    """There is none in the file, and no start without one."""
    done = project[0].compose("config", POSTGRES_PASSWORD="")
    assert done.returncode != 0
    assert "POSTGRES_PASSWORD" in done.stderr
    assert "put it into the file .env" in done.stderr


def test_it_runs_as_its_head_says(project: tuple[Project, Service]) -> None:
    """The first key, then all of it: nginx asks for that key, and a stop ends with status 0."""
    one, front = project
    one.done("up", "--no-start", "--no-deps")
    one.done("start", "postgres", "mongodb")
    wait_until(lambda: one.is_healthy("postgres"), "Postgres")
    one.done("start", "migrate")
    wait_until(lambda: one.state("migrate")["Status"] == "exited", "the schema")
    assert one.state("migrate")["ExitCode"] == 0
    key = containers.run(IMAGE, *KEY, environ=one.environ("service")).stdout.strip()
    one.done("start", "service")
    wait_until(lambda: one.is_healthy("service"), "the service")
    one.done("start", "nginx")
    wait_until(front.is_ready, "the service behind nginx")
    assert front.get("/books").status == 401
    assert front.get("/books", headers={"Authorization": f"Bearer {key}"}).status == 200
    role = "select rolsuper from pg_roles where rolname = 'greenline'"
    asked = podman("exec", one.container("postgres"), "psql", "-U", "postgres", "-Atc", role)
    assert asked.stdout.strip() == "f"
    one.done("stop", "service")
    assert one.state("service")["ExitCode"] == 0
    assert front.get("/books").status == 502
