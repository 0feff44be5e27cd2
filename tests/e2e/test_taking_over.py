"""Applications that take over their client's socket, as websockets do."""

import socket

from tests.e2e.hosting import hosting
from tests.helpers.support import wait_until


def test_a_socket_that_is_taken_over_is_no_error() -> None:
    """It is a success for the limiter; a view that fails without an answer is an error."""
    with hosting("tests.e2e.taking_over:app") as running:
        before = len(running.get("/").json)
        for path in ("/returns", "/raises", "/fails"):
            with socket.create_connection(("127.0.0.1", running.port), timeout=30) as client:
                client.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
                assert client.recv(65_536)
        # Its own record comes after each answer of this one.
        learnt = wait_until(
            lambda: len(found := running.get("/").json) > before + 3 and found, "the three"
        )
    assert learnt.count(False) == 1
