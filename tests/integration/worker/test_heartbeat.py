"""greenline.worker.heartbeat, in a process of its own whose hub computes."""

import subprocess
import sys

# The hub's thread gets some 1.5 % of a CPU: it has the lowest priority there, and a child spins.
STARVED = """
import os, threading, time

from greenline.worker.heartbeat import Heartbeat

os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
end_s = time.monotonic() + 19  # after 20 s it is taken for an endless loop
spinning = os.fork()
while not spinning and time.monotonic() < end_s:
    pass
if not spinning:
    os._exit(0)
try:
    notified = []
    heartbeat = Heartbeat(lambda: notified.append(time.monotonic()), 2)
    heartbeat.start()
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    heartbeat.beat()
    while len(notified) < 2 and time.monotonic() < end_s:
        pass
    print(len(notified))
finally:
    os.kill(spinning, 9)
    os.waitpid(spinning, 0)
"""


def test_a_hub_that_computes_on_a_busy_machine_is_alive() -> None:
    """It waits for the CPU most of the time, and the arbiter is notified meanwhile."""
    done = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1


# gunicorn has closed the file by which it is notified: utime() of no descriptor.
CLOSED = """
import time

from greenline.worker.heartbeat import Heartbeat

tried = []

def notify():
    tried.append(time.monotonic())
    raise ValueError("I/O operation on closed file")

Heartbeat(notify, 2).start()
end_s = time.monotonic() + 10
while not tried and time.monotonic() < end_s:
    pass
end_s = time.monotonic() + 1.5
while time.monotonic() < end_s:
    pass
print(len(tried))
"""


def test_a_worker_that_ends_notifies_no_more_and_logs_nothing() -> None:
    """Its thread may find the file closed."""
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n", "")
