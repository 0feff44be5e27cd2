"""A bad setting ends the start in one line; signals end, reload and replace without a loss."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from embedded.postgres import Postgres
from tests.helpers.forms import in_the_long_form, some
from tests.helpers.support import START_LIMIT_S, Answer, Databases, service, wait_until
from tests.helpers.watch import backends

SECRET = "sesame"

BAD: dict[str, tuple[str, str]] = {
    "port is no number": ("PORT", "abc"),
    "no workers": ("WEB_CONCURRENCY", "0"),
    "no database": ("DATABASE_URL", ""),
    "database of another kind": ("DATABASE_URL", f"mysql://me:{SECRET}@localhost/greenline"),
    "database that libpq cannot read": ("DATABASE_URL", f"postgresql://me:{SECRET}@h:p%zz/x"),
    "password that is not encoded": ("DATABASE_URL", f"postgresql://me:{SECRET}/x@h/d"),
    "password for mongodb that is not": ("MONGODB_URI", f"mongodb://me:{SECRET}/x@h/d"),
    "no mongodb": ("MONGODB_URI", ""),
    "mongodb without a scheme": ("MONGODB_URI", f"me:{SECRET}@localhost/greenline"),
    "mongodb that pymongo cannot read": ("MONGODB_URI", f"mongodb://me:{SECRET}@a@b/x"),
    "negative timeout": ("REQUEST_TIMEOUT", "-1"),
    "log level of another language": ("LOG_LEVEL", "laut"),
}


@pytest.mark.parametrize(("name", "value"), some(list(BAD.values()), 5), ids=some(list(BAD), 5))
def test_a_bad_setting_is_reported_in_one_line(databases: Databases, name: str, value: str) -> None:
    """gunicorn ends, and one line names the variable, without a stack and without a password."""
    environ = {**databases.environ, "WEB_CONCURRENCY": "3", name: value}
    with service(environ, wait=False) as greenline:
        assert greenline.process.wait(timeout=START_LIMIT_S) != 0, greenline.log
        log = greenline.log
    (line,) = [line for line in log.splitlines() if name in line]
    assert line.startswith(f"greenline: {name}: ")
    assert "Traceback" not in log
    assert SECRET not in log


@in_the_long_form
def test_ctrl_c_ends_it_without_a_word_of_the_interpreter(databases: Databases) -> None:
    """A terminal signals the arbiter and the workers, and the arbiter signals the workers again."""
    with service(databases.environ) as greenline:
        for pid in (*greenline.workers(), greenline.process.pid):
            os.kill(pid, signal.SIGINT)
        assert greenline.process.wait(timeout=20) == 0
        assert "Traceback" not in greenline.log, greenline.log
        assert greenline.log.count("Worker exiting") == 2


def test_sigterm_finishes_what_is_in_progress(databases: Databases, postgres: Postgres) -> None:
    """Sleeping requests are answered, the exit status is 0, and no connection is left."""
    environ = {
        **databases.environ,
        "DATABASE_URL": f"{databases.postgres}&application_name=sigterm",
        "GREENLINE_DIAGNOSTICS": "1",
    }
    with service(environ) as greenline, ThreadPoolExecutor() as clients:
        asked = [clients.submit(greenline.get, "/diagnostics/sleep?seconds=1.5") for _ in range(6)]
        wait_until(lambda: backends(postgres, "sigterm", asleep=True) == 6, "six sleepers")
        assert greenline.stop() == 0
        assert [one.result().status for one in asked] == [200] * 6
        assert not greenline.is_alive()
        assert "Traceback" not in greenline.log
        wait_until(lambda: backends(postgres, "sigterm") == 0, "all backends to go")


def test_a_reload_below_the_budget_loses_no_request(databases: Databases) -> None:
    """Under load HUP replaces every worker, and each request is answered."""
    with service({**databases.environ, "WEB_CONCURRENCY": "2"}) as greenline:
        wait_until(lambda: greenline.log.count(": ready") == 2, "both workers to be ready")
        old = set(greenline.workers())
        done = Event()

        def keep_asking() -> list[Answer]:
            answers = []
            while not done.is_set():
                answers.append(greenline.get("/books?limit=1"))
                done.wait(0.05)
            return answers

        with ThreadPoolExecutor() as pool:
            clients = [pool.submit(keep_asking) for _ in range(4)]
            try:
                greenline.process.send_signal(signal.SIGHUP)
                wait_until(
                    lambda: len(now := set(greenline.workers())) == 2 and not now & old,
                    "two new workers in the place of the old ones",
                )
                wait_until(lambda: greenline.log.count(": ready") == 4, "the new ones to be ready")
            finally:
                done.set()
            statuses = [answer.status for client in clients for answer in client.result()]
        assert len(statuses) > 20
        assert set(statuses) == {200}


@in_the_long_form
def test_a_killed_worker_is_replaced(databases: Databases) -> None:
    """After a kill -9 the arbiter starts another worker, which serves."""
    with service({**databases.environ, "WEB_CONCURRENCY": "1"}) as greenline:
        (killed,) = greenline.workers()
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: greenline.workers() not in ([], [killed]), "another worker")
        wait_until(greenline.is_ready, "it to be ready")
        assert greenline.get("/books").status == 200
        assert greenline.get("/states").status == 200


def test_a_stop_ends_readiness_at_once_and_goes_on_serving(databases: Databases) -> None:
    """For DRAIN_DELAY the load balancer sees it, and no client is refused."""
    with service({**databases.environ, "DRAIN_DELAY": "4"}) as greenline:
        greenline.process.terminate()
        wait_until(lambda: greenline.get("/readyz").status == 503, "readiness to end", limit_s=2)
        assert greenline.get("/readyz").json["status"] == "stopping"
        assert greenline.get("/healthz").status == 200
        assert greenline.get("/books?limit=1").status == 200
        assert greenline.process.wait(timeout=20) == 0


def test_a_reload_does_not_turn_readiness_red(databases: Databases) -> None:
    """HUP stops the old workers with the same signal, and the service goes on."""
    with service({**databases.environ, "DRAIN_DELAY": "4"}) as greenline:
        old = set(greenline.workers())
        greenline.process.send_signal(signal.SIGHUP)
        asked = 0
        while old & set(greenline.workers()):
            answer = greenline.get("/readyz")
            assert answer.status == 200 or answer.json["status"] == "not ready", answer.body
            asked += 1
        assert asked > 20
        wait_until(greenline.is_ready, "the new workers' pools")
