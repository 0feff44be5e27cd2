"""greenline.watchdog on a real hub, in processes of its own."""

import re
import subprocess
import sys

import pytest

from tests.support import CHECKOUT, environ

BEGIN = """
import sys, time, logging, json, gevent
from gevent.monkey import get_original
from greenline.patching import patch_all
if {patched}: patch_all()
from greenline import watchdog
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
told = []
dog = watchdog.Watchdog({limit_s}, stuck_s={stuck_s}, on_blocked=lambda: told.append(1))
dog.start()

def report():
    gevent.sleep(0.1)
    print("told", len(told), dog)

def in_sleep(seconds):
    get_original("time", "sleep")(seconds)

def in_python(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass

def in_c(seconds):
    end = time.monotonic() + seconds
    list(iter(lambda: sum(range(3_000_000)) and time.monotonic() > end, True))

def one_call_into_c(seconds):
    calibrated = time.perf_counter()
    sum(range(1_000_000))
    rate = 1_000_000 / (time.perf_counter() - calibrated)
    sum(range(int(rate * seconds)))

def handler(how, seconds):
    how(seconds)
"""


def run(script: str, *, patched: bool = True, limit_s: float = 0.1, stuck_s: float = 30.0) -> str:
    """Return what a process says that runs *script* under a watchdog."""
    begin = BEGIN
    for name, value in (("patched", patched), ("limit_s", limit_s), ("stuck_s", stuck_s)):
        begin = begin.replace(f"{{{name}}}", str(value))
    done = subprocess.run(
        [sys.executable, "-c", begin + script],
        cwd=CHECKOUT,
        env=environ({}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("patched", [True, False], ids=["patched", "unpatched"])
@pytest.mark.parametrize("how", ["in_sleep", "in_python", "in_c", "one_call_into_c"])
def test_names_the_function_that_blocks(how: str, patched: bool) -> None:
    """Asleep outside of gevent, busy in Python or in C: the stack shows who, the head how long."""
    # Long ones: on a busy machine the start of the process may take as long as a short block.
    said = run(f"gevent.spawn(handler, {how}, 1.2).join(); report()", patched=patched, limit_s=0.4)
    (blocked_ms,) = map(int, re.findall(r"^WARNING the hub was blocked for (\d+) ms", said, re.M))
    assert blocked_ms >= 400
    assert "in handler" in said
    assert f"in {how}" in said
    assert "told 1 <Watchdog blocked=1" in said


def test_an_idle_hub_is_not_blocked() -> None:
    """Greenlets that wait for a second, and ones that have a little to do, are no news."""
    said = run(
        "waiting = gevent.spawn(gevent.sleep, 1.0)\n"
        "while not waiting.ready():\n"
        "    in_python(0.005); gevent.sleep(0.002)\n"
        "report()",
        limit_s=0.5,
    )
    assert said == "told 0 <Watchdog blocked=0 longest_ms=0>\n"


def test_every_block_just_above_the_limit_is_counted_and_has_a_stack() -> None:
    """Twenty blocks of 150 ms, whenever they begin: none is missed."""
    said = run(
        "watchdog.LOG_EVERY_S = 0.0\n"
        "for n in range(20):\n"
        "    gevent.sleep(0.05 + n * 0.0037)\n"
        "    gevent.spawn(handler, in_sleep, 0.15).join()\n"
        "report()"
    )
    (told,) = re.findall(r"^told (\d+) ", said, re.M)
    assert said.count("in in_sleep") >= 20
    assert int(told) >= 20


def test_a_hub_that_is_blocked_all_the_time_does_not_flood_the_log() -> None:
    """Ten blocks in two seconds make one entry; the next one tells how many there were."""
    said = run(
        "def blocks(count):\n"
        "    for _ in range(count):\n"
        "        gevent.sleep(0.06)\n"
        "        gevent.spawn(handler, in_sleep, 0.15).join()\n"
        "    gevent.sleep(0.1)\n"
        "blocks(10)\n"
        "print('ten')\n"
        "watchdog.LOG_EVERY_S = 1.0\n"
        "gevent.sleep(1.0)\n"
        "blocks(1)\n"
        "report()"
    )
    first, _, second = said.partition("ten\n")
    assert first.count("WARNING") == second.count("WARNING") == 1
    assert "(and 9 more times since the last entry)" in second
    assert "told 11" in second


def test_many_greenlets_in_turn_are_not_taken_for_one_that_blocks() -> None:
    """A hub that is late because of its load says so."""
    said = run(
        "import socket\n"
        "def serve(sock):\n"
        "    sock.recv(1)\n"
        "    in_python(0.01)\n"
        "pairs = [socket.socketpair() for _ in range(60)]\n"
        "serving = [gevent.spawn(serve, pair[0]) for pair in pairs]\n"
        "gevent.sleep(0.1)\n"
        "for _, end in pairs: end.send(b'x')\n"
        "gevent.joinall(serving)\n"
        "report()"
    )
    assert "ms late: too many greenlets had work to do, for instance here:" in said
    assert "was blocked" not in said


def test_a_hub_that_never_comes_back_is_told_of_all_the_same() -> None:
    """Before its master kills it, a stuck worker says where it is stuck, once."""
    said = run("handler(in_sleep, 1.5)", stuck_s=0.5)
    assert said.count("greenline: the hub has been blocked for") == 1
    assert "in handler" in said


def test_stopped_it_says_nothing() -> None:
    """A worker on its way out may block."""
    said = run("gevent.sleep(0.1); dog.stop(); handler(in_sleep, 0.3); report()")
    assert said == "told 0 <Watchdog blocked=0 longest_ms=0>\n"
