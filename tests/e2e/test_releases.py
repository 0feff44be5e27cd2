"""New releases by HUP and USR2: the bad ones are refused, and no client waits for the slow ones."""

import os
import signal
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.releases import GOOD, Releases, all_serve, hang_up, serving
from tests.helpers.forms import in_the_long_form
from tests.helpers.load import Load
from tests.helpers.processes import children
from tests.helpers.support import HANG_S, START_LIMIT_S, free_port, wait_until

# The first process to import it waits, until there is the file `go`.
SLOW = """
import os, pathlib, time
folder = pathlib.Path(__file__).parent
try:
    with open(folder / "loading", "x") as file:
        file.write(str(os.getpid()))
except FileExistsError:
    pass
else:
    while not (folder / "go").exists():
        time.sleep(0.02)
from tests.e2e.counting import app
"""
# Each request waits for the SIGTERM of its worker.
WAITING = """
import os, time
from greenline.worker.arbiter import is_stopping
worker = None
def app(environ, start_response):
    if environ["QUERY_STRING"] == "wait":
        with open(os.environ["COUNTING"], "a") as file:
            file.write(f"{os.getpid()}\\n")
        while worker.alive:
            time.sleep(0.02)
    body = f"{os.getpid()} {is_stopping()}".encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"""
KEEPS_WORKER = """
says_ready = post_worker_init
def post_worker_init(worker):
    import release
    release.worker = worker
    says_ready(worker)
"""


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    """Nothing is written yet."""
    return Releases(tmp_path)


def loading(releases: Releases) -> int:
    """Return the process that tries the slow release."""

    def pid() -> int:
        file = releases.folder / "loading"
        return int((file.exists() and file.read_text()) or 0)

    return wait_until(pid, "the dry run")


def lives(pid: int) -> bool:
    """Return whether there is such a process."""
    return Path(f"/proc/{pid}").exists()


def test_a_slow_release_holds_up_neither_a_killed_worker_nor_itself(releases: Releases) -> None:
    """While it loads, a worker that was killed has a successor; then it is taken."""
    releases.write()
    with releases.served() as running:
        old = set(running.workers())
        releases.write(SLOW)
        hang_up(running)
        dry_run = loading(releases)
        victim = min(old)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(serving(running) - old) == 1, "its successor to answer")
        assert lives(dry_run)
        before = set(running.workers())
        (releases.folder / "go").touch()
        wait_until(lambda: not before & set(running.workers()), "the slow release")
        wait_until(lambda: all_serve(running), "two workers")


def test_a_slow_release_does_not_hold_up_a_stop(releases: Releases) -> None:
    """The arbiter ends, and the dry run with it."""
    releases.write()
    with releases.served() as running:
        releases.write(SLOW)
        hang_up(running)
        dry_run = loading(releases)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(timeout=HANG_S) == 0
        assert not lives(dry_run)


def test_another_release_takes_the_place_of_one_that_loads(releases: Releases) -> None:
    """A second HUP ends the first dry run."""
    releases.write()
    with releases.served() as running:
        old = set(running.workers())
        releases.write(SLOW)
        hang_up(running)
        dry_run = loading(releases)
        releases.write()
        hang_up(running)
        wait_until(lambda: not old & set(running.workers()), "the second release")
        assert not lives(dry_run)
        assert "reload refused" not in running.log


@in_the_long_form
def test_a_release_that_hangs_is_refused(releases: Releases) -> None:
    """After the limit its process is killed."""
    releases.write(
        more="import greenline.worker.dry_run\ngreenline.worker.dry_run.LOAD_TIMEOUT_S = 1.0"
    )
    with releases.served() as running:
        old = set(running.workers())
        releases.write(SLOW)
        hang_up(running)
        # On a busy machine the limit may pass before the process runs the release's first line.
        wait_until(lambda: "reload refused" in running.log, "the line")
        assert "did not load within 1 s" in running.log
        assert set(children(running.process.pid)) == set(running.workers()) == old


def test_a_release_has_the_environment_of_its_configuration(releases: Releases) -> None:
    """A new variable of raw_env is there for the dry run, and one that is gone is not."""
    releases.write(more="raw_env = ['OLD=1']")
    with releases.served() as running:
        old = set(running.workers())
        needs = "import os\nassert os.environ['NEW'] == '2' and 'OLD' not in os.environ\n"
        releases.write(needs + GOOD, more="raw_env = ['NEW=2']")
        hang_up(running)
        wait_until(lambda: not old & set(running.workers()), "the new release")
        assert "reload refused" not in running.log


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its group")
def test_a_release_is_tried_as_the_user_of_the_workers(releases: Releases) -> None:
    """A file with code that asks for its group sees the workers' one."""
    releases.write(more="group = 65534")
    with releases.served() as running:
        old = set(running.workers())
        releases.write("import os\nassert os.getgid() == 65534\n" + GOOD, more="group = 65534")
        hang_up(running)
        wait_until(lambda: not old & set(running.workers()), "the new release")
        assert "reload refused" not in running.log


