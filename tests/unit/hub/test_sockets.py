"""greenline.hub.sockets: what a socket of the standard library does, a patched one does as well."""

import socket
from typing import Any

import gevent
import pytest


@pytest.mark.parametrize(
    "receive",
    [
        lambda sock, flags: sock.recv(1, flags),
        lambda sock, flags: sock.recv_into(bytearray(1), 1, flags),
        lambda sock, flags: sock.recvfrom(1, flags)[0],
        lambda sock, flags: sock.recvfrom_into(bytearray(1), 1, flags)[0],
    ],
    ids=["recv", "recv_into", "recvfrom", "recvfrom_into"],
)
def test_a_look_at_a_connection_is_no_wait(receive: Any) -> None:
    flags = socket.MSG_DONTWAIT | socket.MSG_PEEK
    one, other = socket.socketpair()
    with one, other:
        with gevent.Timeout(10), pytest.raises(BlockingIOError):
            receive(one, flags)
        gevent.spawn_later(0.01, other.sendall, b"x")
        receive(one, socket.MSG_PEEK)  # waits
        receive(one, flags)
        assert one.recv(1) == b"x"
        other.close()
        assert not receive(one, flags)


@pytest.mark.parametrize("how", [socket.SHUT_RD, socket.SHUT_RDWR], ids=["reading", "both"])
def test_a_shutdown_is_the_end_of_what_another_one_reads(how: int) -> None:
    one, other = socket.socketpair()
    with one, other:
        reader = gevent.spawn(one.recv, 10)
        gevent.sleep(0)
        one.shutdown(how)
        assert reader.get(timeout=10) == b""


@pytest.mark.parametrize("how", [socket.SHUT_WR, socket.SHUT_RDWR], ids=["sending", "both"])
def test_a_shutdown_ends_a_wait_to_send(how: int) -> None:
    one, other = socket.socketpair()
    with one, other:
        writer = gevent.spawn(one.sendall, b"x" * 10_000_000)
        gevent.sleep(0)
        one.shutdown(how)
        with pytest.raises(OSError, match=r"Broken pipe|File descriptor was closed"):
            writer.get(timeout=10)


def test_a_listener_that_is_shut_down_accepts_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = gevent.spawn(listener.accept)
        gevent.sleep(0)
        listener.shutdown(socket.SHUT_RDWR)
        with pytest.raises(OSError, match="Invalid argument"):
            acceptor.get(timeout=10)


def test_what_is_sent_at_once_or_not_is_no_wait() -> None:
    one, other = socket.socketpair()
    with one, other, gevent.Timeout(10), pytest.raises(BlockingIOError):
        while True:
            one.send(b"x" * 100_000, socket.MSG_DONTWAIT)


def test_with_a_timeout_it_is_a_wait() -> None:
    """As of the standard library."""
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(0.01)
        with pytest.raises(TimeoutError):
            one.recv(1, socket.MSG_DONTWAIT)


def test_one_of_datagrams_is_waited_for_no_more_after_a_shutdown() -> None:
    """There is no end to be read: a look at it would follow another one for ever."""
    one, other = socket.socketpair(type=socket.SOCK_DGRAM)
    with one, other:
        reader = gevent.spawn(one.recv, 10)
        gevent.sleep(0)
        one.shutdown(socket.SHUT_RDWR)
        with pytest.raises(OSError, match="descriptor was closed"):
            reader.get(timeout=10)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_to_the_own_host_is_made_or_refused_without_a_wait(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """The event would be there already; a library may try a server that is down each time."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as server:
        try:
            server.bind((host, 0))
        except OSError:
            pytest.skip("no such address here")
        monkeypatch.setattr(socket.socket, "_wait", lambda *_: pytest.fail("it waits"))
        for timeout_s in (None, 10):
            with pytest.raises(ConnectionRefusedError, match="Connection refused"):
                socket.create_connection(server.getsockname()[:2], timeout_s)
        server.listen()
        socket.create_connection(server.getsockname()[:2]).close()


def test_a_connection_that_the_own_host_does_not_accept_yet_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, socket.socket() as first:
        first.connect(server.getsockname())
        with socket.socket() as client:
            client.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.connect(server.getsockname())
        server.accept()[0].close()
        socket.create_connection(server.getsockname(), 10).close()


def test_a_socket_that_must_not_wait_is_not_connected_yet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.connect(server.getsockname())
