"""Hashes of passwords are computed in native threads, not more at once than there are cores."""

import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.lock import Semaphore
from gevent.monkey import get_original

from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.offload import hashing, threads
from tests.helpers.support import CHECKOUT, environ

sleep = get_original("time", "sleep")
get_ident = get_original("_thread", "get_ident")

MODULE = """
from gevent.monkey import get_original

get_ident = get_original("_thread", "get_ident")

def {0}(password, **more):
    "Hash it."
    return get_ident(), password, more
"""
OF_A_CLASS = """
from gevent.monkey import get_original

class {0}:
    def derive(self, password, **more):
        "Hash it."
        return get_original("_thread", "get_ident")(), password, more
"""
SCRIPT = """
from greenline.patch import patch_all; patch_all()
from gevent.monkey import get_original
from {0} import {2}
{1} = {3}
ident, password, more = {1}(b"secret", salt=b"x")
print(ident != get_original("_thread", "get_ident")(), password, more, {1}.__doc__)
"""


@pytest.mark.parametrize("iterations", [1, hashing.MIN_ITERATIONS])
def test_pbkdf2_is_that_of_hashlib(iterations: int) -> None:
    """With all forms of its arguments, and all errors."""
    many = {"hash_name": "sha256", "password": b"secret", "salt": bytearray(b"salt")}
    for kwargs in (
        {"iterations": iterations, **many},
        {"iterations": iterations, "dklen": 20, **many},
    ):
        assert hashing.pbkdf2_hmac(**kwargs) == hashing._pbkdf2_hmac(**kwargs)
    args = ("sha512", b"secret", b"salt", iterations, None)
    assert hashing.pbkdf2_hmac(*args) == hashing._pbkdf2_hmac(*args)
    for wrong in (
        ("md55", b"", b"", iterations),
        ("md5", "", b"", iterations),
        ("md5", b"", b"", iterations, -1),
        ("md5", b"", b"", str(iterations)),
        ("md5", b"", b"", -iterations),
    ):
        assert outcome(hashing.pbkdf2_hmac, *wrong) == outcome(hashing._pbkdf2_hmac, *wrong)


def outcome(function: Callable[..., object], *args: Any) -> tuple[type[Exception], str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function(*args)
    return caught.type, str(caught.value)


@pytest.mark.parametrize(
    "compute",
    [
        lambda: hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", 500_000),
        lambda: hashlib.scrypt(b"secret", salt=b"salt", n=2**16, r=8, p=1, maxmem=2**27),
    ],
    ids=["pbkdf2", "scrypt"],
)
def test_others_go_on(compute: Callable[[], bytes]) -> None:
    """While a hash is computed that takes a tenth of a second or more."""
    hashing.patch()
    looks = 0
    hashed = gevent.spawn(compute)
    while not hashed.ready():
        gevent.sleep(0.001)
        looks += 1
    assert len(hashed.get()) in (32, 64)
    assert looks > 5


def test_not_more_at_once_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the hub would wait for a core; each has its turn."""
    monkeypatch.setattr(hashing.turns, "turns", Semaphore(2))
    now: list[int] = []
    highest: list[int] = []

    def compute(number: int) -> int:
        now.append(number)
        highest.append(len(now))
        sleep(0.05)
        now.remove(number)
        return number

    in_a_thread = hashing._in_a_thread(compute, "module")
    calls = [gevent.spawn(in_a_thread, number) for number in range(6)]
    gevent.joinall(calls, timeout=10, raise_error=True)
    assert [call.value for call in calls] == list(range(6))
    assert max(highest) == 2


def test_a_turn_is_waited_for_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is there for the next one."""
    monkeypatch.setattr(hashing.turns, "turns", Semaphore(1))
    ident = hashing._in_a_thread(get_ident, "module")
    hashing.turns.turns.acquire()
    with pytest.raises(DeadlineExceeded), deadline.limit(0.02):
        ident()
    hashing.turns.turns.release()
    assert ident() != get_ident()


def test_a_turn_ends_with_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """A greenlet that is interrupted goes on at once, and its hash needs a core until its end."""
    monkeypatch.setattr(hashing.turns, "turns", Semaphore(1))
    goes_on: list[None] = []

    def compute() -> None:
        while not goes_on:
            sleep(0.001)

    hashed = gevent.spawn(hashing._in_a_thread(compute, "module"))
    gevent.sleep(0.01)
    hashed.kill()
    assert hashing.turns.turns.locked()
    goes_on.append(None)
    assert hashing.turns.turns.acquire(timeout=10)


def test_without_a_thread_no_turn_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has as many threads as it may have."""

    def take() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(hashing.turns, "turns", Semaphore(1))
    monkeypatch.setattr(threads, "_take", take)
    with pytest.raises(RuntimeError):
        hashing._in_a_thread(get_ident, "module")()
    assert not hashing.turns.turns.locked()


def test_the_functions_can_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of processes gets them by their names, also in a process without the runtime."""
    for module in (hashlib, sys.modules["_hashlib"]):
        monkeypatch.setattr(module, "pbkdf2_hmac", hashlib.pbkdf2_hmac)
        monkeypatch.setattr(module, "scrypt", hashlib.scrypt)
    hashing.patch()
    for function in (hashlib.pbkdf2_hmac, hashlib.scrypt):
        # passlib does not use one of hashlib itself: that was once a slow one in Python.
        assert function.__module__ == "_hashlib"
        text = pickle.dumps(function)
        assert pickle.loads(text) is function  # noqa: S301
        assert b"greenline" not in text


def test_a_forked_child_has_its_own_turns() -> None:
    """Those of the parent are held by greenlets that the child does not have."""
    turns = hashing.turns.turns
    held = 0
    while turns.acquire(blocking=False):
        held += 1
    try:
        child = os.fork()
        if child == 0:
            os._exit(not hashing.turns.turns.acquire(blocking=False))
        assert os.waitpid(child, 0)[1] == 0
    finally:
        for _ in range(held):
            turns.release()


@pytest.mark.parametrize(
    ("module", "name", "text", "hash_"),
    [
        *((module, name, MODULE, name) for module in hashing.FUNCTIONS
          for name in hashing.FUNCTIONS[module]),
        *((module, name, OF_A_CLASS, f"{name}().derive") for module in hashing.CLASSES
          for name in hashing.CLASSES[module]),
    ],
)  # fmt: skip
def test_libraries_of_the_index_work_in_threads_too(
    tmp_path: Path, module: str, name: str, text: str, hash_: str
) -> None:
    """Their functions and methods keep their arguments and their text."""
    file = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.format(name))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(module, "hash_", name, hash_)],
        env={**environ({}), "PYTHONPATH": f"{CHECKOUT}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout == "True b'secret' {'salt': b'x'} Hash it.\n", done.stderr
