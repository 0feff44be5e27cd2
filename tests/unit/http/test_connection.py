"""greenline.http.connection on a pair of sockets."""

import errno
import gc
import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import ref

import gevent
import pytest
from gevent.event import Event
from gunicorn.config import Config
from gunicorn.http.wsgi import base_environ

from greenline import settings
from greenline.admission.adaptive import Fixed
from greenline.admission.limiter import ConcurrencyLimiter
from greenline.http.body import BodyTooLarge
from greenline.http.client import BodyTimeout, ClientTimeout, HeadTimeout, UnreadableFile
from greenline.http.connection import STREAM_S, ClientConnection
from greenline.http.fast_parser import Rules
from greenline.http.plain_client import Sweep
from greenline.hub.handlers import Handlers

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
READ_S, MAX_BYTES = 0.3, 100


class Talk:
    """A connection, and the client's end of it."""

    def __init__(self, ours: socket.socket, theirs: socket.socket, handlers: Any = None) -> None:
        self.theirs = theirs
        self.limiter = ConcurrencyLimiter(Fixed(1))
        self.outcomes: list[Any] = []
        self.ended = Event()
        self.errors: list[BaseException] = []
        self.in_handlers: list[bool] = []
        self.answer: Any = lambda connection, environ: environ["wsgi.input"].read()
        cfg, sweep = Config(), Sweep()
        sweep.start()
        limits = settings.limits()._replace(
            head_s=READ_S, body_read_s=READ_S, max_body_bytes=MAX_BYTES
        )
        self.connection = ClientConnection(
            ours, ("127.0.0.1", 4711), ("127.0.0.1", 8000),
            rules=Rules(cfg), base=base_environ(cfg), limits=limits, limiter=self.limiter,
            keepalive_s=READ_S, answer=self._answer, handlers=handlers, spawn=self._spawn,
            on_end=lambda _: self.ended.set(), sweep=sweep,
        )  # fmt: skip

    def _answer(self, connection: ClientConnection, request: Any, in_handler: bool) -> bool:
        response, environ = connection.respond(request)
        self.in_handlers.append(in_handler)
        try:
            self.outcomes.append(self.answer(connection, environ))
            response.start_response("200 OK", [("Content-Length", "0")])
            response.write_all([])
            return not response.should_close()
        finally:
            del environ["wsgi.early_hints"]  # as the worker does

    def _spawn(self, connection: ClientConnection) -> Any:
        def converse() -> None:
            try:
                if connection.converse():
                    return
            except Exception as error:
                self.errors.append(error)
            self.ended.set()  # the test closes the connection, as the worker would now

        return gevent.spawn(converse)

    def fail(self, data: bytes) -> BaseException:
        """Return the error that ends the conversation in which the client sends *data*."""
        self.theirs.sendall(data)
        if self.connection.needs_greenlet:
            with pytest.raises(Exception) as caught:  # noqa: PT011
                self.connection.converse()
            return caught.value
        self.connection.begin()
        assert self.ended.wait(10)
        return self.errors.pop()


@pytest.fixture
def talk() -> Iterator[Talk]:
    """A connection that reads every request with gunicorn's parser."""
    ours, theirs = socket.socketpair()
    with closing(theirs):
        talk = Talk(ours, theirs)
        yield talk
        talk.connection.close()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(HEAD, HeadTimeout, id="in the head"),
        pytest.param(HEAD + b"Content-Length: 9\r\n\r\nbegun", BodyTimeout, id="in the body"),
    ],
)
def test_the_connection_keeps_the_error_of_a_slow_client(
    talk: Talk, data: bytes, expected: type[ClientTimeout]
) -> None:
    """The application may hide it, and it is answered all the same."""
    error = talk.fail(data)
    assert type(error) is expected
    assert talk.connection.error is error


def test_the_connection_keeps_the_error_of_a_body_that_is_too_large(talk: Talk) -> None:
    """An application that answers it with a 500 sends nothing: the response raises the error."""

    def hide(connection: ClientConnection, environ: dict[str, Any]) -> None:
        with pytest.raises(BodyTooLarge):
            environ["wsgi.input"].read()
        connection._response.start_response("500 Internal Server Error", [])  # type: ignore[union-attr]

    talk.answer = hide
    error = talk.fail(CHUNKED + b"%x\r\n" % (MAX_BYTES + 1) + b"x" * (MAX_BYTES + 1) + b"\r\n")
    assert type(error) is BodyTooLarge
    assert talk.connection.error is error
    assert not talk.connection.is_answered()


