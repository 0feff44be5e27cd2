"""Sockets, select and programs in an offload thread, made there or by the request."""

import os
import select
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from subprocess import Popen
from typing import Any

import gevent
import pytest

from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.offload import threads

LIMIT_S = 10.0


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with gevent.Timeout(LIMIT_S):
        yield


def in_thread(func: Callable[..., Any], *args: Any) -> Any:
    """Call *func* in an offload thread of its own."""
    return threads.OwnThread().call(func, *args)


def here(func: Callable[..., Any], *args: Any) -> Any:
    return func(*args)


@pytest.mark.parametrize(("make", "use"), [(here, in_thread), (in_thread, here)])
def test_a_socket_is_used_by_the_request_and_the_thread(
    make: Callable[..., Any], use: Callable[..., Any]
) -> None:
    """It waits in either, times out in either, and is closed by either."""
    ours, theirs = make(socket.socketpair)
    gevent.spawn_later(0.02, theirs.send, b"one")
    assert use(ours.recv, 3) == b"one"
    gevent.spawn_later(0.02, theirs.send, b"two")
    assert make(ours.recv, 3) == b"two"
    ours.settimeout(0.05)
    for call in (use, make):
        with pytest.raises(TimeoutError):
            call(ours.recv, 1)
    use(theirs.close)
    assert make(ours.recv, 1) == b""
    use(ours.close)


def test_much_is_sent_and_read_on_both_sides() -> None:
    """More than the socket's buffers hold."""
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs), theirs.makefile("rb") as file:
        sending = gevent.spawn(in_thread, ours.sendall, b"x" * 3_000_000)
        assert len(in_thread(file.read, 3_000_000)) == 3_000_000
        sending.get()


def test_a_connection_of_http_is_shared() -> None:
    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            time.sleep(0.01)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        connection, lock = HTTPConnection(*server.server_address[:2]), threading.Lock()  # type: ignore[arg-type]

        def ask() -> bytes:
            with lock:
                connection.request("GET", "/")
                return connection.getresponse().read()

        calls = [gevent.spawn(call, ask) for call in (in_thread, here) * 4]
        gevent.joinall(calls, raise_error=True)
        assert {call.value for call in calls} == {b"ok"}
        in_thread(connection.close)
        server.shutdown()


@pytest.mark.parametrize("kind", ["poll", "select", "selectors"])
def test_select_waits_in_the_thread(kind: str) -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        if kind == "poll":
            poll = select.poll()
            poll.register(ours, select.POLLIN)
            wait: Callable[[float], Any] = lambda seconds: poll.poll(seconds * 1000)  # noqa: E731
        elif kind == "select":
            wait = lambda seconds: select.select([ours], [], [], seconds)[0]  # noqa: E731
        else:
            selector = selectors.DefaultSelector()
            selector.register(ours, selectors.EVENT_READ)
            wait = selector.select
        assert not in_thread(wait, 0.02)
        gevent.spawn_later(0.02, theirs.send, b"x")
        assert in_thread(wait, LIMIT_S)
        assert wait(LIMIT_S)


def test_programs_run_in_the_thread() -> None:
    """And are waited for there, or by the request, whoever has started them."""
    run: Any = subprocess.run
    done = in_thread(lambda: run(["cat"], input=b"x" * 200_000, capture_output=True, check=True))
    assert len(done.stdout) == 200_000
    assert in_thread(os.system, "exit 3") == 3 << 8
    assert in_thread(lambda: os.popen("echo said").read()) == "said\n"  # noqa: S605
    command = ["sh", "-c", "read x; echo $x; exit 4"]
    for make, use in ((here, in_thread), (in_thread, here)):
        start = partial(Popen, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process = make(start)
        assert use(process.communicate, b"asked\n") == (b"asked\n", None)
        assert (process.returncode, use(process.wait), make(process.poll)) == (4, 4, 4)


def test_a_thread_closes_what_a_request_reads() -> None:
    """A file holds a lock of C meanwhile, for which the request's next read waits natively."""
    says = ["sh", "-c", "while echo x; do sleep 0.001; done"]
    with Popen(says, stdout=subprocess.PIPE) as process:
        file: Any = process.stdout

        def read() -> None:
            with suppress(ValueError, OSError):  # it is closed
                while file.readline():
                    pass

        reading = gevent.spawn(read)
        gevent.sleep(0.02)
        with suppress(RuntimeError):  # the reader holds the lock at this moment
            in_thread(file.close)
        process.kill()
        reading.get()
    ours, theirs = socket.socketpair()
    with closing(ours):
        waiting = gevent.spawn(theirs.recv, 1)
        gevent.sleep(0)
        in_thread(theirs.close)
        with pytest.raises(OSError, match="closed in another greenlet"):
            waiting.get()


def test_limits_and_greenlets_of_the_thread_itself_work() -> None:
    ours, theirs = socket.socketpair()

    def limited() -> str:
        try:
            with deadline.limit(0.05):
                return str(ours.recv(1))
        except DeadlineExceeded:
            pass
        with gevent.Timeout(0.05, False):
            subprocess.run(["sleep", "10"], check=False)
            return "not ended"
        reading = gevent.spawn(ours.recv, 5)
        gevent.sleep(0.01)
        theirs.sendall(b"hello")
        return str(reading.get())

    with closing(ours), closing(theirs):
        assert in_thread(limited) == "b'hello'"


def test_a_spawned_process_is_waited_for_in_the_thread() -> None:
    def spawn() -> tuple[int, int]:
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 5"], {})
        ended, status = os.waitpid(pid, 0)
        return ended - pid, os.waitstatus_to_exitcode(status)

    calls = [gevent.spawn(in_thread, spawn) for _ in range(8)]
    gevent.joinall(calls, raise_error=True)
    assert {call.value for call in calls} == {(0, 5)}


def test_the_others_run_while_the_thread_waits() -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        waiting = gevent.spawn(in_thread, ours.recv, 1)
        before = time.monotonic()
        gevent.sleep(0.05)
        assert time.monotonic() - before < 1.05
        theirs.send(b"x")
        assert waiting.get() == b"x"
