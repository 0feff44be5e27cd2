"""A client that keeps the worker waiting costs a slot for no longer than the limit."""

import errno
import socket
import time
from collections.abc import Iterator

import pytest

from tests.helpers.support import Service, service, wait_until

LIMIT_S = 0.5
# A sweep twice a second, and a second.
SLACK_S = 1.5
TINY = {
    "GREENLINE_HEAD_TIMEOUT": "0.5",
    "GREENLINE_BODY_READ_TIMEOUT": "0.5",
    "GREENLINE_BODY_TIMEOUT": "1",
    "GREENLINE_WRITE_TIMEOUT": "0.5",
    "GREENLINE_MAX_BODY_BYTES": "1000000",
}
ARGUMENTS = ("--worker-class=greenline.worker.GreenWorker", "--keep-alive=1")
PARSERS = pytest.mark.parametrize(
    "header",
    [pytest.param("", id="fast parser"), pytest.param("Expect: 100-continue\r\n", id="fallback")],
)


@pytest.fixture(scope="module")
def legacy() -> Iterator[Service]:
    """A plain application on the worker, with limits of half a second."""
    with service(
        TINY, *ARGUMENTS, target="tests.e2e.legacy:app", config="tests/e2e/plain_conf.py"
    ) as running:
        yield running


class Raw:
    """A client that says what it wants, when it wants."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.started = time.monotonic()

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, text: str | bytes) -> None:
        self.socket.sendall(text.encode() if isinstance(text, str) else text)

    def trickle(self, text: str, pause_s: float = 0.1) -> None:
        """Say it byte by byte, until the worker has had enough."""
        self.socket.settimeout(pause_s)
        for byte in text.encode():
            try:
                self.socket.sendall(bytes([byte]))
                if self.socket.recv(1, socket.MSG_PEEK) is not None:
                    return
            except TimeoutError:
                continue
            except OSError:
                return

    def hear(self) -> bytes:
        """Return all that comes until the worker closes."""
        self.socket.settimeout(20)
        heard = bytearray()
        while data := self.socket.recv(65_536):
            heard += data
        return bytes(heard)

    @property
    def took_s(self) -> float:
        return time.monotonic() - self.started


def post(path: str, *headers: str) -> str:
    return f"POST {path} HTTP/1.1\r\nHost: h\r\n" + "".join(f"{line}\r\n" for line in headers)


def status_of(heard: bytes) -> bytes:
    """Return the last status line's code."""
    return heard.rpartition(b"HTTP/1.1 ")[2][:3]


def test_a_head_that_trickles_is_cut(legacy: Service) -> None:
    """Byte by byte, each in time, the whole is not: the client gets an error."""
    with Raw(legacy.port) as client:
        client.trickle("GET / HTTP/1.1\r\nA: " + "b" * 100)
        assert status_of(client.hear()) == b"408"
        assert LIMIT_S < client.took_s < LIMIT_S + SLACK_S