def test_the_error_of_a_pipelined_request_is_still_to_be_answered() -> None:
    """Though the request before it was answered in a handler, with the same bytes read."""
    ours, theirs = socket.socketpair()
    with closing(theirs), closing(ours):
        talk = Talk(ours, theirs, Handlers())
        talk.fail(HEAD + b"\r\n" + b"GET / HTTP/9\r\n\r\n")
        assert talk.in_handlers == [True]
        assert not talk.connection.is_answered()
        talk.connection.close()


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_request_is_suspended_while_it_waits_for_its_client(talk: Talk, is_counted: bool) -> None:
    """Only a request that the limiter counts is, and it counts again when the client has sent."""
    found = []

    def read(connection: ClientConnection, environ: dict[str, Any]) -> Any:
        admitted = talk.limiter.acquire({"PATH_INFO": "/"}, connection.sock)
        if is_counted:
            connection.begin_count()

        def send() -> None:
            found.append(talk.limiter.stats()["in_progress"])
            talk.theirs.sendall(b"rest")
            talk.theirs.shutdown(socket.SHUT_WR)

        gevent.spawn(send)
        body = environ["wsgi.input"].read()
        found.append(talk.limiter.stats()["in_progress"])
        assert connection.end_count() is is_counted
        talk.limiter.release(admitted)
        return body

    talk.answer = read
    talk.theirs.sendall(HEAD + b"Content-Length: 4\r\n\r\n")
    talk.connection.converse()
    assert talk.outcomes == [b"rest"]
    assert found == [0 if is_counted else 1, 1]


UPGRADE = b"Upgrade: WebSocket\r\n"


@pytest.mark.parametrize(
    ("upgrade", "begins", "leaves"),
    [
        (b"", "answer", True),
        (UPGRADE, "WebSocket", True),
        (UPGRADE, "", False),
        (b"", "", False),
    ],
    ids=["stream", "WebSocket", "only the header", "no answer yet"],
)
def test_a_stream_leaves_the_limit(talk: Talk, upgrade: bytes, begins: str, leaves: bool) -> None:
    """Half a second after its head; one that waits for its client has no place."""
    found: list[Any] = []

    def look(connection: ClientConnection, now: float) -> None:
        connection.leave_if_streaming(now)
        found.append(talk.limiter.stats()["in_progress"])

    def stream(connection: ClientConnection, environ: dict[str, Any]) -> None:
        admitted = talk.limiter.acquire({"PATH_INFO": "/"}, connection.sock)
        connection.begin_count()
        response = connection._response
        assert response is not None
        before_s = monotonic()
        if begins == "WebSocket":
            connection.sock.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        elif begins:
            response.start_response("200 OK", [("Content-Length", "0")])
            response.send_headers()
        look(connection, before_s)
        look(connection, before_s + STREAM_S - 0.1)
        begun_s = monotonic()
        gevent.spawn(look, connection, begun_s + STREAM_S).join()
        look(connection, begun_s + 20.0)
        if connection.end_count():
            talk.limiter.release(admitted)
        assert talk.limiter.stats()["in_progress"] == 0
        response.status = None

    talk.answer = stream
    talk.theirs.sendall(HEAD + upgrade + b"\r\n")
    talk.theirs.shutdown(socket.SHUT_WR)
    talk.connection.converse()
    last = 0 if leaves else 1
    assert found == [1, 1, last, last]


def test_one_that_reads_while_it_writes_is_suspended_once(talk: Talk) -> None:
    """Two greenlets of an application wait for one client."""
    found = []

    def both(connection: ClientConnection, environ: dict[str, Any]) -> None:
        admitted = talk.limiter.acquire({"PATH_INFO": "/"}, connection.sock)
        connection.begin_count()
        client = connection._client
        reader = gevent.spawn(environ["wsgi.input"].read)
        gevent.sleep(0)
        writer = gevent.spawn(client._wait_uncounted, gevent.sleep, 0.01)
        gevent.sleep(0)
        found.append(talk.limiter.stats()["in_progress"])
        writer.join()
        found.append(talk.limiter.stats()["in_progress"])
        talk.theirs.sendall(b"rest")
        reader.join()
        found.append(talk.limiter.stats()["in_progress"])
        waiting = gevent.spawn(client._wait_uncounted, gevent.sleep, 0.05)
        gevent.sleep(0)
        assert connection.end_count()
        talk.limiter.release(admitted)
        found.append(talk.limiter.stats()["in_progress"])
        # The wait of a greenlet that goes on after its request says nothing of the next one.
        admitted = talk.limiter.acquire({"PATH_INFO": "/"}, connection.sock)
        connection.begin_count()
        waiting.join()
        found.append(talk.limiter.stats()["in_progress"])
        assert connection.end_count()
        talk.limiter.release(admitted)

    talk.answer = both
    talk.theirs.sendall(HEAD + b"Content-Length: 4\r\n\r\n")
    gevent.spawn(talk.connection.converse).join(5)
    assert found == [0, 0, 1, 0, 1]
    assert talk.limiter.stats()["in_progress"] == 0


