"""
The image of the Dockerfile, built and run with a read-only root file system.

It takes minutes and root: ``GREENLINE_LONG_TESTS=1``. The databases are the tests' own, by proxies.
"""

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from embedded.mongo import Mongo
from embedded.postgres import Postgres
from tests.deploy.podman import (
    BASE,
    DEV_IMAGE,
    IMAGE,
    STOP_TIMEOUT_S,
    Container,
    build,
    container,
    inspect,
    podman,
    require,
    run,
)
from tests.helpers.load import Load
from tests.helpers.proxy import Proxy
from tests.helpers.support import CHECKOUT, Databases, open_folder, wait_until

MB = 1_000_000
DEFAULT = (
    "from greenline.budget.cgroup import cpu_limit, default_workers; "
    "print(cpu_limit(), default_workers())"
)
WORKERS = "import os; print(open('/proc/1/task/1/children').read())"
LIBPQ = "import psycopg2; print([l for l in open('/proc/self/maps') if 'libpq' in l][0])"


@dataclass(frozen=True)
class Reach:
    """The databases over TCP, and the proxies on the way."""

    databases: Databases
    postgres: Proxy
    mongo: Proxy

    def environ(self, database: str = "greenline") -> dict[str, str]:
        """Return the settings for the service on *database*."""
        url = f"postgresql://greenline@127.0.0.1:{self.postgres.port}/{database}"
        return {**self.databases.environ, "DATABASE_URL": url}


@pytest.fixture(scope="module")
def image() -> str:
    """The service's image."""
    require()
    build(IMAGE)
    return IMAGE


@pytest.fixture
def reach(databases: Databases, postgres: Postgres, mongo: Mongo) -> Iterator[Reach]:
    """The databases as a container reaches them."""
    with Proxy(postgres.socket) as to_postgres, Proxy(("127.0.0.1", mongo.port)) as to_mongo:
        url = f"mongodb://127.0.0.1:{to_mongo.port}/"
        yield Reach(Databases(databases.postgres, url), to_postgres, to_mongo)


def test_the_service_is_ready_in_a_read_only_container(image: str, reach: Reach) -> None:
    """Its first process is gunicorn, which is not root, and a large body needs no file."""
    began = time.monotonic()
    with container(image, environ=reach.environ()) as running:
        took_s = time.monotonic() - began
        first = running.execute("cat", "/proc/1/cmdline").split("\0")
        assert [Path(word).name for word in first[:2]] == ["python3", "gunicorn"]
        assert running.execute("stat", "--format=%u", "/proc/1").strip() == "10001"
        book = {"title": "x" * 900_000, "authors": ["a"], "genres": ["g"]}
        assert running.ask("POST", "/books", book).status == 422
        assert running.get("/books?limit=1").status == 200
        assert running.stop() == 0
    print(f"start: ready after {took_s:.1f} s")


def test_it_holds_what_the_service_needs_and_no_more(image: str) -> None:
    """There is no compiler, no pip and nothing that pip kept; libpq is the system's."""
    tools = "command -v gcc cc ld make pip pip3; ls -A"
    found = run(image, "sh", "-c", tools, environ={}).stdout.split()
    assert found == [".flaskenv", "app", "config", "greenline", "gunicorn.conf.py"]
    for python in ("/venv/bin/python3", "python3"):
        done = run(image, "sh", "-c", f"PATH=${{PATH#*:}} {python} -m pip", environ={})
        assert "No module named pip" in done.stderr
    as_root = ("--user=0",)
    kept = run(image, "find", "/", "-xdev", "-path", "*/.cache/*", environ={}, options=as_root)
    assert (kept.returncode, kept.stdout) == (0, "")
    assert re.search(r" /usr/lib/\S*/libpq", run(image, "python3", "-c", LIBPQ, environ={}).stdout)
    size, of_base = (inspect(each)["Size"] for each in (image, BASE))
    print(f"size: {size / MB:.0f} MB, of which {(size - of_base) / MB:.0f} MB are not the base's")
    assert size - of_base < 150 * MB


def test_its_user_is_a_number_that_is_not_root(image: str) -> None:
    """Kubernetes' runAsNonRoot looks at nothing else."""
    assert int(inspect(image)["Config"]["User"]) > 0


