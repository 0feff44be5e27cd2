"""A WSGI application that was written for threads, for the tests of the worker."""

import _thread
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakSet

from gevent.monkey import get_original

from greenline.hub.slices import SIGNAL
from greenline.telemetry import counters
from greenline.worker import heartbeat, worker

if "THREADED_RETIRE_S" in os.environ:
    worker.RETIRE_UNUSED_S = float(os.environ["THREADED_RETIRE_S"])
if "THREADED_MAX_TIMEOUTS" in os.environ:
    heartbeat.MAX_TIMEOUTS = int(os.environ["THREADED_MAX_TIMEOUTS"])


class Kept:
    """An object for each thread."""


kept = threading.local()
lock = threading.Lock()
executor = ThreadPoolExecutor(8)
block = get_original("time", "sleep")
objects: WeakSet[Kept] = WeakSet()
idents: set[int] = set()
progress = {"now": 0, "highest": 0}
counts = {"highest": 0, "computed": 0, "answered": 0, "beside": 0}


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Do as the path says; answer with what the threads have counted."""
    path = environ["PATH_INFO"]
    if path == "/limit":
        return answer(start_response, counters.totals().get(("limiter", "limit"), 0))
    if path == "/computed":
        return answer(start_response, counts["computed"])
    if path == "/kept":
        size = counters.totals().get(("handlers", "size"), 0)
        return answer(start_response, {"handlers": size, "objects": len(objects)})
    if path == "/read":
        return answer(start_response, len(environ["wsgi.input"].read()))
    if path == "/stream":
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        return stream()
    if path == "/websocket":  # takes the socket over, as the libraries do
        for part in stream():
            environ["gunicorn.socket"].sendall(part)
    progress["now"] += 1
    progress["highest"] = max(progress.values())
    try:
        kept.count = getattr(kept, "count", 0) + 1
        if kept.count == 1:
            kept.object = Kept()
            objects.add(kept.object)
        counts["highest"] = max(counts["highest"], kept.count)
        idents.add(threading.get_ident())
        if path.startswith("/sleep/"):
            time.sleep(float(path.removeprefix("/sleep/")))
        elif path.startswith("/compute/"):
            compute(float(path.removeprefix("/compute/")))
            counts["computed"] += 1
        elif path.startswith("/compute-in-a-thread/"):
            seconds = float(path.removeprefix("/compute-in-a-thread/"))
            thread = threading.Thread(target=compute, args=(seconds,))
            thread.start()
            thread.join()
        elif path == "/compute-beside-others":
            compute_beside_others()
        elif path == "/compute-beside-others-in-a-thread":
            thread = threading.Thread(target=compute_beside_others)
            thread.start()
            thread.join()
        elif path.startswith("/read-and-compute/"):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                threading.Timer(0.001, theirs.send, [b"x"]).start()
                ours.recv(1)
            compute(float(path.removeprefix("/read-and-compute/")))
            counts["computed"] += 1
        elif path.startswith("/signals/"):  # as many as an application gets that computes for long
            for _ in range(int(path.removeprefix("/signals/"))):
                _thread.interrupt_main(SIGNAL)
        elif path.startswith("/hash/"):
            hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", int(path.removeprefix("/hash/")))
        elif path.startswith("/block/"):
            block(float(path.removeprefix("/block/")))
        elif path.startswith("/block-in-an-executor/"):
            executor.submit(block, float(path.removeprefix("/block-in-an-executor/"))).result()
        elif path == "/lock":
            with lock:
                time.sleep(0.002)
        return answer(
            start_response,
            {
                "pid": os.getpid(),
                "count": counts["highest"],
                "threads": len(idents),
                "highest": progress["highest"],
                "beside": counts["beside"],
            },
        )
    finally:
        progress["now"] -= 1
        counts["answered"] += 1


def stream() -> Iterator[bytes]:
    """Compute an answer without an end: forty of them keep a processor busy."""
    while True:
        yield b"data: a part\n\n"
        compute(0.002)
        time.sleep(0.05)


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def compute_beside_others() -> None:
    """Compute until twenty others were answered meanwhile, for ten seconds at most."""
    before, until = counts["answered"], time.monotonic() + 10
    while (beside := counts["answered"] - before) < 20 and time.monotonic() < until:
        pass
    counts["beside"] = beside


def answer(start_response: Any, value: Any) -> list[bytes]:
    body = json.dumps(value).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
