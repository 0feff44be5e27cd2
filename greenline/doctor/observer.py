"""
Observe an application while it runs, and write one JSON document at the end.

:class:`ObservedWorker` serves requests; :func:`start_in_script` observes a process without our
worker, such as the application's tests. The document is an
:class:`~greenline.doctor.observations.Observations`.
"""

import atexit
import os
import resource
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from time import monotonic
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import gevent
import msgspec
from gevent import getcurrent

from greenline import settings
from greenline.doctor import drivers
from greenline.doctor.drivers import Driver, is_pooled
from greenline.doctor.observations import FOLDER, Connections, Observations, Requests
from greenline.doctor.probe import is_own
from greenline.doctor.sampler import Sampler
from greenline.hub import request_end
from greenline.offload.imports import after_import
from greenline.patch import patch_all
from greenline.worker import GreenWorker

# What a test client calls for each request, with the environ or a request that has it as the second
# argument: the module, the class and the function. Flask's client is Werkzeug's.
TEST_CLIENTS = (
    ("werkzeug.test", None, "run_wsgi_app"),
    ("django.test.client", "ClientHandler", "__call__"),
    ("webtest.app", "TestApp", "do_request"),
)
WARM_UP = 50  # requests, after which memory is expected to stay the same


@dataclass
class _Request:
    path: str
    begun_s: float
    trips: int = 0
    made: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)


class _Made(NamedTuple):
    """Where a connection was made, and by which driver."""

    place: str
    driver: Driver


