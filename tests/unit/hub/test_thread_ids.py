"""Threads that are greenlets have numbers of their own, as native threads have."""

import subprocess
import sys

from tests.helpers.support import CHECKOUT, environ

LATE = """
from greenline.patch import patch_all; patch_all()
import os, sys, tempfile, threading

class Late:
    def __init__(self):
        self.file = tempfile.TemporaryFile()

    def __del__(self, threading=threading, write=os.write, fsync=os.fsync):
        found = threading.current_thread()
        fsync(self.file.fileno())
        line = f"{found.name} {found is threading.current_thread() is threading.main_thread()}"
        write(1, line.encode())

sys.modules["late"] = Late()
"""
SCRIPT = """
from greenline.patch import patch_all; patch_all()
import os, threading, time
import gevent
from gevent.monkey import get_original

started = [threading.Thread(target=time.sleep, args=(0.05,)) for _ in range(3)]
for each in started:
    each.start()
alone = gevent.spawn(lambda: threading.current_thread().native_id)
numbers = {each.native_id for each in threading.enumerate()} | {alone.get()}
print(len(numbers), threading.main_thread().native_id == threading.get_native_id() == os.getpid())
for each in started:
    each.join()
print({each.native_id for each in started} & {each.native_id for each in threading.enumerate()})

later = []
for _ in range(3):
    thread = threading.Thread(target=lambda: later.append(threading.current_thread().native_id))
    thread.start()
    thread.join()
print(len({*later, *numbers}) == 8)
try:
    os.sched_getaffinity(later[0])
except ProcessLookupError as error:
    print(error.strerror)

def is_the_systems():
    return threading.current_thread().native_id == threading.get_native_id()

native = []
get_original("_thread", "start_new_thread")(lambda: native.append(is_the_systems()), ())
while not native:
    time.sleep(0.01)
print(native[0], gevent.get_hub().threadpool.apply(is_the_systems), flush=True)
child = os.fork()
if child == 0:
    os._exit(threading.main_thread().native_id != os.getpid())
print(os.waitpid(child, 0)[1])
child = []
def fork():
    child.append(os.fork())
    if child[0] == 0:
        os._exit(threading.main_thread().native_id != os.getpid())
thread = threading.Thread(target=fork)
thread.start()
thread.join()
print(os.waitpid(child[0], 0)[1])
"""
SAID = """\
5 True
set()
True
No such process
True True
0
0
"""


def test_each_has_its_own_and_none_lives_on() -> None:
    """No number comes again; the main thread and native threads have the system's."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=CHECKOUT,
        env=environ({}),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout == SAID, done.stderr


def test_the_last_destructors_run_in_the_main_thread() -> None:
    """Those of objects that live until no greenlet is left; there they may write to files too."""
    done = subprocess.run(
        [sys.executable, "-c", LATE], env=environ({}), cwd=CHECKOUT, capture_output=True, text=True,
        timeout=30,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("MainThread True", "")
