"""deploy/systemd: the units as systemd reads them, and as it runs them, hardened and under load."""

import errno
import http.client
import os
import re
import runpy
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from embedded import debian
from greenline.errors import ConfigError
from tests.deploy.systemd import UNITS, Systemd, Unavailable, booted, missing
from tests.helpers.forms import in_the_long_form
from tests.helpers.front import Front, behind_proxies
from tests.helpers.load import Load
from tests.helpers.support import CHECKOUT, IS_LONG, START_LIMIT_S, Databases, wait_until

RESTARTS, RELOADS = (10, 20) if IS_LONG else (2, 2)
SERVICE, SOCKET = "greenline.service", "greenline.socket"
TARGETS = ("sysinit", "basic", "sockets", "shutdown", "multi-user", "network-online")
# Of 10.0; what is left is the network, its sockets, and the files of the system.
MOST_EXPOSURE = 1.5
BROKEN = "def ("
CONNECT = """
import socket, sys
sys.exit(socket.socket(socket.AF_UNIX).connect_ex(sys.argv[1]))
"""


@dataclass
class Analyst:
    """The program systemd-analyze, and the folder in which it lies as it would in /."""

    root: Path
    env: dict[str, str]

    def target(self, name: str) -> Path:
        """Return the file of one of systemd's own targets."""
        places = [self.root / lib / "systemd/system" for lib in ("lib", "usr/lib")]
        return next(place / f"{name}.target" for place in places if place.exists())

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run it."""
        command = [str(self.root / "usr/bin/systemd-analyze"), *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def analyst() -> Analyst:
    """The installed one, else Debian's, unpacked."""
    if shutil.which("systemd-analyze", path="/usr/bin") is not None:
        return Analyst(Path("/"), dict(os.environ))
    try:
        folder = debian.unpacked("systemd")
    except ConfigError as error:
        pytest.skip(str(error))
    return Analyst(folder, debian.environment(folder))


@pytest.fixture(scope="module")
def front(databases: Databases) -> Iterator[Front]:
    """The databases over TCP: a service with a /tmp of its own does not see their sockets."""
    with behind_proxies(databases) as front:
        yield front


@pytest.fixture(scope="module")
def system(front: Front, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Systemd]:
    """A systemd that serves, as the head of greenline.service says."""
    if why := missing():
        pytest.skip(why)
    try:
        # By name: a hardened service has to resolve names as well.
        environ = {
            name: value.replace("127.0.0.1", "localhost") for name, value in front.environ.items()
        }
        # The other host is the service of other tests, which keeps its connections: without a
        # part for it both would have all of the server's, and `flask db upgrade` none.
        more = {**environ, "WEB_CONCURRENCY": "2", "GREENLINE_SURGE_HOSTS": "1"}
        with booted(more, tmp_path_factory.mktemp("systemd")) as system:
            started = system.control("start", SOCKET, SERVICE)
            assert started.returncode == 0, system.control("status", SERVICE).stdout + system.log
            wait_until(lambda: status(system) == 200, "the service to be ready")
            yield system
    except Unavailable as error:
        pytest.skip(f"no systemd can be run here: {error}")


def status(system: Systemd, path: str = "/readyz") -> int:
    """Ask over the unit's socket; 0 if no process answers."""
    connection = http.client.HTTPConnection("greenline")
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.settimeout(40)
        connection.sock.connect(str(system.socket))
        connection.request("GET", path, headers={"Connection": "close"})
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def loaded(load: Load) -> None:
    """Wait for some hundred answers more."""
    before = len(load.answered)
    wait_until(lambda: len(load.answered) > before + 300, "some load")


def test_systemd_finds_no_fault_with_the_units(analyst: Analyst, tmp_path: Path) -> None:
    """Faults are what it does not know, and programs that are not there."""
    units = tmp_path / "etc/systemd/system"
    shutil.copytree(UNITS, units)
    for name in ("opt/greenline/.venv/bin/flask", "opt/greenline/.venv/bin/gunicorn", "bin/kill"):
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.touch(0o755)
    for name in TARGETS:
        shutil.copy(analyst.target(name), units)
    done = analyst.run("verify", f"--root={tmp_path}", "--man=no", SERVICE, SOCKET)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "greenline" in line] == []


def test_the_service_is_hardened(analyst: Analyst) -> None:
    """systemd's own measure of what it may do."""
    done = analyst.run("security", "--offline=true", "--no-pager", str(UNITS / SERVICE))
    exposure = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert exposure is not None, done.stderr
    assert float(exposure[1]) <= MOST_EXPOSURE, done.stdout


