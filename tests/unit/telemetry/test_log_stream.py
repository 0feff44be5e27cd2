"""greenline.telemetry.log_stream: each line written to stderr arrives."""

import subprocess
import sys

from tests.helpers.support import CHECKOUT, environ

BEGIN = """
import logging, os, sys
from greenline.patch import patch_all
patch_all()
from greenline.telemetry.access_log import lost
from greenline.telemetry.log_stream import LineStream
from greenline.telemetry.log_writer import LineWriter, open_log

writer = LineWriter(open_log(2), lost)
sys.stderr = LineStream(sys.stderr, writer)
logging.basicConfig(level="INFO", format="%(message)s")
"""


def run(script: str) -> list[str]:
    """Return the lines that a process wrote to stderr, which was a LineStream."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script],
        cwd=CHECKOUT,
        env=environ({"PYTHONUNBUFFERED": ""}),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_what_is_said_after_the_end_and_in_a_forked_child_arrives() -> None:
    """Where no thread writes any more, the text goes straight to where it went before."""
    lines = run(
        "print('before', file=sys.stderr)\n"
        "if os.fork() == 0:\n"
        "    logging.info('the child')\n"
        "    assert writer.close(0.0)\n"
        "    sys.exit()\n"
        "os.wait()\n"
        "assert writer.close(10)\n"
        "logging.info('after')\n"
    )
    assert sorted(lines) == ["after", "before", "the child"]


def test_what_a_forked_child_flushes_arrives() -> None:
    """A child that ends by ``os._exit`` has nothing else to write what is in the buffer."""
    lines = run(
        "os.dup2(2, 1)\n"
        "stream = LineStream(sys.stdout, writer)\n"
        "if os.fork() == 0:\n"
        "    stream.write('unfinished')\n"
        "    stream.flush()\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "assert writer.close(10)\n"
    )
    assert lines == ["unfinished"]


def test_native_threads_may_log() -> None:
    """All lines of four threads and of the hub are there, and the bookkeeping is right."""
    lines = run(
        "import gevent\n"
        "from gevent.threadpool import ThreadPool\n"
        "def log():\n"
        "    for n in range(5000): print(n, file=sys.stderr)\n"
        "threads = ThreadPool(4)\n"
        "sys.setswitchinterval(1e-6)\n"
        "working = [threads.spawn(log) for _ in range(4)]\n"
        "log()\n"
        "gevent.joinall(working)\n"
        "assert writer.close(20)\n"
        "assert writer.stats()['waiting_bytes'] == 0, writer\n"
    )
    assert len("".join(lines)) == 5 * len("".join(map(str, range(5000))))


def test_it_stands_for_the_stream() -> None:
    """Its descriptor, its encoding and what it cannot encode are the stream's."""
    lines = run(
        "print(sys.stderr.fileno(), sys.stderr.encoding, file=sys.stderr)\n"
        "sys.stderr.writelines(['one\\n', '\\udc80\\n'])\n"
        "sys.stderr.flush()\n"
        "assert writer.close(10)\n"
    )
    assert lines == [f"2 {sys.stderr.encoding}", "one", "\\udc80"]
