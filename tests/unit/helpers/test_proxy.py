"""The proxy of the tests goes on after what it does to a connection."""

import socket

import gevent
from gevent.server import StreamServer

from tests.helpers.proxy import Proxy


def _echo(client: socket.socket, _: object) -> None:
    while data := client.recv(100):
        client.sendall(data)


def test_it_accepts_a_client_while_it_resets_another_one() -> None:
    """The connection that it has reset is not one that is open."""
    server = StreamServer(("127.0.0.1", 0), _echo)
    server.start()
    with gevent.Timeout(20), Proxy(("127.0.0.1", server.server_port)) as proxy:
        address = ("127.0.0.1", proxy.port)
        with socket.create_connection(address) as first:
            first.sendall(b"hello")
            assert first.recv(100) == b"hello"
            proxy.lose(b"bye")
            first.sendall(b"bye")
            others = []
            for _ in range(4):
                gevent.sleep(0)
                others.append(socket.create_connection(address))
            for other in others:
                with other:
                    other.sendall(b"hello")
                    assert other.recv(100) == b"hello"
    server.stop()
