"""Scripts that run in a process of their own, as a worker does: what forks must not be pytest."""

from tests.helpers import support

BEGIN = """
from greenline.patch import patch_all
patch_all()
from greenline.offload import fork
fork.install()
import gevent, logging, multiprocessing, os, signal, socket, subprocess, sys, threading, time

logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)

def tell(*what):
    os.write(1, (" ".join(map(str, what)) + "\\n").encode())

def in_child(work):
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    tell("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

# Counts while other greenlets run.
TICKS = """
ticks = []

def tick():
    while True:
        ticks.append(None)
        gevent.sleep(0.005)

gevent.spawn(tick)
"""

TICKING = f"""{TICKS}
def report(wait):
    before = len(ticks)
    result = wait()
    tell(result, "with others" if len(ticks) >= before + 5 else "alone")
"""


def run(script: str, *, before: str = "") -> list[str]:
    """
    Return the lines that a worker's greenlet and its children wrote, as they came.

    :param script: defines ``main``, which the greenlet runs, str.
    :param before: what runs before the patching, str. Default: nothing.
    """
    # Joined: as Python 3.13 ends, gevent's hook of a fork fails.
    code = f"{before}{BEGIN}{script}\nthread = threading.Thread(target=main)\n"
    code += "thread.start()\nthread.join()\n"
    # From Python 3.12 on each fork of a process with threads warns.
    done = support.run(["python", "-W", "ignore:This process", "-c", code], {})
    assert done.stderr == ""
    return done.stdout.splitlines()
