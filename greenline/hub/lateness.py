"""
When the hub was late: time in which a greenlet could go on, and did not.

The watchdog notes it. A wait for a database that ends while the hub is blocked, or waits for a
processor, takes until the hub runs again; that part of it is not the database's.
"""

from collections import deque
from math import inf

MIN_S = 0.005  # a shorter one is not noted
MIN_WAIT_S = 0.05  # of a shorter wait nothing is subtracted

noted: deque[tuple[float, float]] = deque(maxlen=256)  # when it ended, monotonic, and its seconds
due_s = inf  # when the watchdog's next beat is due, monotonic; never without a watchdog


def within(begun_s: float, now_s: float) -> float:
    """Return the seconds between two times, monotonic, in which the hub was late."""
    late_s = max(now_s - max(due_s, begun_s), 0.0)  # not noted yet
    for ended_s, each_s in reversed(noted):
        if ended_s <= begun_s:
            break
        late_s += min(each_s, ended_s - begun_s)
    return min(late_s, now_s - begun_s)
