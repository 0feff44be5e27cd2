"""The load generator, on a real server."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest

from greenline.tune.generator import Outcome, Plan
from greenline.tune.load import Load, Request
from greenline.tune.measure import BrokenService, Meter
from greenline.tune.results import Objective
from greenline.tune.server import Configuration, Server, started
from tests.helpers.support import environ

OBJECTIVE = Objective(p99_s=0.2, errors=0.001)
APPLICATION = """\
from gevent import sleep
from gevent.monkey import get_original
stalls = [1.0]
def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/stall" and stalls:
        get_original("time", "sleep")(stalls.pop())  # it blocks the hub
    status = "500 Internal Server Error" if path == "/fail" else "200 OK"
    if path == "/wait":
        sleep(30)
    start_response(status, [("Content-Length", "5")])
    return [b"hello"]
"""

SHOWN = """\
import os
def app(environ, start_response):
    start_response("200 OK", [])
    return [f"{os.environ['GREENLINE_MAX_IN_PROGRESS']} {os.environ['OWN']}".encode()]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One worker of an application that does what its path says."""
    folder = tmp_path_factory.mktemp("tune")
    (folder / "small.py").write_text(APPLICATION)
    with started("small:app", folder, Configuration(1)) as found:
        yield found


def meter(path: str, **headers: str) -> Meter:
    return Meter(Load([Request("GET", path)], path), headers, OBJECTIVE)


def test_a_rate_is_offered_and_the_workers_are_seen(server: Server) -> None:
    """As many requests as were to be offered, without the warm-up; their time, and its parts."""
    with meter("/") as measuring:
        one = measuring.offer(server.url, 200, 2.0, 0.5, server.workers)
        assert one.outcome.statuses == {200: 400}
        assert one.errors == 0
        found = measuring.step(200, [one])
    assert found.latencies.samples == 400
    assert found.latencies.p99_s is not None
    assert found.latencies.p999_s is None  # of a thousand and more
    assert found.shares is not None
    assert found.shares.application_s > 0
    assert found.memory_mib > 10
    assert found.cpu_of_workers > 0


def test_a_stall_is_charged_with_all_that_it_keeps_waiting(server: Server) -> None:
    """The requests that were due in that second count from then: no coordinated omission."""
    with meter("/stall") as measuring:
        one = measuring.offer(server.url, 100, 2.0, 0.0, server.workers)
    late = [each for each in one.outcome.durations_s if each > OBJECTIVE.p99_s]
    # Clients that wait for an answer before they ask again would have seen one slow answer each.
    assert len(late) >= 70
    assert one.good_rate(OBJECTIVE) < 70


def test_a_service_that_fails_is_offered_no_more(server: Server) -> None:
    """It ends after fifty errors, and says which."""
    with (
        meter("/fail") as measuring,
        pytest.raises(BrokenService, match="at 100/s more than half of the answers were errors"),
    ):
        measuring.offer(server.url, 100, 60.0, 0.0, server.workers)


def plan(server: Server, path: str, rate: float, seconds: float, timeout_s: float) -> Plan:
    return Plan(server.url, [Request("GET", path)], {}, rate, 0.0, seconds, timeout_s)


def generate(given: Plan, descriptors: int | None = None) -> Outcome:
    def limit() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    done = subprocess.run(
        [sys.executable, "-m", "greenline.tune.generator"],
        input=msgspec.json.encode(given),
        capture_output=True,
        env=environ({"PYTHONPATH": str(Path(__file__).parents[3])}),
        preexec_fn=limit,
        timeout=60,
        check=True,
    )
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Outcome)


def test_a_generator_without_enough_descriptors_says_so(server: Server) -> None:
    """It ends when all are in use, and does not count what it could not send as an answer."""
    outcome = generate(plan(server, "/wait", 200, 30.0, 1.0), descriptors=100)
    assert outcome.descriptors == 100 - 64
    assert outcome.durations_s == []


def test_settings_of_the_folder_do_not_hide_what_is_varied(tmp_path: Path) -> None:
    """A gunicorn.conf.py that tune has written would make all steps the same."""
    (tmp_path / "shown.py").write_text(SHOWN)
    (tmp_path / "gunicorn.conf.py").write_text(
        'raw_env = ["GREENLINE_MAX_IN_PROGRESS=3", "OWN=yes"]\nworkers = 5\n'
    )
    with started("shown:app", tmp_path, Configuration(1, limit=7)) as found:
        assert found.workers is not None
        assert len(found.workers.running()) == 1
        with urlopen(found.url) as answer:
            assert answer.read() == b"7 yes"
