"""greenline.hub.watchdog on a real hub, in processes of its own."""

import re
import sys

import pytest

from tests.helpers import support
from tests.helpers.forms import in_the_long_form, some

BEGIN = """
import sys, time, logging, json, ctypes, gevent
from gevent.monkey import get_original
from greenline.patch import patch_all
if {patched}: patch_all()
from greenline.hub import watchdog
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
reports = []
begun = 0
dog = watchdog.Watchdog(
    {limit_s}, stuck_s={stuck_s}, on_blocked=lambda: reports.append(1), progress=lambda: begun
)
dog.start()

def report():
    gevent.sleep(0.1)
    print("reports", len(reports), dog)

def in_sleep(seconds):
    get_original("time", "sleep")(seconds)

def in_python(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def in_c(seconds):
    end = time.thread_time() + seconds
    list(iter(lambda: sum(range(3_000_000)) and time.thread_time() > end, True))

def one_call_into_c(seconds):
    # Of a PyDLL, so the interpreter's lock is kept; of a certain length, however busy the CPU is.
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))

def handler(how, seconds):
    how(seconds)
"""


WAITED = r"WARNING the hub was (\d+) ms late: for (\d+) ms it waited for a processor"
# On a busy machine what a test does before its block takes longer than 0.1 s.
SHORT_S = 0.3
# Longer than a busy machine stops one process: one that is stopped looks as if it were blocked.
LONG_S = 1.0


def run(script: str, *, patched: bool = True, limit_s: float = 0.1, stuck_s: float = 30.0) -> str:
    """Return what a process says that runs *script* under a watchdog."""
    begin = BEGIN
    for name, value in (("patched", patched), ("limit_s", limit_s), ("stuck_s", stuck_s)):
        begin = begin.replace(f"{{{name}}}", str(value))
    done = support.run(["python", "-c", begin + script], {})
    return done.stdout + done.stderr


@pytest.mark.parametrize("patched", some([True, False]), ids=some(["patched", "unpatched"]))
@pytest.mark.parametrize("how", ["in_sleep", "in_python", "in_c", "one_call_into_c"])
def test_names_the_function_that_blocks(how: str, patched: bool) -> None:
    """Asleep outside of gevent, busy in Python or in C: the stack shows who, the head how long."""
    # Long ones: on a busy machine the start of the process may take as long as a short block.
    said = run(f"gevent.spawn(handler, {how}, 1.2).join(); report()", patched=patched, limit_s=0.4)
    (blocked_ms,) = map(int, re.findall(r"^WARNING the hub was blocked for (\d+) ms", said, re.M))
    assert blocked_ms >= 400
    assert "in handler" in said
    assert f"in {how}" in said
    assert "reports 1 <Watchdog blocked=1" in said


def test_an_idle_hub_is_not_blocked() -> None:
    """Greenlets that wait for a second, and ones that have a little to do, are no news."""
    said = run(
        "waiting = gevent.spawn(gevent.sleep, 1.0)\n"
        "while not waiting.ready():\n"
        "    in_python(0.005); gevent.sleep(0.002)\n"
        "report()",
        limit_s=0.5,
    )
    assert said == "reports 0 <Watchdog blocked=0 longest_ms=0>\n"


def test_a_wait_for_a_processor_is_no_block() -> None:
    """Of a process that ten others on its processor leave a tenth of the time."""
    # At a lower priority than theirs, the watchdog's thread would be stopped with the interpreter's
    # lock, which looks like a block. So does each of its records, for which the hub waits until the
    # others have had their turns: a second has room for those of a busy machine.
    said = run(
        "import os, subprocess\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "busy = [sys.executable, '-c', 'import time; end = time.time() + 5\\n'\n"
        "        'while time.time() < end: pass']\n"
        "others = [subprocess.Popen(busy) for _ in range(10)]\n"
        "while any(each.poll() is None for each in others):\n"
        "    in_python(0.2); gevent.sleep(0.001)\n"
        "report()",
        limit_s=LONG_S,
    )
    late_ms, waited_ms = map(int, re.findall(WAITED, said)[0])
    assert late_ms >= waited_ms > 100
    assert "reports 0 <Watchdog blocked=0" in said


def test_every_block_just_above_the_limit_is_counted_and_has_a_stack() -> None:
    """Four blocks of half as much again, whenever they begin: none is missed."""
    # On a busy machine the look at a block comes late: it has a second.
    said = run(
        "watchdog.LOG_EVERY_S = 0.0\n"
        "for n in range(4):\n"
        "    gevent.sleep(0.05 + n * 0.0274)\n"
        "    gevent.spawn(handler, in_sleep, 3.0).join()\n"
        "report()",
        limit_s=2.0,
    )
    (reported,) = re.findall(r"^reports (\d+) ", said, re.M)
    assert said.count("in in_sleep") >= 4
    assert int(reported) >= 4


def test_a_hub_that_is_blocked_all_the_time_does_not_flood_the_log() -> None:
    """Ten blocks in two seconds make one entry; the next one says how many there were."""
    said = run(
        "def blocks(count):\n"
        "    for _ in range(count):\n"
        "        gevent.sleep(0.06)\n"
        "        gevent.spawn(handler, in_sleep, 0.15).join()\n"
        "    gevent.sleep(0.1)\n"
        "blocks(10)\n"
        "print('ten')\n"
        "watchdog.LOG_EVERY_S = 1.0\n"
        "gevent.sleep(0.5)\n"
        "report()"
    )
    first, _, second = said.partition("ten\n")
    assert first.count("WARNING") == second.count("WARNING") == 1
    assert "(and 8 more times since the last entry)" in second
    assert "reports 10" in second


@in_the_long_form
def test_a_short_block_does_not_hide_a_longer_one() -> None:
    """Of those since the last entry the longest is logged, with its stack, when its time comes."""
    said = run(
        "watchdog.LOG_EVERY_S = 6.0\n"
        "for how, seconds in ((in_sleep, 0.5), (in_c, 1.0), (in_sleep, 0.5)):\n"
        "    gevent.sleep(0.1)\n"
        "    gevent.spawn(handler, how, seconds).join()\n"
        "gevent.sleep(6.0)\n"
        "report()",
        limit_s=0.25,
    )
    assert "in in_c" in said
    assert re.search(r"\(and \d more times since the last entry\)", said)


@in_the_long_form
def test_many_greenlets_in_turn_are_not_taken_for_one_that_blocks() -> None:
    """A hub that is late because of its load says so."""
    said = run(
        "import socket\n"
        "def serve(sock):\n"
        "    sock.recv(1)\n"
        "    in_python(0.05)\n"
        "pairs = [socket.socketpair() for _ in range(60)]\n"
        "serving = [gevent.spawn(serve, pair[0]) for pair in pairs]\n"
        "gevent.sleep(0.1)\n"
        "for _, end in pairs: end.send(b'x')\n"
        "gevent.joinall(serving)\n"
        "report()",
        limit_s=LONG_S,
    )
    assert "ms late: too many greenlets had work to do, for instance here:" in said
    assert "was blocked" not in said


def test_greenlets_that_others_made_ready_are_not_taken_for_one_that_blocks() -> None:
    """The loop runs them in one go, without a watcher of their own."""
    said = run(
        "gevent.joinall([gevent.spawn(in_python, 0.05) for _ in range(60)])\nreport()",
        limit_s=LONG_S,
    )
    assert "ms late: too many greenlets had work to do, for instance here:" in said
    assert "was blocked" not in said


def test_requests_that_a_greenlet_serves_in_turn_are_not_taken_for_one_that_blocks() -> None:
    """The loop does nothing between them, but they are counted."""
    said = run(
        "def serve():\n"
        "    global begun\n"
        "    for begun in range(1, 50):\n"
        "        in_python(0.02)\n"
        "gevent.spawn(serve).join(); report()",
        limit_s=SHORT_S,
    )
    assert "ms late: too many greenlets had work to do, for instance here:" in said


def test_one_that_blocks_after_others_have_worked_is_named() -> None:
    """A crowd that ran before it, in the same turn of the loop, does not hide it."""
    said = run(
        "def spawn_more():\n"
        "    # What the greenlet itself adds is no sign that another one ran.\n"
        "    for _ in range(40):\n"
        "        gevent.spawn(len, ()); in_python(0.02)\n"
        "crowd = [gevent.spawn(in_python, 0.02) for _ in range(10)]\n"
        "crowd += [gevent.spawn(spawn_more)]\n"
        "crowd += [gevent.spawn(in_python, 0.02) for _ in range(10)]\n"
        "gevent.joinall(crowd); report()",
        limit_s=SHORT_S,
    )
    assert "WARNING the hub was blocked for" in said
    assert "in spawn_more" in said


def test_names_beyond_ascii_are_logged_as_they_are() -> None:
    """faulthandler writes their characters as numbers."""
    said = run(
        "code = 'def größe_ж(): in_sleep(0.4)'\n"
        "exec(compile(code, '/größe €.py', 'exec'))\n"
        "gevent.spawn(größe_ж).join(); report()"
    )
    assert 'File "/größe €.py", line 1, in größe_ж' in said


def test_a_thread_that_ended_is_logged_and_replaced() -> None:
    """Whatever ends it: what blocks later is named again."""
    said = run(
        "watchdog.LOG_EVERY_S = 0.0\n"
        # Once: on a busy machine the next thread looks before this one goes on.
        "def fail(): dog._progress = int; 1 / 0\n"
        "dog._progress, begun_s = fail, dog._restarted_s\n"
        "in_sleep(0.5)\n"
        "while dog._restarted_s == begun_s: gevent.sleep(0.01)\n"
        "gevent.spawn(handler, in_sleep, 0.5).join(); report()"
    )
    assert said.count("ERROR the watchdog's thread ended, another one is started:") == 1
    assert "ZeroDivisionError: division by zero" in said
    assert "in handler" in said


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 12),
    reason="a collection that is due begins in whatever thread runs next",
)
def test_no_collection_begins_in_the_thread_that_watches() -> None:
    """A destructor there would touch the hub's objects from outside; and what it makes is none."""
    said = run(
        "import gc\n"
        "while not dog._notes: in_sleep(0.02)\n"  # the thread has begun
        "gc.set_threshold(1)\n"
        "threads = set()\n"
        "ident = get_original('_thread', 'get_ident')\n"
        "gc.callbacks.append(lambda *_: threads.add(ident()))\n"
        "def more(): gevent.spawn(len, ())\n"
        "for _ in range(20):\n"
        "    more(); gevent.spawn(handler, in_sleep, 0.05).join()\n"
        "report(); print('in one thread:', threads == {dog._thread})",
        limit_s=0.01,
    )
    # It logs on: a busy machine is a warning that may come after this.
    assert "in one thread: True\n" in said


