"""A rolling update as Kubernetes does it, of pods with the settings of deploy/kubernetes."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import gevent
import pytest

from bench.backends import Backends, Highest
from bench.budget import refusals
from embedded.mongo import Mongo
from embedded.postgres import Postgres, temporary
from tests.deploy.kustomize import FOLDER
from tests.helpers.load import Load
from tests.helpers.support import (
    BIN,
    CHECKOUT,
    IS_LONG,
    Databases,
    Service,
    environ,
    free_port,
    run,
    wait_until,
)

REPLICAS, WORKERS = 3, 1
MAX_CONNECTIONS = 60
# Enough to use all of them.
PATH, CLIENTS = "/diagnostics/sleep?seconds=0.1", 150
# Longer than a start: the next pod is there before this one has ended.
LONG = "/diagnostics/sleep?seconds=20"
PRE_STOP_S = 1.0  # of 5: here the news travels at once
# A pod has shared memory of its own.
POD = ("unshare", "--mount", "/bin/sh", "-ec",
       'mount -t tmpfs -o size=16m tmpfs /dev/shm; exec "$@"', "sh")  # fmt: skip


class Balanced(Load):
    """Clients that connect to the pods that are in *ports* at the moment, in turn."""

    def __init__(self, ports: list[int], **options: int | str) -> None:
        self.ports = ports
        super().__init__(**options)  # type: ignore[arg-type]
        self._addresses = iter(self._turns())  # type: ignore[assignment]

    def _turns(self) -> Iterator[tuple[str, int]]:
        for turn in itertools.count():
            yield ("127.0.0.1", self.ports[turn % len(self.ports)])


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A Postgres with few connections."""
    with temporary(MAX_CONNECTIONS) as server:
        yield server


@pytest.fixture
def settings(server: Postgres, mongo: Mongo) -> dict[str, str]:
    """A pod's environment."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can give a pod shared memory of its own")
    databases = Databases(server.url, mongo.url)
    run(["flask", "db", "upgrade", "sample"], databases.environ)
    lines = (FOLDER / "settings.env").read_text().splitlines()
    env_file = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {
        **env_file,
        **databases.environ,
        "WEB_CONCURRENCY": str(WORKERS),
        "GREENLINE_DIAGNOSTICS": "1",
        "GREENLINE_OPS_BIND": "",  # the pods have one address here
    }


@contextmanager
def started(settings: dict[str, str], folder: Path) -> Iterator[Service]:
    """Run a pod; it is ready."""
    port = free_port()
    log = folder / f"{port}.log"
    gunicorn = [sys.executable, str(BIN / "gunicorn"), "-c", "gunicorn.conf.py", "app.wsgi:app"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*POD, *gunicorn], cwd=CHECKOUT, env=environ({**settings, "PORT": str(port)}),
            stdout=output, stderr=output,
        )  # fmt: skip
    pod = Service(process, port, log)
    try:
        wait_until(lambda: pod.is_ready() or process.poll() is not None, "a pod to be ready", 60)
        assert process.poll() is None, pod.log
        yield pod
    finally:
        pod.stop()


@pytest.mark.skipif(not IS_LONG, reason="it starts six pods")
def test_a_rollout_fails_no_request_and_keeps_within_the_connections(
    server: Postgres, settings: dict[str, str], tmp_path: Path
) -> None:
    """A pod that ends is not waited for, and its connections count as long as it has them."""
    with (
        ExitStack() as pods,
        closing(Backends(server.superuser_url)) as backends,
        Highest(backends) as highest,
    ):
        old = [pods.enter_context(started(settings, tmp_path)) for _ in range(REPLICAS)]
        load = Balanced([pod.port for pod in old], clients=CLIENTS, path=PATH)
        asked = []
        for pod in old:
            goes_on(load)
            new = pods.enter_context(started(settings, tmp_path))
            load.ports.append(new.port)
            load.ports.remove(pod.port)
            asked.append(gevent.spawn(pod.get, LONG))
            gevent.sleep(PRE_STOP_S)
            pod.process.send_signal(signal.SIGTERM)
        goes_on(load)
        for pod in old:
            assert pod.process.wait(timeout=60) == 0
        goes_on(load)
        load.stop()
        print(f"{REPLICAS} pods replaced: {dict(load.statuses)}, {load.failures}")
        print(f"refused: {load.refused}, at most {highest.seen} backends of {MAX_CONNECTIONS}")
    assert [each.get().status for each in asked] == [200] * REPLICAS
    assert (load.refused, load.failures) == (0, {})
    assert set(load.statuses) == {200}
    assert refusals(server) == 0


def goes_on(load: Load) -> None:
    """Wait until some more requests were answered."""
    enough = len(load.answered) + 200
    wait_until(lambda: len(load.answered) >= enough, "some load")