def test_the_commands_work_in_it(image: str, reach: Reach, empty_database: str) -> None:
    """The schema and the first key are made by containers, and the service asks for that key."""
    environ = {**reach.environ(Path(empty_database.partition("?")[0]).name), "AUTH": "on"}
    done = run(image, "flask", "db", "upgrade", environ=environ)
    assert done.returncode == 0, done.stderr
    made = run(image, "flask", "keys", "create", "--name=first", "--scopes=read", environ=environ)
    assert made.returncode == 0, made.stderr
    with container(image, environ=environ) as running:
        assert running.get("/books").status == 401
        key = {"Authorization": f"Bearer {made.stdout.strip()}"}
        assert running.get("/books", headers=key).status == 200


def test_it_is_healthy_while_a_database_is_down(image: str, reach: Reach) -> None:
    """A database's outage makes it unready, and no reason to replace it."""
    with container(image, environ=reach.environ()) as running:
        assert running.is_healthy()
        reach.postgres.refuse()
        wait_until(lambda: running.get("/readyz").status == 503, "it to notice")
        assert running.is_healthy()
        reach.postgres.pass_on()
        wait_until(running.is_ready, "it to be ready again")


def test_it_is_unhealthy_when_no_worker_answers(image: str) -> None:
    """The check itself can fail."""
    with container(image, "sleep", "60", environ={}, wait=False) as idle:
        wait_until(
            lambda: podman("exec", idle.name, "true", check=False).returncode == 0, "its start"
        )
        assert not idle.is_healthy()


@pytest.mark.parametrize(("cpus", "workers"), [("1", 1), ("0.5", 1), ("3.2", 3)])
def test_as_many_workers_as_cpus(image: str, cpus: str, workers: int) -> None:
    """The container's limit counts, and not the machine's cores."""
    done = run(image, "python3", "-c", DEFAULT, environ={}, options=(f"--cpus={cpus}",))
    if done.returncode and "cgroup" in done.stderr:
        pytest.skip(f"no CPU limits here: {done.stderr.splitlines()[-1]}")
    assert done.stdout.split() == [str(float(cpus)), str(workers)]


def test_a_stop_under_load_answers_every_request(image: str, reach: Reach) -> None:
    """SIGTERM: each connected client is answered, counted on both sides, and it ends with 0."""
    with container(image, environ={**reach.environ(), "WEB_CONCURRENCY": "2"}) as running:
        load = Load(("127.0.0.1", running.port), path="/books/1")
        wait_until(lambda: len(load.answered) > 2_000, "some load")
        before, began = len(load.answered), time.monotonic()
        assert running.stop() == 0
        took_s = time.monotonic() - began
        load.stop()
        served = re.findall(r'"GET /books/1\?(\d+) HTTP/1\.1" 200 ', running.log)
    print(
        f"SIGTERM under load: {len(load.answered)} answered, {len(load.answered) - before} of them "
        f"after it, {len(load.failures)} failed, {len(served)} served; it took {took_s:.1f} s"
    )
    assert load.failures == {}
    assert set(load.statuses) == {200}
    assert sorted(map(int, served)) == sorted(load.answered)
    assert took_s < STOP_TIMEOUT_S


def test_the_image_for_development_reloads(image: str, reach: Reach) -> None:
    """One worker, which serves what was changed on the disk."""
    build(DEV_IMAGE, CHECKOUT, "--target=dev")
    with open_folder() as folder:  # its user is another
        code = folder / "app"
        shutil.copytree(CHECKOUT / "app", code, ignore=shutil.ignore_patterns("__pycache__"))
        mounted = (f"--volume={code}:/service/app:ro",)
        environ = reach.environ()
        del environ["WEB_CONCURRENCY"]  # the image says how many
        with container(DEV_IMAGE, environ=environ, options=mounted) as running:
            assert len(running.execute("python3", "-c", WORKERS).split()) == 1
            changed = "lambda answer: answer.headers.set('X-Release', '2') or answer"
            with (code / "wsgi.py").open("a") as file:
                file.write(f"\napp.after_request({changed})\n")
            wait_until(lambda: _release(running) == "2", "the change")


def _release(running: Container) -> str | None:
    try:
        return running.get("/healthz").headers.get("X-Release")
    except OSError:
        return None
