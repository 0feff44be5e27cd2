"""
A WSGI application of pages that keep a thread: they compute, one of them after a wait, copy files,
compress, hash, let a thread hash for them, or wait in C; and a small one.
"""

import ctypes
import hashlib
import os
import queue
import shutil
import socket
import tempfile
import threading
import zlib
from collections.abc import Iterable
from typing import Any

ECHO_PORT = int(os.environ["BENCH_ECHO_PORT"])
STEPS = 250_000  # about ten milliseconds
FILES = [entry.path for entry in os.scandir(os.path.dirname(os.__file__)) if entry.is_file()]
TEXT = str(list(range(300_000))).encode()  # two megabytes
ZEROS = bytes(16_000_000)  # to hash it takes about ten milliseconds
libc = ctypes.CDLL(None)

kept = threading.local()
waiting: "queue.Queue[threading.Event]" = queue.Queue()
lock = threading.Lock()


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Answer with the page's own path."""
    path = environ["PATH_INFO"]
    if path == "/waits":
        wait()
    if path == "/copies":
        copy_files()
    elif path == "/compresses":
        zlib.compress(TEXT)
    elif path == "/hashes":
        hashlib.sha256(ZEROS)
    elif path == "/queues":
        wait_for_hash()
    elif path == "/waits-in-c":
        libc.usleep(10_000)
    elif path != "/small":
        compute(10 * STEPS if path == "/computes-long" else STEPS)
    start_response("200 OK", [("Content-Length", str(len(path)))])
    return [path.encode()]


def wait_for_hash() -> None:
    """Wait until a thread that takes one request after the other has hashed for this one."""
    with lock:
        if not any(each.name == "hashing" for each in threading.enumerate()):
            threading.Thread(target=hash_for_all, name="hashing", daemon=True).start()
    done = threading.Event()
    waiting.put(done)
    done.wait()


def hash_for_all() -> None:
    """Hash for one request after the other, for ever."""
    while True:
        hash_for(waiting.get())


def hash_for(done: threading.Event) -> None:
    """Hash, and say so."""
    hashlib.sha256(ZEROS)
    done.set()


def compute(steps: int) -> int:
    """Add numbers up."""
    total = 0
    for number in range(steps):
        total += number
    return total


def copy_files() -> None:
    """Copy some two hundred files, which are modules of Python."""
    # In memory: how long a disk takes depends on what was written before.
    with tempfile.TemporaryDirectory(prefix="gl-", dir="/dev/shm") as folder:
        for path in FILES:
            shutil.copy(path, folder)


def wait() -> None:
    """Wait for another server's answer, as for a database's."""
    if not hasattr(kept, "conn"):
        kept.conn = socket.create_connection(("127.0.0.1", ECHO_PORT))
    kept.conn.sendall(b"x")
    kept.conn.recv(1)
