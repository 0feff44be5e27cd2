"""greenline.http.plain_client on a pair of sockets."""

import socket
from collections.abc import Iterator
from contextlib import closing
from time import monotonic
from typing import Any

import gevent
import pytest
from gevent.event import AsyncResult

from greenline import settings
from greenline.http.client import NEVER, IdleTimeout
from greenline.http.plain_client import PlainClient, Sweep

IDLE_S = 1.0


class Deceptive:
    """A socket that is readable and has nothing to read, as after a wrong checksum."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def recv(self, size: int) -> bytes:
        self.asked += 1
        self._raw.recv(size)
        raise BlockingIOError


@pytest.fixture
def pair() -> Iterator[tuple[PlainClient, socket.socket]]:
    """A client, and its end of the connection."""
    sweep = Sweep()
    sweep.start()
    ours, theirs = socket.socketpair()
    with closing(theirs), closing(ours):
        client = PlainClient(ours, settings.limits(), sweep)
        yield client, theirs
        client.release()


def tease(theirs: socket.socket) -> None:
    while True:
        theirs.send(b"x")
        gevent.sleep(0.05)


def test_the_time_for_a_request_goes_on_while_there_is_nothing_to_read(
    pair: tuple[PlainClient, socket.socket],
) -> None:
    """However often the socket becomes readable, the client is given up; by a greenlet."""
    client, theirs = pair
    client._raw = deceptive = Deceptive(client._raw)
    teasing = gevent.spawn(tease, theirs)
    started = monotonic()
    try:
        with gevent.Timeout(10 * IDLE_S), pytest.raises(IdleTimeout):
            client.recv_request(IDLE_S)
    finally:
        teasing.kill()
    assert monotonic() - started >= IDLE_S
    assert deceptive.asked > 2


def test_in_the_hub_the_time_goes_on_too(pair: tuple[PlainClient, socket.socket]) -> None:
    """The end of it is an empty request."""
    client, theirs = pair
    client._raw = deceptive = Deceptive(client._raw)
    over: AsyncResult[bytes] = AsyncResult()
    client.on_request = over.set
    teasing = gevent.spawn(tease, theirs)
    started = monotonic()
    try:
        client.expect_request(started + IDLE_S)
        assert over.get(timeout=10 * IDLE_S) == b""
    finally:
        teasing.kill()
    assert monotonic() - started >= IDLE_S
    assert deceptive.asked > 2


def test_what_came_before_the_hub_looked_is_in_time(
    pair: tuple[PlainClient, socket.socket],
) -> None:
    """The process was stopped, for instance: the wait is over, and the request has come."""
    client, theirs = pair
    over: AsyncResult[bytes] = AsyncResult()
    client.on_request = over.set
    theirs.send(b"GET")
    client.expect_request(monotonic() - 1)
    client._reading.interrupt()  # before the loop has seen the bytes
    assert over.get(timeout=10) == b"GET"
    assert client._reading.until == NEVER


def test_a_wait_that_could_not_start_is_not_interrupted_later(
    pair: tuple[PlainClient, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its greenlet would be thrown into wherever it is by then."""
    client, _ = pair
    client.on_request = lambda data: None

    class Broken:
        def start(self, callback: Any) -> None:
            raise ValueError("the loop is gone")

    monkeypatch.setattr(client._reading, "watcher", Broken())
    with pytest.raises(ValueError, match="the loop is gone"):
        client.expect_request(0.0)
    assert client._reading.until == NEVER
