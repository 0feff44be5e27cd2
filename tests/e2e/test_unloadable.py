"""Workers whose successors cannot boot: the release on the disk is broken, without a reload."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.releases import Releases, all_serve, hang_up, serving
from tests.helpers.load import Load
from tests.helpers.support import wait_until

BROKEN = "def ("
# A request for `held` is answered when there is the file `go`.
HELD = """
import os, pathlib, time
folder = pathlib.Path(__file__).parent
def app(environ, start_response):
    if environ["QUERY_STRING"] == "held":
        (folder / "held").touch()
        while not (folder / "go").exists():
            time.sleep(0.02)
    body = b"%d" % os.getpid()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"""


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    """Nothing is written yet."""
    return Releases(tmp_path)


def test_a_successor_that_cannot_boot_ends_no_worker_that_serves(releases: Releases) -> None:
    """A worker is killed while a broken release lies there; mended, it is taken by itself."""
    releases.write()
    with releases.served() as running:
        releases.write(BROKEN)
        victim, survivor = running.workers()
        os.kill(victim, signal.SIGKILL)
        wait_until(
            lambda: "Worker failed to boot. Workers still running: 1" in running.log, "the line"
        )
        assert serving(running) == {survivor}
        releases.write()
        wait_until(lambda: all_serve(running), "two workers")
        assert survivor in running.workers()


def test_after_a_refused_release_no_worker_is_recycled_into_it(releases: Releases) -> None:
    """max_requests has to wait for a release that can be loaded."""
    releases.write(more="max_requests = 300")
    with releases.served() as running:
        releases.write(BROKEN, more="max_requests = 300")
        hang_up(running)
        wait_until(lambda: "reload refused" in running.log, "the refusal")
        wait_until(lambda: len(running.workers()) == 2, "the end of the dry run")
        old = set(running.workers())
        load = Load(("127.0.0.1", running.port), clients=10)
        wait_until(lambda: len(load.answered) > 1_500, "some load")
        assert set(running.workers()) == old
        releases.write(more="max_requests = 300")
        hang_up(running)
        restarts = running.log.count("Autorestarting")
        wait_until(lambda: running.log.count("Autorestarting") > restarts + 2, "recycling")
        load.stop()
        assert load.failures == {}
        assert set(load.statuses) == {200}


def test_a_service_that_served_waits_for_a_release_that_boots(releases: Releases) -> None:
    """All its workers are killed; who asks meanwhile waits in the queue of the socket."""
    releases.write()
    with releases.served() as running:
        releases.write(BROKEN)
        for worker in running.workers():
            os.kill(worker, signal.SIGKILL)
        wait_until(
            lambda: "Worker failed to boot. Workers still running: 0" in running.log, "the line"
        )
        releases.write()
        assert running.get("/?1").status == 200


def test_a_stop_does_not_wait_for_a_reload(releases: Releases) -> None:
    """SIGTERM is heard while the old workers still have a request in progress."""
    releases.write(HELD)
    with releases.served() as running, ThreadPoolExecutor(1) as thread:
        slow = thread.submit(running.get, "/?held")
        wait_until((releases.folder / "held").exists, "the request")
        hang_up(running)
        # Not only the child that tries the release.
        wait_until(lambda: running.log.count("Booting worker") == 4, "new workers")
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Handling signal: term" in running.log, "the stop")
        assert not slow.done()
        (releases.folder / "go").touch()
        assert slow.result().status == 200


def test_a_service_of_which_no_worker_can_boot_ends(releases: Releases) -> None:
    """No worker has ever served."""
    releases.write(BROKEN)
    running = releases.start()
    try:
        assert running.process.wait(timeout=60) != 0
    finally:
        running.stop()
    assert "Workers still running" not in running.log
