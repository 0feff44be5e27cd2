"""Unmodified code that calls gRPC: calls at once, beside other greenlets and look-ups of names."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.support import CHECKOUT, environ

PROGRAM = """
from greenline.patch import patch_all; patch_all()
import socket, sys, time
import gevent
if sys.argv[2:]:
    gevent.get_hub().threadpool.apply(__import__, ("grpc",))
import grpc

channel = grpc.insecure_channel("127.0.0.1:" + sys.argv[1])
once, thrice = channel.unary_unary("/once"), channel.unary_stream("/thrice")

def took_s(function, *args, **more):
    begun_s = time.monotonic()
    function(*args, **more)
    return time.monotonic() - begun_s

turns = 0
def count():
    global turns
    while True:
        gevent.sleep(0.01)
        turns += 1
counting = gevent.spawn(count)

calls = [gevent.spawn(once, b"2", timeout=20) for _ in range(40)]
gevent.sleep(0.2)
print(took_s(once, b"0", timeout=20) < 1.2, took_s(socket.getaddrinfo, "localhost", 80) < 1)
begun_s = time.monotonic()
gevent.joinall(calls)
print({call.value for call in calls}, time.monotonic() - begun_s < 3.5, turns > 50)

streams = [gevent.spawn(lambda: list(thrice(b"0.1", timeout=20))) for _ in range(20)]
print({len(stream.get()) for stream in streams})
print(once.future(b"0.1", timeout=20).result())
with grpc.insecure_channel("127.0.0.1:" + sys.argv[1]) as other:
    print(other.unary_unary("/once")(b"0", timeout=20))
try:
    once(b"5", timeout=0.2)
except grpc.RpcError as error:
    print(error.code().name)
ended = gevent.spawn(once, b"5", timeout=20)
gevent.sleep(0.1)
ended.kill()
print(once(b"0", timeout=20))
"""
SAID = """\
True True
{b'done'} True True
{3}
b'done'
b'done'
DEADLINE_EXCEEDED
b'done'
"""


@pytest.fixture
def port() -> Iterator[str]:
    """Return the port of a server."""
    module = "tests.integration.offload.grpc_server"
    with subprocess.Popen(
        [sys.executable, "-m", module], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.kill()


@pytest.mark.parametrize("where", [[], ["a native thread"]], ids=["here", "in a native thread"])
def test_calls_wait_side_by_side(port: str, where: list[str]) -> None:
    """Each as long as under threads: with a deadline, interrupted, or in a stream."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, port, *where],
        cwd=CHECKOUT, env=environ({}), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == SAID, done.stderr


ASYNCHRONOUS = """
from greenline.patch import patch_all; patch_all()
import asyncio, sys, time
import gevent
import grpc.aio

async def ask(seconds, **more):
    async with grpc.aio.insecure_channel("127.0.0.1:" + sys.argv[1]) as channel:
        return await channel.unary_unary("/once")(seconds, timeout=20, **more)

async def some():
    return await asyncio.gather(*[ask(b"1") for _ in range(5)])

begun_s = time.monotonic()
views = [gevent.spawn(lambda: asyncio.run(some())) for _ in range(4)]
turns = 0
while not all(view.ready() for view in views):
    gevent.sleep(0.01)
    turns += 1
took_s = time.monotonic() - begun_s
print({answer for view in views for answer in view.get()}, took_s < 3, turns > 20)
print(grpc.insecure_channel("127.0.0.1:" + sys.argv[1]).unary_unary("/once")(b"0", timeout=20))
"""


def test_asynchronous_calls_wait_side_by_side(port: str) -> None:
    """In views that run a loop each, beside other greenlets, and calls that are not."""
    done = subprocess.run(
        [sys.executable, "-c", ASYNCHRONOUS, port],
        cwd=CHECKOUT, env=environ({}), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "{b'done'} True True\nb'done'\n", done.stderr


def test_a_package_of_the_applications_own_with_this_name_is_left_alone(tmp_path: Path) -> None:
    """It is imported as ever."""
    (tmp_path / "grpc").mkdir()
    (tmp_path / "grpc" / "__init__.py").write_text("OURS = True\n")
    script = "from greenline.patch import patch_all; patch_all(); import grpc; print(grpc.OURS)"
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{CHECKOUT}"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environ(path), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr
