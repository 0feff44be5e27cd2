"""
Keep the requests that wait to be admitted, in the order of their arrival.

A small page may overtake long ones, once before each of them. A worker with 16 threads shares its
processor among 16 requests. Where fewer are in progress, because they keep the processor busy as
well, a small page would wait in the queue for the ends of long ones that threads would start at
once.
"""

import socket
from collections import deque
from collections.abc import Callable
from time import monotonic

from greenline.hub.disconnect import disconnected

# Seconds between two looks for clients that have disconnected, one system call for all; at least so
# many times what the last look took. To watch each of them in the loop costs each request more, and
# so does a look at each before it is admitted: 3 us.
CHECK_S, CHECK_PAUSE = 0.1, 50


class QueuedRequest:
    """
    A request in the queue, until it is admitted or has an *error*.

    :param sock: the client's socket.
    :param came_s: when it came, in monotonic seconds.
    :param until_s: when it has waited too long, in monotonic seconds.
    :param resume: is called when the wait has ended.
    :param takes_turn: whether it waits for its turn to compute, bool, otherwise for a place.
    :param is_long: whether its page is known to compute for long, bool. Default False.
    """

    __slots__ = (
        "came_s", "error", "is_admitted", "is_long", "resume", "sock", "takes_turn", "until_s",
    )  # fmt: skip

    def __init__(
        self, sock: socket.socket, came_s: float, until_s: float, resume: Callable[[], object],
        takes_turn: bool, is_long: bool = False,
    ) -> None:  # fmt: skip
        self.sock = sock
        self.came_s = came_s
        self.until_s = until_s
        self.resume = resume
        self.takes_turn = takes_turn
        self.is_long = is_long
        self.is_admitted = False
        self.error: BaseException | None = None

    def refuse(self, error: BaseException) -> None:
        """Have it raise *error*."""
        self.takes_turn = False
        self.error = error
        self.resume()


class Queue:
    """The requests that wait. Call from one thread."""

    def __init__(self) -> None:
        self._requests: deque[QueuedRequest] = deque()
        self.for_place = 0  # how many of them wait for a place, and not for their turn
        self._small = 0  # how many of all are of pages that are not known to be long
        self._has_overtaken = False  # the last one that got a place was not the oldest
        self._next_check_s = 0.0  # the time of the next look for disconnected clients

    def __len__(self) -> int:
        return len(self._requests)

    def append(self, queued: QueuedRequest) -> None:
        """Add a request that has come now."""
        self._requests.append(queued)
        self.for_place += not queued.takes_turn
        self._small += not queued.is_long

    def remove(self, queued: QueuedRequest) -> None:
        """Remove a request; ValueError: it is not in the queue."""
        self._requests.remove(queued)
        self.for_place -= not queued.takes_turn
        self._small -= not queued.is_long

    def end_turn(self, queued: QueuedRequest) -> None:
        """Let a request whose turn has come wait for a place."""
        queued.takes_turn = False
        self.for_place += 1

    def oldest(self) -> QueuedRequest:
        """Return the request that has waited longest."""
        return self._requests[0]

    def oldest_for_place(self) -> QueuedRequest:
        """Return the request that has waited longest of those that wait for a place."""
        return next(each for each in self._requests if not each.takes_turn)

    def take_for_place(self) -> QueuedRequest:
        """Remove and return the next one to get a place of those that wait for one."""
        taken = self.oldest_for_place()
        overtakes = taken.is_long and bool(self._small) and not self._has_overtaken
        if overtakes:
            small = (each for each in self._requests if not (each.takes_turn or each.is_long))
            taken = next(small, taken)
        self._has_overtaken = overtakes
        self.remove(taken)
        return taken

    def take_late(self, now: float) -> QueuedRequest | None:
        """
        Remove and return the oldest request if it has waited too long, else return None.

        :param now: monotonic seconds, float.
        """
        if not self._requests or self._requests[0].until_s > now:
            return None
        self.remove(late := self._requests[0])
        return late

    def take_disconnected(self) -> list[QueuedRequest]:
        """Remove and return those whose clients have disconnected; some calls look for none."""
        begun_s = monotonic()
        if begun_s < self._next_check_s:
            return []
        gone = set(disconnected({queued.sock for queued in self._requests}))
        taken = [queued for queued in self._requests if gone and queued.sock in gone]
        if taken:
            self._requests = deque(each for each in self._requests if each.sock not in gone)
            self.for_place = sum(not each.takes_turn for each in self._requests)
            self._small = sum(not each.is_long for each in self._requests)
        ended_s = monotonic()
        self._next_check_s = ended_s + max(CHECK_S, CHECK_PAUSE * (ended_s - begun_s))
        return taken