def test_with_more_threads_than_faulthandler_shows_there_is_no_stack() -> None:
    """The block is logged all the same."""
    said = run(
        "start = get_original('_thread', 'start_new_thread')\n"
        "import os\n"
        "for _ in range(110): start(in_sleep, (30,))\n"
        "while len(os.listdir('/proc/self/task')) < 111: gevent.sleep(0.01)\n"
        "watchdog.LOG_EVERY_S = 0.0\n"
        "gevent.sleep(1.0)\n"
        "print('all')\n"
        "gevent.spawn(handler, in_sleep, 0.8).join(); report()",
    )
    said = said.partition("all\n")[2]
    assert re.search(r"^WARNING the hub was blocked for \d+ ms$", said, re.M)
    assert "in handler" not in said


def test_the_applications_own_faulthandler_goes_on() -> None:
    """Its timer fires, and it is as enabled as it was."""
    said = run(
        "import faulthandler\n"
        "assert not faulthandler.is_enabled()\n"
        "faulthandler.dump_traceback_later(0.6)\n"
        "gevent.spawn(handler, in_sleep, 1.2).join(); report()"
    )
    assert "Timeout (0:00:00.600000)!" in said
    assert "WARNING the hub was blocked for" in said


def test_a_hub_that_never_comes_back_is_reported_all_the_same() -> None:
    """Before its arbiter kills it, a stuck worker says where it is stuck, once."""
    said = run("handler(in_sleep, 1.5)", stuck_s=0.5)
    assert said.count("greenline: the hub has been blocked for") == 1
    assert "in handler" in said


def test_stopped_it_says_nothing() -> None:
    """A worker on its way out may block."""
    said = run("gevent.sleep(0.1); dog.stop(); handler(in_sleep, 0.3); report()")
    assert said == "reports 0 <Watchdog blocked=0 longest_ms=0>\n"
