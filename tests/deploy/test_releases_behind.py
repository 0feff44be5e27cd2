"""
Releases behind nginx under load: reloads, upgrades, recycling, and what cannot be loaded.

Whenever workers get the signal to stop, nginx is stopped for a moment: the requests that wait
meanwhile go over connections that a worker must not have closed.

``GREENLINE_LONG_TESTS=1`` does it with the numbers of deploy/, twenty reloads and five upgrades.
"""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gevent
import pytest

from tests.deploy.traffic import (
    IS_LONG,
    KINDS,
    SHORT_KEEPALIVE,
    SHORT_KEEPALIVE_OF_OURS,
    Deployed,
    Traffic,
    deployed,
    held_up,
)
from tests.helpers.forms import in_the_long_form, some
from tests.helpers.processes import children, lives, pid_in
from tests.helpers.support import CHECKOUT, Databases, wait_until

RELOADS, UPGRADES, RECYCLED = (20, 5, 20) if IS_LONG else (3, 1, 2)
KEEPALIVE = () if IS_LONG else SHORT_KEEPALIVE_OF_OURS
CHANGES = {} if IS_LONG else SHORT_KEEPALIVE
HELD_UP_S = 0.3
CODE = ("app", "config", "greenline", "gunicorn.conf.py")
HEALTHZ = '{"status": "ok"}'

over_tcp_at_least = pytest.mark.parametrize("kind", some(KINDS[::-1]))
over_unix_at_least = pytest.mark.parametrize("kind", some(KINDS))


@over_tcp_at_least
def test_reloads_and_upgrades_lose_nothing(kind: str, databases: Databases) -> None:
    """HUP replaces the workers, USR2 and TERM the arbiter: nothing fails or is asked twice."""
    with deployed(kind, databases, *KEEPALIVE, changes=CHANGES) as place:
        running = place.running
        with Traffic(place, databases) as traffic:
            for _ in range(RELOADS):
                reload(place, traffic)
            with successors_stopped(place):
                arbiter = running.process.pid
                for _ in range(UPGRADES):
                    arbiter = upgraded(place, traffic, arbiter)
                traffic.stop()
                traffic.assert_nothing_lost()
        assert not place.socket.exists()
        assert "reload refused" not in running.log


def reload(place: Deployed, traffic: Traffic) -> None:
    """Return when all workers are new, and each has answered."""
    running = place.running
    old = set(running.workers())
    os.kill(running.process.pid, signal.SIGHUP)
    wait_until(lambda: len(set(running.workers()) - old) >= 2, "new workers")
    with held_up(place.front):
        gevent.sleep(HELD_UP_S)
    wait_until(lambda: not old & set(running.workers()), "the end of the old workers")
    traffic.await_workers(lambda: set(running.workers()))
    traffic.await_some()


@contextmanager
def successors_stopped(place: Deployed) -> Iterator[None]:
    """Stop at the end the arbiters that are not children of the tests."""
    try:
        yield
    finally:
        for file in (place.pid_file, place.pid_file.with_name("pid.2")):
            arbiter = pid_in(file)
            if arbiter is not None and arbiter != place.running.process.pid:
                os.kill(arbiter, signal.SIGTERM)
                wait_until(lambda: not lives(arbiter), "the arbiter's end")  # noqa: B023


def upgraded(place: Deployed, traffic: Traffic, arbiter: int) -> int:
    """Return the next arbiter when only its workers are left, and each has answered."""
    os.kill(arbiter, signal.SIGUSR2)
    successor = wait_until(lambda: pid_in(place.pid_file.with_name("pid.2")), "a new arbiter")
    wait_until(lambda: len(children(successor)) == 2, "its workers")
    traffic.await_workers(lambda: set(children(successor)))
    os.kill(arbiter, signal.SIGTERM)
    with held_up(place.front):
        gevent.sleep(HELD_UP_S)
    wait_until(lambda: not lives(arbiter), "the old arbiter's end")
    wait_until(lambda: pid_in(place.pid_file) == successor, "its promotion")
    assert place.socket.is_socket()
    traffic.await_some()
    return successor


@in_the_long_form
@over_unix_at_least
def test_recycled_workers_lose_nothing(kind: str, databases: Databases) -> None:
    """max_requests replaces a worker after some hundred requests, again and again."""
    recycling = ("--max-requests", "150", "--max-requests-jitter", "100")
    with deployed(kind, databases, *recycling, *KEEPALIVE, changes=CHANGES) as place:
        log = place.running.log_file
        with Traffic(place, databases) as traffic:
            wait_until(lambda: log.read_text().count("Autorestarting") >= RECYCLED, "it", 300)
            traffic.await_some()
            traffic.stop()
            traffic.assert_nothing_lost()


def broken(name: str, more: str) -> Callable[[Path], None]:
    """Return what puts *more* at the end of a file of a copy of the code."""

    def edit(copy: Path) -> None:
        with (copy / name).open("a") as file:
            file.write(f"\n{more}\n")

    return edit


BROKEN = {
    "SyntaxError": broken("app/api/ops.py", "def ("),
    "REQUEST_TIMEOUT: 'soon'": broken("gunicorn.conf.py", "raw_env = ['REQUEST_TIMEOUT=soon']"),
}
MORE_BROKEN = {
    "a broken release": broken("app/factory.py", "raise RuntimeError('a broken release')"),
    "No module named 'not_installed'": broken("app/store/books.py", "import not_installed"),
    "no configuration": broken("gunicorn.conf.py", "raise ValueError('no configuration')"),
}


@in_the_long_form
@over_unix_at_least
def test_a_broken_release_is_refused(kind: str, databases: Databases, tmp_path: Path) -> None:
    """The old code goes on serving, and no request fails; a good release is taken then."""
    copy, good = tmp_path / "code", tmp_path / "good"
    for folder in (copy, good):
        copy_code(CHECKOUT, folder)
    with deployed(
        kind, databases, *KEEPALIVE, changes=CHANGES, environ={"PYTHONPATH": str(copy)},
        cwd=copy, python=("-B",),
    ) as place:  # fmt: skip
        running = place.running
        releases = {**BROKEN, **(MORE_BROKEN if IS_LONG else {})}
        with Traffic(place, databases) as traffic:
            traffic.await_workers(lambda: set(running.workers()))
            old = set(running.workers())
            for refused, (why, edit) in enumerate(releases.items(), 1):
                edit(copy)
                running.process.send_signal(signal.SIGHUP)
                wait_until(lambda: running.log.count("reload refused") == refused, why)  # noqa: B023
                assert why in running.log
                traffic.await_some()
                assert set(running.workers()) == old
                copy_code(good, copy)
            ops = copy / "app/api/ops.py"
            ops.write_text(ops.read_text().replace(HEALTHZ, '{"status": "new"}'))
            reload(place, traffic)
            assert running.get("/healthz").json == {"status": "new"}
            traffic.stop()
            traffic.assert_nothing_lost()


def copy_code(source: Path, target: Path) -> None:
    """Copy what a release is of."""
    for name in CODE:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, dirs_exist_ok=True)
        else:
            target.mkdir(exist_ok=True)
            shutil.copy(source / name, target / name)
