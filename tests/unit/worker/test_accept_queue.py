"""greenline.worker.accept_queue: the kernel counts what waits in a listening socket."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from math import inf
from pathlib import Path

import pytest

from greenline.worker import accept_queue

LIMIT = 4


@pytest.fixture(params=["tcp", "unix"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    """A socket that accepts nothing by itself."""
    if request.param == "tcp":
        sock = socket.create_server(("127.0.0.1", 0), backlog=LIMIT)
    else:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(tmp_path / "s"))
        sock.listen(LIMIT)
    with sock:
        yield sock


def test_who_waits_is_counted_until_the_queue_is_full(listening: socket.socket) -> None:
    with ExitStack() as clients:
        for count in range(LIMIT):
            assert accept_queue.length(listening) == count
            client = clients.enter_context(socket.socket(listening.family))
            client.connect(listening.getsockname())
        assert accept_queue.length(listening) == inf
        listening.accept()[0].close()
        assert accept_queue.length(listening) == LIMIT - 1


def test_a_socket_of_another_kind_has_an_unknown_number() -> None:
    """As the kernels have that do not count a unix socket's."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with near, far:
        assert accept_queue.length(near) == inf
