"""
Describe where each greenlet of a process is, and what it waits for. Call from the hub's thread.

A frame of a greenlet that is suspended can be read by the thread that runs its hub, and by no other
one: elsewhere it goes stale.
"""

import gc
import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakSet

from gevent.hub import Hub
from greenlet import getcurrent, greenlet

from greenline.hub.deadline import WAITS_FOR, environ_of
from greenline.hub.handlers import Handler
from greenline.telemetry.access_log import path_of, printable, route
from greenline.telemetry.reports import Frame, GreenletState, RequestState, Stacks

MAX_FRAMES = 60  # of a greenlet: the innermost ones
MAX_GREENLETS = 2_000
OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
GEVENT = f"{os.sep}gevent{os.sep}"
STANDARD_LIBRARY = os.path.join(sysconfig.get_path("stdlib"), "")
# What a greenlet waits for, by a part of the file of the innermost frame that is here. The files of
# http/ are those that wait: the others are in the stack of each request.
LIBRARIES = {
    f"{OURS}admission{os.sep}limiter.py": "its turn",
    f"{OURS}postgres{os.sep}wait.py": "Postgres",
    f"{OURS}postgres{os.sep}foreign.py": "a slot of Postgres",
    f"{OURS}postgres{os.sep}pool.py": "a connection to Postgres",
    f"{OURS}postgres{os.sep}queue.py": "a connection to Postgres",
    f"{OURS}postgres{os.sep}serialize.py": "a connection that another greenlet uses",
    f"{OURS}hub{os.sep}nesting.py": "a connection to Postgres",
    f"{OURS}mongo{os.sep}permits.py": "a slot of MongoDB",
    f"{OURS}mongo{os.sep}counted.py": "a connection to MongoDB",
    f"{OURS}http{os.sep}client.py": "the client",
    f"{OURS}http{os.sep}plain_client.py": "the client",
    f"{OURS}http{os.sep}tls_client.py": "the client",
    f"{os.sep}pymongo{os.sep}": "MongoDB",
    f"{os.sep}redis{os.sep}": "Redis",
    f"{os.sep}sqlalchemy{os.sep}pool{os.sep}": "a connection of SQLAlchemy's pool",
}
# If none is: by file and function of gevent and the standard library.
WAITS = {
    ("hub.py", "sleep"): "a sleep",
    ("sleep.py", "sleep"): "a sleep",
    ("lock.py", ""): "a lock",
    ("lock_waits.py", ""): "a lock",
    ("thread.py", ""): "a lock",
    ("threading.py", ""): "a lock",
    ("queue.py", ""): "a queue",
    ("subprocess.py", ""): "a process",
    ("threadpool.py", ""): "a thread",
    ("_socket3.py", ""): "the network",
    ("_socketcommon.py", ""): "the network",
    ("_ssl3.py", ""): "the network",
    ("ssl.py", ""): "the network",
    ("select.py", ""): "the network",
}
# The names that deadline.spending() has.
SPENDING = {
    "turn": "its turn",
    "pool": "a connection",
    "connecting": "a connect to Postgres",
    "postgres": "Postgres",
    "mongodb": "MongoDB",
    "writing": "the client",
}

_permanent: "WeakSet[greenlet]" = WeakSet()


def note_permanent() -> None:
    """Remember the greenlets that exist, before ``gc.freeze()`` takes them out of its lists."""
    for each in _greenlets():
        _permanent.add(each)


def request_state(environ: Mapping[str, Any], age_s: float | None) -> RequestState:
    """
    Describe a request in progress, without a look at frames.

    :param environ: of the request.
    :param age_s: seconds since it was read, float; None if unknown.
    """
    waits_for = environ.get(WAITS_FOR) or ""
    return RequestState(
        environ.get("REQUEST_METHOD", "-"),
        printable(path_of(environ)),
        route(environ),
        age_s,
        SPENDING.get(waits_for, waits_for),
    )


def describe(
    pid: int,
    ages_s: Mapping[int, float],
    clients: Mapping[greenlet, Mapping[str, Any] | None],
    queued: Iterable[Mapping[str, Any]] = (),
) -> Stacks:
    """
    Describe the greenlets of this thread but the one that calls, the hub, and those without work.

    :param pid: of this process, int.
    :param ages_s: the seconds since each request was read, by the identity of its environ.
    :param clients: the greenlet of each client's connection, with the environ of its request if
        that waits for admission; otherwise a handler has it, or there is none.
    :param queued: the environs of the requests that wait for admission without a greenlet. Default:
        none.
    """
    found: list[GreenletState] = []
    numbers: dict[tuple[Frame, ...], int] = {}  # of the stacks
    left_out = 0
    current = getcurrent()
    root = _root(current)
    for each in (*_permanent, *_greenlets()):
        if each is current or not each or issubclass(type(each), Hub) or _root(each) is not root:
            continue
        environ = clients.get(each) or environ_of(each)
        has_work = each.work is not None if isinstance(each, Handler) else each not in clients
        if not has_work and clients.get(each) is None:
            continue
        if len(found) >= MAX_GREENLETS:
            left_out += 1
            continue
        stack = _stack(each.gr_frame)  # none where all of its code is compiled
        request = None
        if environ is not None:
            request = request_state(environ, ages_s.get(id(environ)))
        waits_for = wait_of(stack) or ("" if request is None else request.waits_for)
        number = numbers.setdefault(tuple(stack), len(numbers))
        found.append(GreenletState(request, number, waits_for))
    for environ in queued:
        if len(found) >= MAX_GREENLETS:
            left_out += 1
            continue
        request = request_state(environ, ages_s.get(id(environ)))
        number = numbers.setdefault((), len(numbers))
        found.append(GreenletState(request, number, request.waits_for))
    return Stacks(pid, found, [list(each) for each in numbers], left_out)


def wait_of(stack: list[Frame]) -> str:
    """
    Return what a greenlet waits for, empty if unknown.

    :param stack: the outermost frame first.
    """
    waits_for = ""
    for file, _, function in reversed(stack):
        for part, what in LIBRARIES.items():
            if part in file:
                return what
        name = os.path.basename(file)
        if GEVENT not in file and not file.startswith((OURS, STANDARD_LIBRARY)):
            break  # it has called what is further in
        if not waits_for:
            waits_for = WAITS.get((name, function)) or WAITS.get((name, "")) or ""
    return waits_for


def _root(one: greenlet) -> greenlet:
    """Return the main greenlet of the thread to which a greenlet belongs."""
    while one.parent is not None:
        one = one.parent
    return one


def _stack(frame: Any) -> list[Frame]:
    frames: list[Frame] = []
    for each, line in traceback.walk_stack(frame):
        if len(frames) == MAX_FRAMES:
            break
        frames.append((each.f_code.co_filename, line, each.f_code.co_name))
    return frames[::-1]


def _greenlets() -> Iterator[greenlet]:
    for each in gc.get_objects():
        # Not isinstance(), which asks a lazy object of the application for its class.
        if issubclass(type(each), greenlet):
            yield each
