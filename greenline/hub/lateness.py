"""
When the hub was late: time in which a greenlet could go on, and did not.

The watchdog notes it. A wait for a database that ends while the hub is blocked, or waits for a
processor, takes until the hub runs again; that part of it is not the database's.
"""

from math import inf

MIN_S = 0.005  # a shorter one is not noted
MIN_WAIT_S = 0.05  # of a shorter wait nothing is subtracted
ROUND_S = 0.03  # in which the loop lets go on what could go on when it was late

last = -inf, 0.0  # when it was late for the last time: until when, monotonic, and its seconds
due_s = inf  # when the watchdog's next beat is due, monotonic; never without a watchdog


def at_end_of(begun_s: float, now_s: float) -> float:
    """
    Return for how many seconds the hub was late at the end of a wait, which may have ended earlier.

    A block in the middle of a wait is none of these: the answer came later.

    :param begun_s: when the wait began, monotonic, float.
    :param now_s: when it ended, float.
    """
    late_s = max(now_s - max(due_s, begun_s), 0.0)  # not noted yet
    ended_s, last_s = last
    if now_s - ended_s <= ROUND_S:
        late_s += max(min(last_s, ended_s - begun_s), 0.0)
    return min(late_s, now_s - begun_s)
