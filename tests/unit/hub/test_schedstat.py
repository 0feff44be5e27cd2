"""greenline.hub.schedstat: what the kernel counts of a thread."""

import os
import subprocess
import sys
from time import monotonic, process_time

import pytest

from greenline.hub import schedstat
from greenline.hub.schedstat import QueuedTime


def test_the_wait_for_a_processor_that_another_process_uses() -> None:
    queued = QueuedTime()
    all_processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_processors)})
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before_s, begun_s, used_s = queued.seconds(), monotonic(), process_time()
        while process_time() < used_s + 0.2:
            pass
        waited_s = queued.seconds() - before_s
        assert 0.05 < waited_s <= monotonic() - begun_s
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, all_processors)
        queued.close()


def test_without_the_kernels_numbers_it_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: int) -> int:
        raise FileNotFoundError

    monkeypatch.setattr(schedstat, "open_of", missing)
    queued = QueuedTime()
    assert queued.seconds() == 0.0
    queued.close()