@pytest.mark.parametrize(
    ("data", "closes", "answer"),
    [
        pytest.param(HEAD + b"\r\n", True, None, id="the client closes"),
        pytest.param(HEAD, False, None, id="a slow client"),
        pytest.param(HEAD + b"Content-Length: 9\r\n\r\n", True, None, id="a body that is cut"),
        pytest.param(HEAD + b"\r\n", False, lambda *_: 1 / 0, id="the application fails"),
        pytest.param(b"\r\r\r\r", True, None, id="no request"),
    ],
)
def test_a_closed_connection_is_freed_without_the_collector(
    data: bytes, closes: bool, answer: Any
) -> None:
    """It is part of no cycle, except gunicorn's of a chunked body and its request."""
    ours, theirs = socket.socketpair()
    gc.disable()
    try:
        with closing(theirs):
            talk = Talk(ours, theirs)
            talk.answer = answer or talk.answer
            connection = vars(talk).pop("connection")
            theirs.sendall(data)
            if closes:
                theirs.shutdown(socket.SHUT_WR)
            with suppress(Exception):
                connection.converse()
            connection.close()
            freed = ref(connection)
            del connection, talk
            assert freed() is None
    finally:
        gc.enable()


def test_a_connection_without_a_greenlet_is_freed_without_the_collector() -> None:
    """It was served by handlers, and waited in between."""
    ours, theirs = socket.socketpair()
    gc.disable()
    try:
        with closing(theirs):
            talk = Talk(ours, theirs, Handlers())
            talk.connection.begin()
            for _ in range(2):
                theirs.sendall(HEAD + b"\r\n")
                assert theirs.recv(1_000).startswith(b"HTTP/1.1 200 ")
            theirs.shutdown(socket.SHUT_WR)
            assert talk.ended.wait(10)
            client = ref(vars(talk).pop("connection")._client)
            del talk
            gevent.sleep(0)  # the loop drops what has closed the socket
            assert client() is None
    finally:
        gc.enable()


def test_the_error_of_a_handler_is_in_no_cycle() -> None:
    """Neither the handler nor the connection's greenlet, which raises it, keeps it alive."""
    ours, theirs = socket.socketpair()
    errors = []

    class Failed(Exception):
        pass

    def fail(connection: ClientConnection, environ: dict[str, Any]) -> None:
        error = Failed()
        errors.append(ref(error))
        try:
            raise error
        finally:
            del error

    with closing(theirs), closing(ours):
        talk = Talk(ours, theirs, Handlers())
        talk.answer = fail
        theirs.sendall(HEAD + b"\r\n")
        gc.disable()
        try:
            talk.connection.begin()
            assert talk.ended.wait(10)
            assert talk.in_handlers == [True]
            assert type(talk.errors.pop()) is Failed
            gevent.sleep(0)  # the greenlet that raised it ends
            gevent.sleep(0)  # the loop drops the callback that passed the error on
            assert [error() for error in errors] == [None]
        finally:
            gc.enable()
            talk.connection.close()


class Unreadable:
    """A file whose bytes from *readable* on cannot be read, as on a damaged disk."""

    def __init__(self, file: Any, readable: int) -> None:
        self._file, self._readable, self._at = file, readable, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def seek(self, offset: int) -> None:
        self._at = offset
        self._file.seek(offset)

    def read(self, size: int) -> Any:
        if self._at >= self._readable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._file.read(min(size, self._readable - self._at))


@pytest.mark.parametrize("readable", [0, 4096])
def test_a_file_that_cannot_be_read_is_no_error_of_the_client(
    talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readable: int
) -> None:
    """Before the first bytes or after them: it is the application's error, and is logged as one."""
    path, sendfile = tmp_path / "file", os.sendfile
    path.write_bytes(b"x" * 8192)

    def send(to: int, of: int, start: int, count: int) -> int:
        if start >= readable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return sendfile(to, of, start, min(count, readable - start))

    monkeypatch.setattr(os, "sendfile", send)
    with path.open("rb") as file, pytest.raises(UnreadableFile, match="Input/output error"):
        talk.connection.sendfile(Unreadable(file, readable), 0, 8192)
    assert talk.connection.error is None


def test_a_file_that_ends_early_is_no_error_of_the_client(talk: Talk, tmp_path: Path) -> None:
    """Truncated while it was served, for instance."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    with path.open("rb") as file, pytest.raises(EOFError):
        talk.connection.sendfile(file, 0, 8192)
    assert talk.connection.error is None


def test_a_client_that_has_left_is_the_error_of_a_file_being_sent(
    talk: Talk, tmp_path: Path
) -> None:
    """Its connection ends without an entry in the error log."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8192)
    talk.theirs.close()
    with path.open("rb") as file, pytest.raises(BrokenPipeError) as caught:
        talk.connection.sendfile(file, 0, 8192)
    assert talk.connection.error is caught.value


def test_a_connection_shares_the_keys_of_its_dict_with_the_others() -> None:
    """CPython does so for thirty attributes; with more each request takes a tenth more time."""
    ours, theirs = socket.socketpair()
    with closing(theirs):
        talk = Talk(ours, theirs, Handlers())
        talk.connection.begin()
        theirs.sendall(HEAD + b"\r\n")
        assert theirs.recv(1_000).startswith(b"HTTP/1.1 200 ")
        talk.connection.queued = None
        assert len(vars(talk.connection)) <= 30
        theirs.shutdown(socket.SHUT_WR)
        assert talk.ended.wait(10)