def test_a_stop_has_more_time_than_gunicorn_takes(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else systemd would kill requests that may still end."""
    for name, value in databases.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(CHECKOUT)
    graceful_s = runpy.run_path("gunicorn.conf.py")["graceful_timeout"]
    stop = re.search(r"^TimeoutStopSec=(\d+)$", (UNITS / SERVICE).read_text(), re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) > graceful_s


def test_a_restart_refuses_and_loses_no_client(system: Systemd) -> None:
    """systemctl restart, again and again under load."""
    load = Load(str(system.socket), path="/books/1")
    arbiters = set()
    for _ in range(RESTARTS):
        loaded(load)
        done = system.control("restart", SERVICE)
        assert done.returncode == 0, done.stderr
        arbiters.add(system.property_of(SERVICE, "MainPID"))
    loaded(load)
    load.stop()
    print(f"{RESTARTS} restarts: {dict(load.statuses)}, refused {load.refused}, {load.failures}")
    assert len(arbiters) == RESTARTS
    assert (load.refused, load.failures) == (0, {})
    assert set(load.statuses) == {200}


def test_a_reload_takes_the_new_release_and_no_client_waits(system: Systemd) -> None:
    """systemctl reload: the arbiter stays, the workers are new, the schema is migrated."""
    arbiter = system.property_of(SERVICE, "MainPID")
    booted_before = system.log.count("Booting worker")
    load = Load(str(system.socket), path="/books/1")
    for done in range(1, RELOADS + 1):
        loaded(load)
        assert system.control("reload", SERVICE).returncode == 0, system.log[-3000:]
        workers = booted_before + 2 * done
        # The release is loaded twice: in a process of its own first, then in the workers.
        wait_until(
            lambda: system.log.count("Booting worker") == workers,  # noqa: B023
            "new workers",
            START_LIMIT_S,
        )
    loaded(load)
    load.stop()
    print(f"{RELOADS} reloads: {dict(load.statuses)}, refused {load.refused}, {load.failures}")
    assert (load.refused, load.failures) == (0, {})
    assert set(load.statuses) == {200}
    assert system.property_of(SERVICE, "MainPID") == arbiter
    assert system.log.count("schema: up to date") >= RELOADS


@in_the_long_form
@pytest.mark.parametrize("broken", ["app/wsgi.py", "gunicorn.conf.py"])
def test_a_broken_release_is_refused_by_a_reload(system: Systemd, broken: str) -> None:
    """The old code goes on serving; the mended one is taken."""
    file = system.code / broken
    good = file.read_text()
    load = Load(str(system.socket), path="/books/1")
    refused = system.log.count("reload refused")
    file.write_text(BROKEN)
    try:
        system.control("reload", SERVICE)
        wait_until(lambda: system.log.count("reload refused") == refused + 1, "the refusal")
        loaded(load)
    finally:
        file.write_text(good)
    load.stop()
    assert (load.refused, load.failures) == (0, {})
    assert set(load.statuses) == {200}
    assert system.property_of(SERVICE, "ActiveState") == "active"


@in_the_long_form
def test_a_reload_is_refused_by_a_schema_that_cannot_be_brought_up_to_date(
    system: Systemd, front: Front
) -> None:
    """The command says so, and nothing is reloaded."""
    before = system.log.count("Booting worker")
    front.postgres.refuse()
    try:
        assert system.control("reload", SERVICE).returncode != 0
    finally:
        front.pass_on()
    assert system.property_of(SERVICE, "ActiveState") == "active"
    wait_until(lambda: status(system) == 200, "the service to be ready again")
    assert system.log.count("Booting worker") == before


@in_the_long_form
def test_a_connection_starts_the_stopped_service(system: Systemd) -> None:
    """The first one waits for it; what the workers share is still there."""
    assert system.control("stop", SERVICE).returncode == 0
    assert system.property_of(SERVICE, "ActiveState") == "inactive"
    shared = [each.name for each in (system.root / "dev/shm").iterdir()]
    assert any(name.startswith("greenline-") for name in shared)
    assert status(system, "/healthz") == 200
    assert system.property_of(SERVICE, "ActiveState") == "active"


def test_an_arbiter_that_is_killed_is_followed_by_another(system: Systemd) -> None:
    """A later request waits for it, and none is refused."""
    wait_until(lambda: status(system) == 200, "the service to be ready")
    arbiter = system.property_of(SERVICE, "MainPID")
    assert system.control("kill", "--signal=KILL", "--kill-who=main", SERVICE).returncode == 0
    wait_until(lambda: system.property_of(SERVICE, "MainPID") not in (arbiter, "0"), "another")
    assert status(system, "/healthz") == 200


@in_the_long_form
def test_a_service_that_cannot_start_leaves_the_socket_open(system: Systemd) -> None:
    """However often it is tried; who waits there is answered in the end."""
    programs = system.code / ".venv/bin"
    away = programs.rename(programs.with_name("away"))
    try:
        for _ in range(8):
            assert system.control("restart", SERVICE).returncode != 0
    finally:
        away.rename(programs)
    assert status(system, "/healthz") == 200


@in_the_long_form
def test_without_postgres_it_starts_and_says_that_it_is_not_ready(
    system: Systemd, front: Front
) -> None:
    """It becomes ready when Postgres is back, without another start."""
    front.postgres.refuse()
    try:
        assert system.control("restart", SERVICE).returncode == 0
        assert (status(system, "/healthz"), status(system)) == (200, 503)
        arbiter = system.property_of(SERVICE, "MainPID")
    finally:
        front.pass_on()
    wait_until(lambda: status(system) == 200, "the service to be ready")
    assert system.property_of(SERVICE, "MainPID") == arbiter


def test_only_nginx_may_connect(system: Systemd) -> None:
    """Others on the machine could say that they are any client."""

    def connect(user: str) -> int:
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        python = ["/opt/greenline/.venv/bin/python", "-c", CONNECT, "/run/greenline/http.sock"]
        return system.run(*become, *python).returncode

    assert connect("www-data") == connect("greenline") == 0
    assert connect("65534") == errno.EACCES


def test_what_the_service_may_not_do_it_cannot(system: Systemd) -> None:
    """Its processes have no capabilities, no new privileges, and a filter of system calls."""

    def arbiter_and_workers() -> list[int]:
        # One worker may answer before the other one is there.
        return found if len(found := system.processes(SERVICE)) == 3 else []

    for pid in wait_until(arbiter_and_workers, "the arbiter and its workers"):
        text = Path(f"/proc/{pid}/status").read_text()
        status = dict(re.findall(r"^(\w+):\s+(.*)$", text, re.MULTILINE))
        assert int(status["CapBnd"], 16) == int(status["CapEff"], 16) == 0
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
