"""
The slot table among real processes: killed, stopped and replaced at random, judged by the server.

``GREENLINE_LONG_TESTS=1`` goes on for two thousand rounds, which take ten minutes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from embedded.postgres import temporary
from greenline.slots.table import MAX_OVERFLOW
from tests.helpers.support import CHECKOUT, IS_LONG, environ

# A round is one kill, stop, end or reload; forty have some of each.
ROUNDS = 2_000 if IS_LONG else 40
LIMIT_S = 90 + ROUNDS / 2
CAPACITY, RESERVED_BY_POSTGRES = 24, 3

# Eight processes open the slot table in the same moment and take a slot each, thirty times.
OPEN_AT_ONCE = """
import os, sys
from pathlib import Path
from greenline.slots import SlotTable
path, how = Path(sys.argv[1]), sys.argv[2]
for _ in range(30):
    path.unlink(missing_ok=True)
    if how != "there is none":
        path.touch(0o600)
        path.write_bytes(b"" if how == "it is truncated" else b"another" * 20_000)
    (waits, go), (results, result), (until, over) = os.pipe(), os.pipe(), os.pipe()
    for _ in range(8):
        if os.fork() == 0:
            os.close(go), os.close(over)
            os.read(waits, 1)
            try:
                slot_table = SlotTable(path)
                slot_table.resize(8)
                slot = slot_table.take()
                os.write(result, bytes([slot.number if slot else 99]))
            except BaseException as error:
                print(repr(error), flush=True)
                os.write(result, bytes([98]))
            os.read(until, 1)
            os._exit(0)
    os.close(go)
    taken = sorted(os.read(results, 1)[0] for _ in range(8))
    os.close(over)
    for _ in range(8):
        os.wait()
    for fd in (waits, results, result, until):
        os.close(fd)
    assert taken == list(range(8)), taken
assert list(path.parent.iterdir()) == [path]
"""


def run(*command: str, limit_s: float) -> str:
    """Run Python, which must end well, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=CHECKOUT,
        env=environ({}),
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(LIMIT_S + 60)
def test_the_server_never_has_more_than_the_capacity(tmp_path: Path) -> None:
    """
    Whichever process is killed, stopped or replaced: the server, which takes no connection
    more, refuses none, none of its counts is too high, no process starves, and no slot is lost.
    """
    with temporary(CAPACITY + MAX_OVERFLOW + RESERVED_BY_POSTGRES) as server:
        reported = json.loads(
            run(
                "-m", "tests.integration.slots.slot_table_storm",
                server.url, server.superuser_url, str(tmp_path / "slots"),
                str(CAPACITY), str(ROUNDS), str(os.getpid()),
                limit_s=LIMIT_S,
            )
        )  # fmt: skip
    assert reported["troubles"] == []
    assert reported["highest"] <= CAPACITY + MAX_OVERFLOW
    assert reported["longest_wait_s"] < 10
    assert reported["not_settled"] == 0
    assert (
        reported["free_at_the_end"] >= CAPACITY - 1
    )  # one may be that of the connection that looks
    assert sum(reported[act] for act in ("kill", "stop", "end", "reload", "kill all")) == ROUNDS
    assert reported["settled"] > ROUNDS
    assert reported["returned"] > ROUNDS


@pytest.mark.parametrize("how", ["there is none", "it is truncated", "it is no slot table"])
def test_processes_that_open_it_at_once_share_one(tmp_path: Path, how: str) -> None:
    """Made or made anew by one of them while the others look: each slot is taken once."""
    run("-c", OPEN_AT_ONCE, str(tmp_path / "slots"), how, limit_s=90)