def test_a_configuration_that_would_end_the_service_is_refused(releases: Releases) -> None:
    """An address that is taken, rubbish for a certificate, a wrong setting: no request fails."""
    rubbish = releases.folder / "rubbish.pem"
    rubbish.write_text("rubbish")
    releases.write()
    with releases.served() as running, socket.create_server(("127.0.0.1", 0)) as taken:
        old = set(running.workers())
        load = Load(("127.0.0.1", running.port))
        other = f"127.0.0.1:{taken.getsockname()[1]}"
        tls = f"certfile = keyfile = {str(rubbish)!r}"
        cases = {
            f"bind: {taken.getsockname()!r}: ": lambda: releases.write(bind=[other]),
            # gunicorn would close its own address, on which the old workers still listen.
            f"bind: {('127.0.0.1', running.port)!r}: ": lambda: releases.write(
                bind=[releases.bind, f"127.0.0.1:{free_port()}"]
            ),
            f"bind: {str(rubbish)!r}: ": lambda: releases.write(bind=[f"unix:{rubbish}"]),
            "bind: '/no/such/folder/s': ": lambda: releases.write(bind=["unix:/no/such/folder/s"]),
            f"TLS: {rubbish}": lambda: releases.write(more=tls),
            "GREENLINE_MAX_WAIT: 'soon'": lambda: releases.write(
                more="raw_env = ['GREENLINE_MAX_WAIT=soon']"
            ),
            "there is no such thing": lambda: releases.write(
                more="raise ValueError('there is no such thing')"
            ),
        }
        for refused, (why, write) in enumerate(cases.items()):
            write()
            before = len(load.answered)
            hang_up(running)
            wait_until(lambda: running.log.count("reload refused") == refused + 1, why)  # noqa: B023
            assert why in running.log
            wait_until(lambda: len(load.answered) > before + 100, "some load")  # noqa: B023
            assert set(running.workers()) == old
        load.stop()
        assert load.failures == {}
        assert set(load.statuses) == {200}
        releases.write(bind=[f"unix:{releases.folder / 's'}"])
        hang_up(running)
        wait_until(lambda: not old & set(running.workers()), "a good address")


def test_a_wrong_setting_of_the_configuration_ends_the_start_in_one_line(
    releases: Releases,
) -> None:
    """No worker is forked for it, and no pid file stays."""
    releases.write(more="raw_env = ['GREENLINE_MAX_WAIT=soon']")
    running = releases.start()
    try:
        assert running.process.wait(timeout=START_LIMIT_S) == 1
    finally:
        running.stop()
    assert running.log.count("greenline: GREENLINE_MAX_WAIT: 'soon'") == 1
    assert "Booting worker" not in running.log
    assert "Traceback" not in running.log
    assert not (releases.folder / "pid").exists()


def test_an_upgrade_that_is_rolled_back_keeps_the_service_ready(releases: Releases) -> None:
    """TERM to the new arbiter is no stop of the service; TERM to the old one then is."""
    releases.write(WAITING, more=KEEPS_WORKER)
    requests, pid_file = releases.folder / "requests", releases.folder / "pid.2"

    def ask(_: int) -> str:
        return running.get("/?wait").body.decode()

    waiting: list[Future[str]] = []

    def begun_by() -> set[int]:
        """Ask for ten more; return the workers that have begun one."""
        waiting.extend(threads.submit(ask, number) for number in range(10))
        begun = wait_until(
            lambda: requests.exists() and len(pids := requests.read_text().split()) == len(waiting)
            and pids, "all to begin",
        )  # fmt: skip
        return set(map(int, begun))

    with releases.served() as running, ThreadPoolExecutor(200) as threads:
        old = set(running.workers())
        running.process.send_signal(signal.SIGUSR2)
        successor = int(wait_until(lambda: pid_file.exists() and pid_file.read_text(), "it"))
        wait_until(lambda: len(children(successor)) == 2, "its workers")
        new = set(children(successor))
        # gunicorn loses a SIGTERM for a worker that boots.
        wait_until(lambda: all(f"ready: {pid}\n" in running.log for pid in new), "both to boot")
        wait_until(
            lambda: (begun := begun_by()) & new and begun & old, "a new and an old one to have one"
        )
        os.kill(successor, signal.SIGTERM)
        wait_until(lambda: not lives(successor), "its end")
        running.process.send_signal(signal.SIGTERM)
        answers = [each.result().split() for each in waiting]
        assert {is_stopping for pid, is_stopping in answers if int(pid) in new} == {"False"}
        assert {is_stopping for pid, is_stopping in answers if int(pid) in old} == {"True"}
