"""greenline.postgres.serialize between native threads, whose switches the test makes itself."""

from collections import deque
from typing import Any

import gevent
from gevent import getcurrent

from greenline.postgres.serialize import SerializedConnection


class Switching(deque[Any]):
    """Notes the owner at each removal, in which another thread may run."""

    def __init__(self, conn: SerializedConnection) -> None:
        super().__init__()
        self._conn = conn
        self.owners: list[Any] = []

    def remove(self, entry: Any) -> None:
        self.owners.append(self._conn._owner)
        super().remove(entry)


def unconnected() -> SerializedConnection:
    """Return a connection that asks no server."""
    conn: SerializedConnection = SerializedConnection.__new__(SerializedConnection)
    return conn


def test_a_connection_that_was_released_meanwhile_is_taken_in_one_step() -> None:
    """A thread that asks for it while the entry is removed finds an owner."""
    conn = unconnected()
    waiting = conn._waiters = Switching(conn)
    conn._wait(getcurrent())
    assert waiting.owners == [getcurrent()]
    assert not conn._waiters


def test_two_waiters_are_in_one_queue() -> None:
    """The second one does not replace an empty queue, to which the first one adds itself now."""
    conn = unconnected()
    conn._waiters = before = deque[Any]()
    conn._owner = object()
    waiting = gevent.spawn(conn._wait, getcurrent())
    gevent.sleep(0)
    assert conn._waiters is before
    waiting.kill()
