"""A chunked body, read by greenlets of one thread from a real socket."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent import Greenlet
from gevent.socket import wait_read
from gunicorn.http.unreader import SocketUnreader

from greenline.errors import DeadlineExceeded
from greenline.http import body as http_body
from greenline.http.body import BodyCut, BoundedChunks, drain, is_unread
from greenline.http.gunicorn_compat import Body
from greenline.hub import deadline

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The client's end, and the worker's."""
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def chunked(sock: Any, came: bytes = b"") -> Body:
    """Return the body that *came* begins and *sock* goes on with."""
    unreader = SocketUnreader(sock)
    unreader.unread(came)
    request = SimpleNamespace(trailers=[])
    return Body(BoundedChunks(request, unreader, 10**9, note=lambda error: None))


def test_many_small_chunks_let_the_others_run(pair: tuple[socket.socket, socket.socket]) -> None:
    """Who waits for input runs often, though all of the body has come."""
    client, worker = pair
    turns = []

    def look() -> None:
        while True:
            wait_read(worker.fileno())
            turns.append("looked")

    client.sendall(b"x")
    other = Greenlet.spawn(look)
    gevent.sleep(0)
    body = chunked(None, b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")
    assert len(body.read()) == 20_000
    other.kill()
    assert len(turns) > 20


def test_a_body_that_a_deadline_cut_is_neither_whole_nor_read_on(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """The rest of a chunk would be taken for the next request."""
    client, worker = pair
    body = chunked(worker, b"3\r\nabc\r\n%x\r\n" % len(HIDDEN))
    with pytest.raises(DeadlineExceeded), deadline.limit(0.05):
        body.read()
    client.sendall(HIDDEN + b"\r\n0\r\n\r\n")
    assert is_unread(body)
    assert not drain(body)
    with pytest.raises(BodyCut):
        body.read()


def test_the_rest_of_a_body_that_nothing_needs_is_not_read_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that goes on sending keeps no greenlet busy."""
    monkeypatch.setattr(http_body, "DRAIN_BYTES", 100)
    assert drain(chunked(None, b"63\r\n" + bytes(99) + b"\r\n0\r\n\r\n"))
    assert not drain(chunked(None, b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n"))