class Observer:
    """Observe this process, once its standard library is patched."""

    def __init__(self) -> None:
        self._sampler = Sampler()
        self._requests = Requests()
        self._connections = Connections(Counter(), Counter(), Counter())
        self._in_progress: dict[Any, _Request] = {}
        self._begun: weakref.WeakSet[Any] = weakref.WeakSet()
        # Of a connection, the request that has used it last: a pool gives it to another one.
        self._users: weakref.WeakKeyDictionary[Any, _Request] = weakref.WeakKeyDictionary()
        self._made: weakref.WeakKeyDictionary[Any, _Made] = weakref.WeakKeyDictionary()
        # What a request has got from a pool and not given back yet.
        self._held: weakref.WeakKeyDictionary[Any, tuple[str, _Request]] = (
            weakref.WeakKeyDictionary()
        )
        self._clients: Counter[str] = Counter()  # by the line that makes them
        self._reported: weakref.WeakSet[Any] = weakref.WeakSet()
        self._left: weakref.WeakSet[Any] | None = None  # of the requests of test clients
        self._stable_kib = 0

    def start(self) -> None:
        """Begin to observe."""
        gevent.Greenlet.add_spawn_callback(self._note_greenlet)
        drivers.watch(self)
        request_end.functions.append(self._end)
        self._sampler.start()

    def start_test_clients(self) -> None:
        """Observe the requests of test clients: no worker says when they begin and end."""
        self._left = weakref.WeakSet()
        for module, owner, name in TEST_CLIENTS:
            after_import(module, partial(self._observe_client, owner, name))

    def stop(self) -> Observations:
        """Stop, and return what was seen."""
        blocks = self._sampler.stop()  # first: what follows is not the application's
        requests = self._requests
        self._note_left(self._left or ())
        self._note_held()
        # A single one may be kept for all requests, and made when the first needs it.
        again = (each for each in self._clients.items() if each[1] > 1)
        self._connections.outside.update(dict(again))
        requests.timeout_s = settings.REQUEST_TIMEOUT.read()
        requests.greenlets = sum(not each.dead for each in self._begun)
        if requests.count > WARM_UP:
            requests.grown_kib = max(0, _memory_kib() - self._stable_kib)
        self._look_at_transactions()
        return Observations(blocks, requests, self._connections)

    def requests(self, application: Any) -> Any:
        """Return *application*, with its requests observed."""

        def observed(environ: dict[str, Any], start_response: Any) -> Any:
            self._begin(environ)
            return application(environ, start_response)

        return observed

    def _observe_client(self, owner: str | None, name: str, module: ModuleType) -> None:
        holder = module if owner is None else getattr(module, owner)
        ask = getattr(holder, name)

        @wraps(ask)
        def observed(client: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            self._begin(getattr(request, "environ", request))
            try:
                return ask(client, request, *args, **kwargs)
            finally:
                self._end()

        setattr(holder, name, observed)

    def _begin(self, environ: dict[str, Any]) -> None:
        self._in_progress[getcurrent()] = _Request(environ.get("PATH_INFO", ""), monotonic())

    def _end(self) -> None:
        request, total = self._in_progress.pop(getcurrent(), None), self._requests
        if request is None:
            return
        path = request.path
        total.count += 1
        total.longest_s[path] = max(total.longest_s.get(path, 0.0), monotonic() - request.begun_s)
        total.trips[path] = max(total.trips.get(path, 0), request.trips)
        if total.count == WARM_UP:
            self._stable_kib = _memory_kib()
        if self._left is not None:
            # A test may hold its request's context, which closes them later, and it may have begun
            # a transaction that it rolls back itself.
            self._left.update(request.made)
            return
        self._note_left(request.made)
        self._note_held(request)
        self._look_at_transactions(request)

    def _note_left(self, connections: Iterable[Any]) -> None:
        for conn in connections:
            place, driver = self._made[conn]
            self._connections.left_open[place] += driver.is_open(conn)

    def _note_held(self, request: _Request | None = None) -> None:
        """Note what *request* has not given back to a pool. Default: what none has."""
        for conn, (place, holder) in list(self._held.items()):
            if request is None or holder is request:
                del self._held[conn]
                self._connections.left_open[place] += 1

    def _look_at_transactions(self, request: _Request | None = None) -> None:
        """Look at the connections that *request* has used last. Default: at all."""
        for conn, (place, driver) in list(self._made.items()):
            if request is not None and self._users.get(conn) is not request:
                continue
            is_in_transaction = driver.is_open(conn) and driver.is_in_transaction(conn)
            if is_in_transaction and conn not in self._reported:
                self._reported.add(conn)
                self._connections.in_transaction[place] += 1

    def _note_greenlet(self, greenlet: Any) -> None:
        if getcurrent() in self._in_progress:
            self._begun.add(greenlet)

    def note_connection_of_django(self) -> None:
        """Note that Django connects, to close the connection at the end of the request."""
        self._connections.of_django += getcurrent() in self._in_progress

    def note_trip(self, conn: Any = None) -> None:
        """Note a round trip, of *conn* where it is one that was noted."""
        if (request := self._in_progress.get(getcurrent())) is not None:
            request.trips += 1
            if conn is not None:
                self._users[conn] = request

    def note_connection(self, conn: Any, driver: Driver, frame: FrameType | None) -> None:
        """Note that the code of *frame* has made *conn*."""
        place = _place(frame)
        self._made[conn] = _Made(place, driver)
        if (maker := self._in_progress.get(getcurrent())) is not None:
            self._users[conn] = maker  # with GREENLINE_POOL its round trips are of another object
            if not settings.POOL.read() and not is_pooled(frame):
                self._connections.outside[place] += 1
                maker.made.add(conn)

    def note_checkout(self, conn: Any, frame: FrameType | None) -> None:
        """Note that the code of *frame* has got *conn* from a pool."""
        if (holder := self._in_progress.get(getcurrent())) is not None:
            self._held[conn] = _place(frame), holder

    def note_return(self, conn: Any) -> None:
        """Note that *conn* has been given back to its pool."""
        self._held.pop(conn, None)

    def note_client(self, frame: FrameType | None) -> None:
        """Note that the code of *frame* makes a client, which connects for itself."""
        if getcurrent() in self._in_progress:
            self._clients[_place(frame)] += 1


def _place(frame: FrameType | None) -> str:
    """Return the innermost line of the application's own code, ``file:line``."""
    while frame is not None:
        if is_own(frame.f_code.co_filename, os.getcwd()):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _memory_kib() -> int:
    """Return how much memory this process has in use, in KiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


def _write(observer: Observer) -> None:
    path = Path(os.environ[FOLDER]) / f"{os.getpid()}.json"
    path.write_bytes(msgspec.json.encode(observer.stop()))


class ObservedWorker(GreenWorker):
    """The worker, with its requests observed."""

    moves_pages = False  # each request that blocks is seen
    wsgi: Any

    def prepare(self) -> None:
        """Observe from now on: the application is loaded."""
        super().prepare()
        self._observer = Observer()
        self._observer.start()
        self.wsgi = self._observer.requests(self.wsgi)

    def run(self) -> None:
        """Serve, and write what was seen."""
        super().run()
        _write(self._observer)


def start_in_script() -> None:
    """Patch this process and observe it until its end."""
    patch_all()
    observer = Observer()
    observer.start()
    observer.start_test_clients()
    atexit.register(partial(_write, observer))
