"""``greenline top`` and ``/state``: what the workers do, for a host, a process and a URL."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from greenline.ops import watch as watching
from greenline.ops.sources import memory_of, pids_of
from greenline.ops.watch import Watch
from greenline.telemetry.request_counts import by_route
from tests.e2e.hosting import at_once, hosting
from tests.helpers.forms import in_the_long_form, some
from tests.helpers.support import BIN, CHECKOUT, Service, environ, free_port, run, wait_until

APP = "tests.e2e.watched:app"
COMMAND = ["python", "-m", "greenline", "top"]
TOKEN = "sesame"


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def running(port: int) -> Iterator[Service]:
    """Two workers, whose state can be asked for with a token."""
    more = {
        "GREENLINE_OPS_BIND": f"127.0.0.1:{port}",
        "GREENLINE_OPS_TOKEN": TOKEN,
        "GREENLINE_ACCESS_LOG": "json",
    }
    with hosting(APP, "-w", "2", **more) as service:
        wait_until(lambda: len(pids(service)) == 2, "two workers")
        yield service


def pids(running: Service) -> set[int]:
    return set(pids_of(memory_of(running.process.pid)))


def once(*arguments: object, token: str = TOKEN) -> Any:
    done = run([*COMMAND, *map(str, arguments), "--once", "--json"], {"GREENLINE_OPS_TOKEN": token})
    return json.loads(done.stdout)


def exact(durations_s: list[float], share: float) -> float:
    return sorted(durations_s)[ceil(share * len(durations_s)) - 1]


def test_durations_are_within_five_percent(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an exact list, which is made of the access log, for all and for each route."""
    # All of them count, however long a busy machine takes for them.
    monkeypatch.setattr(watching, "WINDOW_S", 100.0)
    watch = Watch(memory_of(running.process.pid))
    watch.state()
    with ThreadPoolExecutor(20) as clients:
        paths = [f"/wait?{0.02 + 0.01 * each}" for each in range(100)]
        assert {each.status for each in clients.map(running.get, paths)} == {200}
    lines = wait_until(
        lambda: found if len(found := _durations(running.log)) == 100 else None, "the access log"
    )

    def are_noted() -> bool:
        durations, _ = by_route(watch.reader.histograms())
        return ("/wait",) in durations and sum(durations["/wait",].counts) == 100

    wait_until(are_noted, "each of them to be noted")
    asked_s = time.time()  # the state is at most a second old
    state = wait_until(
        lambda: now if (now := watch.state()).time > asked_s else None, "the durations"
    )
    (route,) = (each for each in state.routes if each.route == "/wait")
    assert {"application"} <= set(route.parts_s) <= {"application", "queued"}
    for shown in (state, route):
        assert shown.p50_s == pytest.approx(exact(lines, 0.5), rel=0.05)
        assert shown.p99_s == pytest.approx(exact(lines, 0.99), rel=0.05)


def _durations(log: str) -> list[float]:
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [line["total_ms"] / 1000 for line in lines if line["path"] == "/wait"]


@in_the_long_form
def test_it_is_the_same_for_a_process_and_a_url(running: Service, port: int) -> None:
    """The workers, their limits and their last slow requests, as JSON for scripts."""
    assert running.get("/wait?1.1").status == 200
    for target in (running.process.pid, *pids(running), f"http://127.0.0.1:{port}"):
        state = once(target)
        assert {each["pid"] for each in state["workers"]} == pids(running)
        assert {each["connections_max"] for each in state["workers"]} == {1000}
        (slow,) = state["requests"]
        assert (slow["path"], slow["route"], slow["status"]) == ("/wait", "/wait", 200)
        assert slow["took_s"] >= 1.1
        busy = ("processor", "late")  # as a busy machine makes it
        assert [each for each in state["findings"] if not any(map(each.count, busy))] == []


def test_a_blocked_worker_is_the_first_finding(running: Service, tmp_path: Path) -> None:
    """With its process and the function that blocks it; it is in the list of blocks afterwards."""
    watch = Watch(memory_of(running.process.pid))
    watch.state()
    begun = tmp_path / "begun"
    with ThreadPoolExecutor() as clients:
        blocking = clients.submit(running.get, f"/block?{begun}")
        wait_until(begun.exists, "the block")
        found = wait_until(
            lambda: [each for each in watch.state().findings if "has been blocked" in each],
            "the finding",
        )
        blocking.result()
    worker = re.fullmatch(
        r"The hub of worker (\d+) has been blocked for \d\.\d s in watched\.app: no other .*",
        found[0],
    )
    assert worker is not None, found
    (block,) = wait_until(lambda: watch.state().blocks, "its entry")
    assert (block.worker, block.function) == (int(worker[1]), "watched.app")
    assert block.took_s >= 2.5


