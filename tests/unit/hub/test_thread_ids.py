"""Threads that are greenlets have numbers of their own, as native threads have."""

import subprocess
import sys

from tests.helpers.support import CHECKOUT, environ

SCRIPT = """
from greenline.patch import patch_all; patch_all()
import os, threading, time
import gevent

started = [threading.Thread(target=time.sleep, args=(0.05,)) for _ in range(3)]
for each in started:
    each.start()
alone = gevent.spawn(lambda: threading.current_thread().native_id)
numbers = {each.native_id for each in threading.enumerate()} | {alone.get()}
print(len(numbers), threading.main_thread().native_id == threading.get_native_id() == os.getpid())
for each in started:
    each.join()
print({each.native_id for each in started} & {each.native_id for each in threading.enumerate()})
"""


def test_each_has_its_own_and_none_lives_on() -> None:
    """The main thread has the system's."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=CHECKOUT,
        env=environ({}),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout == "5 True\nset()\n", done.stderr
