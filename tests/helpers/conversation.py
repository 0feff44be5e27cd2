"""Hold a scripted conversation with a worker, in this process and without a network."""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import gunicorn.glogging
import pytest
from gunicorn.config import Config
from gunicorn.workers.ggevent import GeventWorker

from greenline.telemetry import counters
from greenline.worker.worker import GreenWorker
from tests.helpers.application import Application

DATE = re.compile(rb"\r\nDate: [^\r]*\r\n")
# As much as gunicorn's parser takes at once: its errors say how much it had seen.
SEGMENT_BYTES = 8192
SERVER = ("127.0.0.1", 8000)


class Listener:
    """What a worker asks of the socket that it accepts from."""

    def __init__(self, name: Any) -> None:
        self.name = name

    def getsockname(self) -> Any:
        return self.name


class Script:
    """A client's socket: it sends the segments one by one, then says that it is done."""

    def __init__(self, segments: Iterable[bytes]) -> None:
        self._segments = [segment for segment in segments if segment]
        self._segments.reverse()
        self.sent = bytearray()
        self.waited = False
        self.shut = False
        self.closed = False

    def recv(self, size: int) -> bytes:
        if not self._segments:
            self.waited = self.waited or not self.shut
            return b""
        segment = self._segments.pop()
        size = min(size, SEGMENT_BYTES)
        if len(segment) > size:
            self._segments.append(segment[size:])
        return segment[:size]

    def sendall(self, data: Any) -> None:
        if not self.shut:
            self.sent += data

    def send(self, data: Any) -> int:
        self.sendall(data)
        return len(data)

    def sendfile(self, file: Any, offset: int = 0, count: int | None = None) -> int:
        file.seek(offset)
        data = file.read() if count is None else file.read(count)
        self.sendall(data)
        return len(data)

    def shutdown(self, how: int) -> None:
        self.shut = True

    def close(self) -> None:
        self.closed = True

    def settimeout(self, timeout_s: float | None) -> None: ...

    def setblocking(self, flag: int) -> None: ...

    def gettimeout(self) -> float | None:
        return None

    def fileno(self) -> int:
        return -1


@dataclass
class Outcome:
    """What a conversation led to: all that a client, and the application, can tell."""

    answer: bytes
    seen: list[list[Any]]
    waited: bool
    closed: int


class Host:
    """A worker with the test application, that is not run: it only handles connections."""

    def __init__(self, worker_class: type[GeventWorker], **settings: Any) -> None:
        cfg = Config()
        for name, value in settings.items():
            if name in cfg.settings:  # gunicorn 23 has no http_parser
                cfg.set(name, value)
        self.app = Application()
        if issubclass(worker_class, GreenWorker):
            worker_class.setup()  # as the arbiter does
        self.worker = worker_class(1, 1, [], None, 30, cfg, gunicorn.glogging.Logger(cfg))
        # One of its own: the level of gunicorn's own logger would outlive the worker.
        self.worker.log.error_log = logging.Logger("gunicorn.error", logging.CRITICAL + 1)
        self.worker.tmp.close()
        self.worker.wsgi = self.app
        if isinstance(self.worker, GreenWorker):
            with pytest.MonkeyPatch.context() as patch:
                # Its watchdog and its timer would outlive it, and act on what is tested later.
                patch.setenv("GREENLINE_BLOCKED_HUB_MS", "0")
                patch.setenv("GREENLINE_SWITCH_INTERVAL_MS", "0")
                # What this process tests later has no connections of a worker to wait for.
                patch.setattr(counters, "_own", counters._own)
                self.worker.prepare()
            # On a busy machine a conversation computes for long: its next one would wait for its
            # turn, and these clients have no socket that could be watched meanwhile.
            self.worker._handlers.turns.note = lambda *_: None  # type: ignore[method-assign]

    def talk(
        self, segments: Sequence[bytes], addr: Any = ("127.0.0.1", 4711), server: Any = SERVER
    ) -> Outcome:
        """Serve one client that sends the segments."""
        script = Script(segments)
        self.app.seen, self.app.closed = [], 0
        self.worker.alive, self.worker.nr = True, 0
        self.worker.handle(Listener(server), script, addr)
        assert script.closed
        answer = DATE.sub(b"\r\nDate: now\r\n", bytes(script.sent))
        return Outcome(answer, self.app.seen, script.waited, self.app.closed)


def stock(**settings: Any) -> Host:
    """Return gunicorn's own gevent worker with its Python parser; no header sets the environ."""
    return Host(GeventWorker, http_parser="python", **{"forwarder_headers": "", **settings})


def green(**settings: Any) -> Host:
    """Return ours."""
    return Host(GreenWorker, **settings)
