"""greenline.legacy.psycopg3: psycopg 3 waits in the hub, whenever it is imported."""

from pathlib import Path

import pytest

from tests.helpers.support import run

# psycopg is not installed here: its two functions, of which the worker needs the arguments.
WAITING = """
def wait(gen, fileno, interval=0.0, timeout=None):
    raise NotImplementedError
def wait_conn(gen, interval=0.0, timeout=None):
    raise NotImplementedError
"""
ERRORS = "class _WaitTimeout(Exception): pass"

PATCHED = "from greenline.patch import patch_all; patch_all()"
IMPORTED = "from psycopg import errors, waiting"
USED = """
import socket, time
import gevent
from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
ours, other = socket.socketpair()
sent = []
def operation(*states):
    for state in states:
        sent.append((yield state))
    return 42
def connecting(*states):
    for state in states:
        sent.append((yield (ours.fileno(), state)))
    return 43
def raised(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except (errors._WaitTimeout, DeadlineExceeded) as error:
        return type(error).__name__
def within(seconds):
    with deadline.limit(seconds):
        waiting.wait(operation(1), ours.fileno(), interval=60)
gevent.spawn_later(0.2, other.send, b"x")
print(waiting.wait(operation(2, 3, 1), ours.fileno(), interval=60), sent)
print(waiting.wait_conn(connecting(3, 1), interval=60), sent[3:])
ours.recv(1)
print(waiting.wait(operation(1), ours.fileno(), interval=0.01), sent[5:])
print(raised(waiting.wait, operation(*[1] * 100), ours.fileno(), interval=60, timeout=0.1))
print(raised(within, 0.1))
interrupted = operation(1, 1)
gevent.spawn_later(0.1, gevent.getcurrent().throw, KeyboardInterrupt)
try:
    waiting.wait(interrupted, ours.fileno(), interval=60)
except KeyboardInterrupt:
    other.send(b"x")
    print(waiting.wait(interrupted, ours.fileno(), interval=60), "after an interrupt")
ours.recv(1)
other.close()
print(waiting.wait(operation(1), ours.fileno(), interval=60), sent[-1:])
"""


@pytest.mark.parametrize(
    "begin", [[PATCHED, IMPORTED], [IMPORTED, PATCHED]], ids=["patched first", "imported first"]
)
def test_waits_in_the_hub(begin: list[str], tmp_path: Path) -> None:
    """What is ready is sent to the operation; an interval, a timeout and a deadline end a wait.

    After an interrupt psycopg goes on with the operation.
    """
    package = tmp_path / "psycopg"
    package.mkdir()
    for name, content in (("__init__", ""), ("waiting", WAITING), ("errors", ERRORS)):
        (package / f"{name}.py").write_text(content)
    done = run(["python", "-c", "\n".join([*begin, USED])], {"PYTHONPATH": str(tmp_path)})
    assert done.stdout.splitlines() == [
        "42 [2, 2, 1]",
        "43 [3, 1]",
        "42 [0]",
        "_WaitTimeout",
        "DeadlineExceeded",
        "42 after an interrupt",
        "42 [1]",
    ]
