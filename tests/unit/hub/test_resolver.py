"""greenline.hub.resolver: a numeric address is resolved without a thread."""

import _socket
import socket
from collections.abc import Iterator

import gevent
import pytest
from gevent.monkey import get_original


@pytest.fixture
def all_threads_busy() -> Iterator[None]:
    """Keep the threads of gevent's resolver busy, as look-ups without an answer do."""
    pool = gevent.get_hub().threadpool
    held = get_original("_thread", "allocate_lock")()

    def wait() -> None:
        with held:
            pass

    with held:
        waiting = [pool.spawn(wait) for _ in range(pool.maxsize)]
        yield
    gevent.joinall(waiting, timeout=10)


@pytest.mark.usefixtures("all_threads_busy")
def test_a_numeric_address_waits_for_no_look_up() -> None:
    """A name that is looked up at the same time waits for one of the threads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with gevent.Timeout(5), socket.create_connection(("127.0.0.1", port)) as conn:
            assert conn.getpeername() == ("127.0.0.1", port)
        with pytest.raises(gevent.Timeout), gevent.Timeout(0.1):
            socket.create_connection(("localhost", port)).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", None, "", b"127.0.0.1"])
@pytest.mark.parametrize("port", [80, "80", "http", None], ids=["int", "number", "name", "none"])
@pytest.mark.parametrize("family", [socket.AF_UNSPEC, socket.AF_INET], ids=["any", "v4"])
def test_the_answer_is_that_of_the_system(
    host: str | bytes | None, port: int | str | None, family: socket.AddressFamily
) -> None:
    """And so is the error."""
    answers = []
    for ask in (_socket.getaddrinfo, socket.getaddrinfo):
        try:
            answers.append(ask(host, port, family, socket.SOCK_STREAM, 0, socket.AI_CANONNAME))
        except OSError as error:
            answers.append(repr(error))
    assert answers[0] == answers[1]