def test_a_second_head_that_trickles_is_cut(legacy: Service) -> None:
    """What held for the first request of a connection holds for the others."""
    with Raw(legacy.port) as client:
        client.say("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        client.trickle("GET / HTTP/1.1\r\nA: " + "b" * 100)
        assert client.hear().count(b"HTTP/1.1 ") in (1, 2)
        assert client.took_s < LIMIT_S + SLACK_S


@pytest.mark.parametrize(
    "said",
    [pytest.param("", id="nothing"), pytest.param("GET / HTTP/1.1\r\nHost: h\r\n\r\n", id="one")],
)
def test_an_idle_client_is_left_without_a_word(legacy: Service, said: str) -> None:
    """Before a request and between two, silence ends the connection, and nothing is answered."""
    with Raw(legacy.port) as client:
        client.say(said)
        assert client.hear().count(b"HTTP/1.1") == (1 if said else 0)
        assert client.took_s < LIMIT_S + SLACK_S


@PARSERS
def test_a_body_that_stops_is_cut(legacy: Service, header: str) -> None:
    """The application gets an error where it reads, the client 408."""
    with Raw(legacy.port) as client:
        client.say(post("/read", "Content-Length: 10") + header + "\r\nabc")
        assert status_of(client.hear()) == b"408"
        assert client.took_s < LIMIT_S + SLACK_S


@PARSERS
@pytest.mark.parametrize(
    "framing",
    [
        pytest.param("Content-Length: 1000\r\n", id="length"),
        pytest.param("Transfer-Encoding: chunked\r\n", id="chunked"),
    ],
)
def test_a_body_that_trickles_is_cut(legacy: Service, header: str, framing: str) -> None:
    """Each read is in time; the whole body is not."""
    with Raw(legacy.port) as client:
        client.say(post("/read") + framing + header + "\r\n3e8\r\n")
        if header:
            assert client.socket.recv(100).startswith(b"HTTP/1.1 100 ")
        client.trickle("x" * 1000, pause_s=0.2)
        assert status_of(client.hear()) == b"408"
        assert client.took_s < 2 * LIMIT_S + SLACK_S


@PARSERS
def test_an_unread_body_that_does_not_come_ends_the_connection(
    legacy: Service, header: str
) -> None:
    """The answer is sent; the next request cannot begin before the body's end."""
    with Raw(legacy.port) as client:
        client.say(post("/unread", "Content-Length: 10") + header + "\r\nabc")
        assert status_of(client.hear()) == b"200"
        assert client.took_s < LIMIT_S + SLACK_S


def test_an_application_that_swallows_the_error_does_not_hide_it(legacy: Service) -> None:
    """Its 500 was the client's fault: the client gets 408."""
    with Raw(legacy.port) as client:
        client.say(post("/swallow", "Content-Length: 10") + "\r\nabc")
        assert status_of(client.hear()) == b"408"


@pytest.mark.parametrize("path", ["/endless", "/large", "/file"])
def test_a_client_that_does_not_read_is_cut(legacy: Service, path: str) -> None:
    """Once the kernel's buffers are full the worker waits for half a second; then it resets."""
    closed = int(legacy.get("/closed").body)
    with Raw(legacy.port) as client:
        client.say(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")
        error = wait_until(
            lambda: client.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "the end", 10
        )
        assert error == errno.ECONNRESET
        # Once more the limit and a sweep: the client's kernel may take 64 KiB after the first wait.
        assert client.took_s < LIMIT_S + SLACK_S + 1
    assert int(legacy.get("/closed").body) == closed + (path == "/endless")


@pytest.mark.parametrize("size", [1 << 20, 1 << 17], ids=["1 MiB", "128 KiB"])
def test_a_client_that_reads_slowly_gets_all_of_it(legacy: Service, size: int) -> None:
    """As long as it takes 64 KiB in half a second, it may take its time."""
    with Raw(legacy.port) as client:
        client.say("GET /large HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        heard = 0
        while data := client.socket.recv(size):
            heard += len(data)
            if client.took_s < 4 * LIMIT_S:
                time.sleep(0.1)
        assert heard > 65_536_000


@PARSERS
def test_a_body_too_large_by_its_length_is_refused_at_once(legacy: Service, header: str) -> None:
    """The application does not start, and the answer arrives although the client still sends."""
    started = legacy.get("/started").body
    with Raw(legacy.port) as client:
        client.say(post("/read", "Content-Length: 3000000") + header + "\r\n")
        client.say(b"x" * 3_000_000)
        heard = client.hear()
        assert heard.startswith(b"HTTP/1.1 413 ")
        assert client.took_s < SLACK_S
    assert legacy.get("/started").body == started


@PARSERS
@pytest.mark.parametrize("path", ["/read", "/swallow"])
def test_a_body_too_large_by_its_chunks_is_refused(legacy: Service, header: str, path: str) -> None:
    """Its size is known when it is reached; the client gets 413 whatever the application does."""
    with Raw(legacy.port) as client:
        client.say(post(path, "Transfer-Encoding: chunked") + header + "\r\n")
        client.say((b"186a0\r\n" + b"x" * 100_000 + b"\r\n") * 12 + b"0\r\n\r\n")
        assert status_of(client.hear()) == b"413"
        assert client.took_s < SLACK_S


def test_slow_clients_leave_their_slots_in_time() -> None:
    """With all slots taken by the slow, the next client is served once they are cut."""
    with service(
        TINY, *ARGUMENTS, "--worker-connections=4",
        target="tests.e2e.legacy:app", config="tests/e2e/plain_conf.py",
    ) as running:  # fmt: skip
        slow = [Raw(running.port) for _ in range(4)]
        slow[0].say("GET / HT")
        slow[1].say(post("/read", "Content-Length: 10") + "\r\nabc")
        slow[2].say(post("/read", "Transfer-Encoding: chunked") + "\r\n5\r\nab")
        slow[3].say("GET /endless HTTP/1.1\r\nHost: h\r\n\r\n")
        asked = time.monotonic()
        assert running.get("/").status == 200
        assert time.monotonic() - asked < LIMIT_S + SLACK_S
        for client in slow:
            client.socket.close()


@pytest.mark.parametrize("limit", ["5", "auto"])
def test_slow_uploads_take_no_place_of_the_limiter(limit: str) -> None:
    """A request that waits for its client is not in progress: others are worked on."""
    with service(
        {"GREENLINE_MAX_IN_PROGRESS": limit}, *ARGUMENTS, "--workers=1",
        target="tests.e2e.legacy:app", config="tests/e2e/plain_conf.py",
    ) as running:  # fmt: skip
        head = b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx"
        slow = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(40)]
        for one in slow:
            one.sendall(head)
        wait_until(lambda: running.get("/started").body == b"40", "all of them to be begun")
        assert [running.get("/").status for _ in range(10)] == [200] * 10
        for one in slow:
            one.sendall(b"x" * 99)
            assert one.recv(1000).endswith(b"100")
            one.close()
