"""A plain WSGI application, written for threads, whose requests hold locks while they sleep."""

import fcntl
import os
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterable
from multiprocessing.util import spawnv_passfds
from typing import Any

FOLDER = os.environ["LOCKING"]
DATABASE = os.path.join(FOLDER, "rows.db")
LOCKED = os.path.join(FOLDER, "locked")

with sqlite3.connect(DATABASE) as _conn:
    _conn.execute("create table if not exists row (number integer)")
_conn.close()


def write_to_sqlite(number: int, hold_s: float) -> str:
    """Write a row in a transaction that holds the lock for a while."""
    conn = sqlite3.connect(DATABASE, timeout=30, isolation_level=None)
    try:
        conn.execute("begin immediate")
        conn.execute("insert into row values (?)", (number,))
        time.sleep(hold_s)
        conn.commit()
    finally:
        conn.close()
    return "written"


def read_from_sqlite(number: int, hold_s: float) -> str:
    """Make sqlite work for a long time."""
    conn = sqlite3.connect(":memory:")
    query = "with recursive n(i) as (select 1 union all select i + 1 from n where i < ?) "
    rows = conn.execute(query + "select count(*) from n", (number,)).fetchone()
    conn.close()
    return str(rows[0])


def write_under_flock(number: int, hold_s: float) -> str:
    """Write a line while the file is locked."""
    with open(LOCKED, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.path.getsize(LOCKED)
        time.sleep(hold_s)
        assert os.path.getsize(LOCKED) == size
        file.write(f"{number}\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_UN)
    return "written"


def wait_for_lockf(number: int, hold_s: float) -> str:
    """Lock a file that another process may hold."""
    with open(LOCKED, "a") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
    return "locked"


def run_a_command(number: int, hold_s: float) -> str:
    """Run a shell."""
    return str(os.system(f"sleep {hold_s}; exit {number}"))  # noqa: S605


def wait_for_a_child(number: int, hold_s: float) -> str:
    """Start a child, as multiprocessing does with its method "spawn", and wait for it."""
    arguments = [b"sh", b"-c", f"sleep {hold_s}; exit {number}".encode()]
    pid = spawnv_passfds(b"/bin/sh", arguments, [])
    return str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def measure_a_child(number: int, hold_s: float) -> str:
    """Wait for a child in the form that also returns what it has used."""
    process = subprocess.Popen(["/bin/sh", "-c", f"sleep {hold_s}; exit {number}"])
    _, status, _ = os.wait4(process.pid, 0)
    return str(os.waitstatus_to_exitcode(status))


def look_up(number: int, hold_s: float) -> str:
    """Resolve a name, and say nothing else."""
    return str(len(socket.getaddrinfo("localhost", 80)) > 0)


VIEWS: dict[str, Callable[[int, float], str]] = {
    "/write": write_to_sqlite,
    "/read": read_from_sqlite,
    "/flock": write_under_flock,
    "/lockf": wait_for_lockf,
    "/system": run_a_command,
    "/waitpid": wait_for_a_child,
    "/wait4": measure_a_child,
    "/dns": look_up,
}


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer ``/view?number,seconds``."""
    number, _, hold_s = environ["QUERY_STRING"].partition(",")
    answer = VIEWS[environ["PATH_INFO"]](int(number or 0), float(hold_s or 0))
    start_response("200 OK", [("Content-Length", str(len(answer)))])
    return [answer.encode()]
