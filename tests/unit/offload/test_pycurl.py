"""pycurl's handles wait in the hub, and their callbacks run in the greenlet that performs."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

import gevent
import pycurl
import pytest

from greenline.errors import DeadlineExceeded
from greenline.hub import deadline


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server that waits as the path says, and returns what it was sent."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            gevent.sleep(float(self.path.lstrip("/")))
            self.answer(str(self.client_address[1]).encode())

        def do_PUT(self) -> None:
            self.answer(self.rfile.read(int(self.headers["Content-Length"])))

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Write no log."""

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    serving = threading.Thread(target=httpd.serve_forever, args=(0.05,))
    serving.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    serving.join()
    httpd.server_close()


def handle(url: str) -> Any:
    """Return a handle for *url*."""
    curl = pycurl.Curl()
    curl.setopt(pycurl.URL, url)
    return curl


def test_handles_perform_side_by_side(server: str) -> None:
    """Each way to perform, and a subclass."""

    class Mine(pycurl.Curl):  # type: ignore[misc]
        """That of an application."""

    def perform() -> bytes:
        curl, written = Mine(), BytesIO()
        curl.setopt(pycurl.URL, f"{server}/0.3")
        curl.setopt(pycurl.WRITEDATA, written)
        curl.perform()
        return written.getvalue()

    with gevent.Timeout(5):
        jobs = [gevent.spawn(perform) for _ in range(20)]
        jobs += [gevent.spawn(handle(f"{server}/0.3").perform_rb) for _ in range(5)]
        gevent.joinall(jobs, raise_error=True)
    assert len({job.value for job in jobs}) == 25
    assert handle(f"{server}/0").perform_rs().isdecimal()


def test_a_handle_keeps_its_connection(server: str) -> None:
    """As one that libcurl performs by itself."""
    curl = handle(f"{server}/0")
    ports = {curl.perform_rb() for _ in range(5)}
    assert len(ports) == 1
    assert curl.getinfo(pycurl.RESPONSE_CODE) == 200


def test_callbacks_may_wait(server: str) -> None:
    """For a socket, for instance: a proxy passes on the body of its request."""
    ours, its = socket.socketpair()

    def feed() -> None:
        with its:
            for _ in range(3):
                gevent.sleep(0.05)
                its.sendall(b"x" * 100)

    gevent.spawn(feed)
    with ours, ours.makefile("rb") as file:
        curl = handle(f"{server}/")
        curl.setopt(pycurl.UPLOAD, 1)
        curl.setopt(pycurl.INFILESIZE, 300)
        curl.setopt(pycurl.HTTPHEADER, ["Expect:"])
        curl.setopt(pycurl.READFUNCTION, lambda size: file.read(min(size, 300)))
        with gevent.Timeout(10):
            assert curl.perform_rb() == b"x" * 300


def test_errors_are_those_of_pycurl(server: str) -> None:
    """The handle works afterwards."""
    curl = handle("http://127.0.0.1:1/")
    with pytest.raises(pycurl.error) as error:
        curl.perform()
    assert error.value.args[0] == pycurl.E_COULDNT_CONNECT
    curl.setopt(pycurl.URL, f"{server}/5")
    curl.setopt(pycurl.TIMEOUT_MS, 100)
    with pytest.raises(pycurl.error) as error:
        curl.perform()
    assert error.value.args[0] == pycurl.E_OPERATION_TIMEDOUT


def test_the_deadline_ends_a_transfer(server: str) -> None:
    """And leaves a handle that can be used, and closed."""
    curl = handle(f"{server}/5")
    with gevent.Timeout(3), pytest.raises(DeadlineExceeded), deadline.limit(0.1):
        curl.perform()
    curl.setopt(pycurl.URL, f"{server}/0")
    assert curl.perform_rb().isdigit()
    curl.close()


def test_several_handles_are_waited_for(server: str) -> None:
    """By the select() of a CurlMulti, while other greenlets run."""
    multi = pycurl.CurlMulti()
    handles = [handle(f"{server}/1.0") for _ in range(3)]
    for each in handles:
        each.setopt(pycurl.WRITEDATA, BytesIO())
        multi.add_handle(each)
    looks, done = 0, []

    def look() -> None:
        nonlocal looks
        while not done:
            gevent.sleep(0.01)
            looks += 1

    looking = gevent.spawn(look)
    left = len(handles)
    while left:
        left = multi.perform()[1]
        multi.select(1.0)
    done.append(True)
    looking.get()
    assert looks > 3
