"""Workers whose successors cannot boot: what is on the disk is broken, and nobody was asked."""

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.test_releases import Releases, all_serve, hang_up, serving
from tests.load import Load
from tests.support import wait_until

BROKEN = "def ("


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    """Nothing is written yet."""
    return Releases(tmp_path)


def test_a_successor_that_cannot_boot_ends_nobody_who_serves(releases: Releases) -> None:
    """A worker is killed while a broken release lies there; mended, it is taken by itself."""
    releases.write()
    with releases.served() as running:
        releases.write(BROKEN)
        victim, survivor = running.workers()
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: "Worker failed to boot. The others go on" in running.log, "the line")
        assert serving(running) == {survivor}
        releases.write()
        wait_until(lambda: all_serve(running), "two workers")
        assert survivor in running.workers()


def test_after_a_refused_release_nobody_is_recycled_into_it(releases: Releases) -> None:
    """max_requests has to wait for a release that can be loaded."""
    releases.write(more="max_requests = 300")
    with releases.served() as running:
        releases.write(BROKEN, more="max_requests = 300")
        hang_up(running)
        wait_until(lambda: "reload refused" in running.log, "the refusal")
        wait_until(lambda: len(running.workers()) == 2, "the end of the trial")
        old = set(running.workers())
        load = Load(("127.0.0.1", running.port), clients=10)
        wait_until(lambda: len(load.answered) > 1_500, "some load")
        assert set(running.workers()) == old
        releases.write(more="max_requests = 300")
        hang_up(running)
        told = running.log.count("Autorestarting")
        wait_until(lambda: running.log.count("Autorestarting") > told + 2, "recycling")
        load.stop()
        assert load.failures == {}
        assert set(load.statuses) == {200}


def test_a_service_of_which_no_worker_can_boot_ends(releases: Releases) -> None:
    """Nobody serves, and nobody did."""
    releases.write(BROKEN)
    running = releases.start()
    try:
        assert running.process.wait(timeout=20) != 0
    finally:
        running.stop()
    assert "The others go on" not in running.log
