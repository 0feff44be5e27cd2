"""A client with TLS that keeps the worker waiting blocks no other client."""

import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.e2e.recorded import LARGE_BYTES
from tests.helpers.certificate import certify, needs_openssl
from tests.helpers.support import Service, service, wait_until

WORKER = ("--worker-class=greenline.worker.GreenWorker", "--workers=1")
PLACES = 5

pytestmark = needs_openssl


class Served(NamedTuple):
    """A plain application on a worker with few places, and how to talk to it."""

    running: Service
    trust: ssl.SSLContext

    def connect(self) -> ssl.SSLSocket:
        sock = socket.create_connection(("127.0.0.1", self.running.port), timeout=60)
        return self.trust.wrap_socket(sock)

    def get(self, path: str) -> bytes:
        """Return the whole answer."""
        with closing(self.connect()) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
            return b"".join(iter(lambda: client.recv(65_536), b""))

    def is_alive(self) -> bool:
        try:
            return b" 200 OK" in self.get("/")
        except OSError:
            return False


@contextmanager
def serving(folder: Path, target: str, **environ: str) -> Iterator[Served]:
    """Run the worker with few places, and none to wait in."""
    tls, trust = certify(folder)
    with service(
        {**environ, "GREENLINE_MAX_IN_PROGRESS": str(PLACES), "GREENLINE_MAX_WAITING": "0"},
        *WORKER, *tls,
        target=target, config="tests/e2e/plain_conf.py", wait=False,
    ) as running:  # fmt: skip
        served = Served(running, trust)
        wait_until(served.is_alive, "an answer over TLS")
        yield served


def test_slow_uploads_take_no_place_of_the_limiter(tmp_path: Path) -> None:
    """A request that waits for its body is not in progress; each is answered in the end."""
    with serving(tmp_path, "tests.e2e.legacy:app") as served:
        slow = [served.connect() for _ in range(4 * PLACES)]
        for one in slow:
            one.sendall(b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx")
        wait_until(lambda: served.get("/started").endswith(b"%d" % len(slow)), "all to be begun")
        assert all(b" 200 OK" in served.get("/") for _ in range(2 * PLACES))
        for one in slow:
            one.sendall(b"x" * 99)
            assert one.recv(1000).endswith(b"100")
            one.close()


def test_slow_readers_take_no_place_of_the_limiter(tmp_path: Path) -> None:
    """An answer that is not taken blocks no other client, and arrives whole when it is."""
    with serving(tmp_path, "tests.e2e.legacy:app") as served:
        slow = [ask_for_more_than_is_read(served) for _ in range(2 * PLACES)]
        assert all(b" 200 OK" in served.get("/") for _ in range(2 * PLACES))
        assert sum(map(len, iter(lambda: slow[0].recv(1 << 20), b""))) > LARGE_BYTES
        for one in slow:
            one.close()


def test_what_was_lent_is_given_back_once(tmp_path: Path) -> None:
    """After slow readers that hung up the limiter admits as many as before, and not one more."""
    more = {"OPEN": str(tmp_path / "open"), "HELD": str(tmp_path / "held")}
    with (
        serving(tmp_path, "tests.e2e.recorded:app", **more) as served,
        ThreadPoolExecutor(PLACES) as clients,
    ):
        for one in [ask_for_more_than_is_read(served) for _ in range(2 * PLACES)]:
            one.close()
        try:
            holding = [clients.submit(served.get, "/hold") for _ in range(PLACES)]
            wait_until(lambda: b" 503 " in served.get("/"), "all places to be taken")
        finally:
            Path(more["OPEN"]).touch()
        assert [b" 200 OK" in one.result() for one in holding] == [True] * PLACES


def ask_for_more_than_is_read(served: Served) -> ssl.SSLSocket:
    client = served.connect()
    client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert client.recv(12) == b"HTTP/1.1 200"
    return client
