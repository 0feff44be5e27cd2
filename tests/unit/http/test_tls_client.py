"""greenline.http.tls_client between two ends of a TLS connection."""

import ssl
from contextlib import closing
from pathlib import Path

import gevent
from gevent import socket
from gevent.ssl import SSLContext

from greenline import settings
from greenline.http.tls_client import TlsClient
from tests.helpers.certificate import certify, needs_openssl


@needs_openssl
def test_bytes_that_tls_has_decrypted_are_input(tmp_path: Path) -> None:
    """The kernel has none left, and a stop that looked there would lose the next request."""
    arguments, _ = certify(tmp_path)
    certificate, key = (argument.partition("=")[2] for argument in arguments)
    server, trusting = SSLContext(ssl.PROTOCOL_TLS_SERVER), SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(certificate, key)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    ours, theirs = socket.socketpair()
    connecting = gevent.spawn(trusting.wrap_socket, theirs)
    with closing(server.wrap_socket(ours, server_side=True)) as sock:
        client = TlsClient(sock, settings.limits())
        with closing(connecting.get(timeout=30)) as peer:
            assert not client.has_input()
            peer.sendall(b"x" * 8192 + b"GET / HTTP/1.1")
            assert client.recv(8192, 30.0) == b"x" * 8192
            assert client.has_input()
            assert client.recv(8192, 30.0) == b"GET / HTTP/1.1"
            assert not client.has_input()
        client.release()
    assert not client.has_input()
