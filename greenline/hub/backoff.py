"""Exponential back-off with jitter: pauses between attempts that double and are partly random."""

import random

import gevent

from greenline.hub.deadline import wait_in


class Backoff:
    """
    The pauses of one loop of attempts.

    :param first_s: the longest first pause, seconds, float. Default 0.001.
    :param max_s: the longest of all pauses, seconds, float. Default 0.05.
    :param jitter: the random part of each pause, float from 0 to 1. Default 0.5: a pause lasts from
        half of its longest time to all of it.
    """

    def __init__(self, first_s: float = 0.001, max_s: float = 0.05, jitter: float = 0.5) -> None:
        self._longest_s = first_s / 2
        self._max_s = max_s
        self._jitter = jitter

    @property
    def is_at_max(self) -> bool:
        """Return whether the latest pause was one of the longest."""
        return self._longest_s == self._max_s

    def next_s(self) -> float:
        """Return the seconds of the next pause."""
        self._longest_s = min(2 * self._longest_s, self._max_s)
        # At random, so that greenlets and processes that failed together do not meet again at once.
        return random.uniform((1 - self._jitter) * self._longest_s, self._longest_s)  # noqa: S311

    def wait(self) -> None:
        """
        Wait in the hub for the next pause.

        :raises DeadlineExceeded: the request's deadline has passed.
        """
        wait_in(gevent.sleep, self.next_s())
