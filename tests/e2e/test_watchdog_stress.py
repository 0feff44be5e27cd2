"""
The watchdog has its limit at two milliseconds, on workers that collect garbage all the time.

``GREENLINE_LONG_TESTS=1`` does it for half an hour, with each Python of the machine that can have
the packages, all of them at once.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from embedded.postgres import temporary
from tests.e2e.hosting import NO_CONFIG, WORKER
from tests.helpers.load import Load
from tests.helpers.support import CHECKOUT, IS_LONG, Service, service, wait_until

STRESS_S, CLIENTS = (30 * 60.0, 200) if IS_LONG else (2.0, 60)
LIMIT_S = STRESS_S + 15 * 60  # with the environments of other Pythons
PACKAGES = ("gevent", "gunicorn", "gunicorn_h1c", "msgspec", "packaging", "psycopg2-binary")
EARLIEST = (3, 11)
VERSION = "import sys; print(*sys.version_info[:3], sep='.')"


def pythons(folder: Path) -> dict[str, str]:
    """Return the paths of this Python and, in the long form, of the machine's others by version."""
    found = {_version(sys.executable): sys.executable}
    if IS_LONG:
        others = [*Path("/usr/bin").glob("python3.[0-9]*[0-9]")]
        others += Path.home().glob(".pyenv/versions/3.*/bin/python")
        for other in others:
            version = _version(str(other))
            if version in found or tuple(map(int, version.split(".")[:2])) < EARLIEST:
                continue
            if environment := _environment(str(other), folder / version):
                found[version] = environment
    return found


def _version(python: str) -> str:
    return subprocess.run([python, "-c", VERSION], capture_output=True, text=True).stdout.strip()


def _environment(python: str, folder: Path) -> str | None:
    """Return a Python with the worker's packages, None where they cannot be had."""
    pins = [
        line
        for name in ("requirements-common.txt", "requirements.txt")
        for line in (CHECKOUT / name).read_text().splitlines()
        if line.partition("==")[0] in PACKAGES
    ]
    assert len(pins) == len(PACKAGES)
    made = str(folder / "bin" / "python")
    for command in (
        [python, "-m", "venv", str(folder)],
        [made, "-m", "pip", "install", "--quiet", *pins],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"left out: {python}: {done.stdout}{done.stderr}")
            return None
    return made


@contextmanager
def collecting(python: str, database: str) -> Iterator[Service]:
    """Run tests/e2e/collecting.py with the watchdog at 2 ms."""
    more = {"GREENLINE_BLOCKED_HUB_MS": "2", "DATABASE_URL": database}
    with service(
        more, *WORKER, target="tests.e2e.collecting:app", config=NO_CONFIG, executable=python,
        wait=False,
    ) as running:  # fmt: skip
        wait_until(running.is_alive, f"the worker of {python}")
        yield running


def assert_names_what_blocks(one: Service) -> None:
    """Block the hub until an entry has the function that does."""
    length = len(one.log)
    wait_until(lambda: one.get("/block") and "in block_the_hub" in one.log[length:], "its stack")


@pytest.mark.timeout(LIMIT_S)
def test_watching_never_ends_the_worker(tmp_path: Path) -> None:
    """No crash, no watchdog that ended, and the function that blocks is named."""
    with ExitStack() as stack:
        server = stack.enter_context(temporary(max_connections=400))
        running = {
            version: stack.enter_context(collecting(python, server.url))
            for version, python in pythons(tmp_path).items()
        }
        before = {version: one.workers() for version, one in running.items()}
        loads = {
            (version, path): Load(("127.0.0.1", one.port), clients=clients, path=path)
            for version, one in running.items()
            for path, clients in (
                ("/connect?", CLIENTS // 4), ("/?", CLIENTS * 3 // 4 - 1), ("/block?", 1)
            )
        }  # fmt: skip
        end = time.monotonic() + STRESS_S
        while time.monotonic() < end:
            time.sleep(1)
            for version, one in running.items():
                assert one.workers() == before[version], f"{version}: {one.log}"
        for load in loads.values():
            load.stop()
        for version, one in running.items():
            assert one.workers() == before[version], f"{version}: {one.log}"
            for ended in ("Unhandled exception in thread", "the watchdog's thread ended"):
                assert ended not in one.log, f"{version}: {one.log}"
            # The watchdog is alive at the end.
            assert_names_what_blocks(one)
        for (version, path), load in loads.items():
            print(version, path, load.statuses, load.failures)
            # A client may give up on a busy machine: its time says nothing of the watchdog.
            cut = [why for why in load.failures.values() if "timed out" not in why]
            assert not cut, f"{version} {path}"
            log = running[version].log
            why = log[log.find("Error handling request") :][:5_000]
            assert set(load.statuses) == {200}, f"{version} {path}: {why}"
