"""greenline.hub.taken_socket: the first send of an application is noted."""

import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import gevent.socket
import pytest

from greenline.hub import taken_socket

SENDS: list[Callable[[socket.socket], object]] = [
    lambda sock: sock.send(b"x"),
    lambda sock: sock.sendall(b"x"),
    lambda sock: sock.sendmsg([b"x"]),
]


@pytest.fixture
def ends() -> Iterator[tuple[Any, Any]]:
    """Both ends of a connection."""
    near, far = gevent.socket.socketpair()
    with near, far:
        yield near, far


@pytest.mark.parametrize("send", SENDS, ids=["send", "sendall", "sendmsg"])
def test_a_socket_is_taken_by_the_first_send(
    send: Callable[[socket.socket], object], ends: tuple[Any, Any]
) -> None:
    """The bytes arrive, and the socket has its own class again."""
    near, far = ends
    own = type(near)
    taken_socket.watch(near)
    near.getsockname()
    assert not taken_socket.is_taken(near)
    assert isinstance(near, own)
    send(near)
    assert taken_socket.is_taken(near)
    assert type(near) is own
    assert far.recv(10) == b"x"


@pytest.mark.parametrize("name", ["dup", "detach"])
def test_a_socket_that_is_handed_out_is_taken(name: str, ends: tuple[Any, Any]) -> None:
    """The application may send over a duplicate."""
    near = ends[0]
    taken_socket.watch(near)
    handed_out = getattr(near, name)()
    assert taken_socket.is_taken(near)
    if name == "dup":
        handed_out.close()
    else:
        os.close(handed_out)


def test_a_method_that_the_application_keeps_sends_more_than_once(ends: tuple[Any, Any]) -> None:
    """As a library does that looks ``send`` up once."""
    near, far = ends
    own = type(near)
    taken_socket.watch(near)
    send, sendmsg = near.send, near.sendmsg
    for _ in range(2):
        send(b"x")
        sendmsg([b"x"])
    assert type(near) is own
    assert far.recv(10) == b"xxxx"


def test_without_a_send_the_class_comes_back(ends: tuple[Any, Any]) -> None:
    """The socket of a connection that stays is watched again for the next upgrade."""
    near = ends[0]
    own = type(near)
    for _ in range(2):
        taken_socket.watch(near)
        taken_socket.unwatch(near)
        assert type(near) is own