def test_an_overload_is_named() -> None:
    """Requests that are refused, and those that wait for their turn."""
    given = {"GREENLINE_MAX_IN_PROGRESS": "2", "GREENLINE_MAX_WAITING": "5"}
    with hosting(APP, **given) as running:
        watch = Watch(memory_of(running.process.pid))
        watch.state()
        answers, _ = at_once(running, "/wait?2", 40)
        found = watch.state().findings
        assert "GREENLINE_MAX_WAITING lets 5 wait in a worker" in found[0]
    assert {each.status for each in answers} == {200, 503}
    assert re.match(
        r"\d+\.\d requests a second are refused with 503: more come than are answered", found[0]
    )


def test_it_is_drawn_in_a_terminal(running: Service) -> None:
    """And drawn again each second, until Ctrl-C ends it."""
    ours, theirs = pty.openpty()
    command = [str(BIN / "python"), *COMMAND[1:], str(running.process.pid)]
    process = subprocess.Popen(
        command, cwd=CHECKOUT, env=environ({"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}),
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = ""

    def has(text: str, times: int) -> bool:
        nonlocal shown
        with suppress(OSError):  # the program has ended
            while select.select([ours], [], [], 0)[0]:
                shown += os.read(ours, 65_536).decode(errors="replace")
        return shown.count(text) >= times

    try:
        wait_until(lambda: has("requests/s", 4), "pictures")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: has("", 0) and process.poll() is not None, "the end")
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    for pid in pids(running):
        assert str(pid) in shown
    assert "/ 1000" in shown


def test_without_a_terminal_it_is_printed_once(running: Service, port: int) -> None:
    """Whole, by a URL as well."""
    for target in (str(running.process.pid), f"http://127.0.0.1:{port}"):
        done = run([*COMMAND, target, "--once"], {"GREENLINE_OPS_TOKEN": TOKEN})
        # Or that it waits for a processor, on a busy machine.
        assert any(each in done.stdout for each in ("Healthy: nothing waits", "processor", "late"))
        assert "\x1b" not in done.stdout


UNWATCHED = {
    "a wrong token": ("http://127.0.0.1:{port}", "wrong", "set GREENLINE_OPS_TOKEN to its token"),
    "no listener": ("http://127.0.0.1:{other}", TOKEN, "Connection refused"),
    "no process": ("4194305", TOKEN, "there is no process 4194305"),
    "no token": ("http://127.0.0.1:{port}", "", "set GREENLINE_OPS_TOKEN to its token"),
    "the service": ("http://127.0.0.1:{service}", TOKEN, "404 Not Found: no state"),
    "no socket": ("/nowhere.sock", TOKEN, "No such file or directory"),
    "no URL": ("localhost:9191", TOKEN, "is no process id, no path of a socket and no URL"),
}


@pytest.mark.parametrize(
    ("target", "token", "reason"), some(list(UNWATCHED.values())), ids=some(list(UNWATCHED))
)
def test_what_cannot_be_watched_is_named(
    target: str, token: str, reason: str, running: Service, port: int
) -> None:
    """In one line that names the target."""
    named = target.format(port=port, other=free_port(), service=running.port)
    done = run([*COMMAND, named, "--once"], {"GREENLINE_OPS_TOKEN": token}, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert reason in line
    assert named in line


def test_each_command_of_the_page_runs_as_typed(running: Service, port: int) -> None:
    """For the one gunicorn of the host; where several run, it names them."""
    page = (CHECKOUT / "docs/watch.md").read_text(encoding="utf-8")
    typed = re.findall(r"(?:^\$ |`)(greenline (?:top|stacks)(?: [^`\n]*)?)", page, re.MULTILINE)
    assert len(set(typed)) == 4
    for command in typed:
        given = command.replace("9191", str(port)).split()
        done = run(given, {"GREENLINE_OPS_TOKEN": TOKEN}, check=False)
        if "several run on this host" not in done.stderr:
            assert (done.returncode, done.stderr) == (0, ""), command
            assert str(pids(running) and min(pids(running))) in done.stdout, command
