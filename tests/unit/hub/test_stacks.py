"""What a greenlet waits for, by its frames; and which greenlets are described."""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
import gevent.lock
import gevent.queue
import pytest
from gevent.event import Event

import greenline
from greenline.hub import deadline, stacks
from greenline.hub.handlers import Handlers

OURS = os.path.dirname(greenline.__file__)
GEVENT = os.path.dirname(gevent.__file__)
THREADING = threading.__file__
VIEW = ("/srv/shop/views.py", 7, "report")
WORKER = (f"{OURS}/http/connection.py", 246, "_handle")


@pytest.mark.parametrize(
    ("inner", "waits_for"),
    [
        ([(f"{GEVENT}/hub.py", 166, "sleep")], "a sleep"),
        ([(f"{OURS}/postgres/wait.py", 30, "wait"), (f"{GEVENT}/hub.py", 1, "wait")], "Postgres"),
        ([("/venv/pymongo/network_layer.py", 1, "receive"), (f"{GEVENT}/_socket3.py", 1, "recv")],
         "MongoDB"),
        ([("/venv/redis/connection.py", 1, "read"), (f"{GEVENT}/_socket3.py", 1, "recv")], "Redis"),
        ([("/venv/urllib3/response.py", 1, "read"), (f"{GEVENT}/_socket3.py", 1, "recv")],
         "the network"),
        ([("/venv/sqlalchemy/pool/impl.py", 1, "_do_get"), (THREADING, 1, "wait")],
         "a connection of SQLAlchemy's pool"),
        ([(THREADING, 1, "acquire"), (f"{OURS}/hub/lock_waits.py", 70, "_acquire")], "a lock"),
        ([(f"{OURS}/http/plain_client.py", 161, "sendall")], "the client"),
        ([], ""),
        ([("/srv/shop/sums.py", 1, "add_up")], ""),
    ],
    ids=["sleep", "Postgres", "MongoDB", "Redis", "network", "a pool", "a lock", "the client",
         "itself", "its own function"],
)  # fmt: skip
def test_a_wait_is_named_by_the_innermost_frame_that_is_known(
    inner: list[tuple[str, int, str]], waits_for: str
) -> None:
    """The worker's own frames, which are in each stack, name no wait."""
    assert stacks.wait_of([WORKER, VIEW, *inner]) == waits_for


@contextmanager
def serving(environ: dict[str, object], wait: Event) -> Iterator[None]:
    """A handler that serves a request and waits for an event."""

    def work(_: object) -> None:
        deadline.count_in(environ)
        with deadline.spending("postgres"):
            wait.wait()

    handlers = Handlers()
    gevent.get_hub().loop.run_callback(handlers.start, work, None)
    gevent.sleep(0)
    gevent.sleep(0)
    yield
    wait.set()
    gevent.sleep(0)


def test_a_handler_has_its_request() -> None:
    """With its route and its age; other greenlets have none, and idle ones are left out."""
    environ: dict[str, object] = {
        "REQUEST_METHOD": "GET", "PATH_INFO": "/books/7", "greenline.route": "/books/<id>",
    }  # fmt: skip
    go = Event()
    other = gevent.spawn(go.wait)
    with serving(environ, go):
        found = stacks.describe(1, {id(environ): 2.5}, {})
        (mine,) = [each for each in found.greenlets if each.request is not None]
        assert mine.request is not None
        assert (mine.request.path, mine.request.route) == ("/books/7", "/books/<id>")
        assert mine.request.age_s == 2.5
        assert mine.request.waits_for == "Postgres"
        assert mine.waits_for == "Postgres"
        assert found.stacks[mine.stack][-1][2] == "work"  # the wait of an event is compiled
        count = len(found.greenlets)
    other.join()
    gc.collect()
    after = stacks.describe(1, {}, {})
    assert [each for each in after.greenlets if each.request is not None] == []
    assert len(after.greenlets) < count


def test_a_client_that_waits_for_its_turn_is_in_no_handler() -> None:
    """Its own greenlet has the request; those of clients without one are left out."""
    go = Event()
    queued, idle = gevent.spawn(go.wait), gevent.spawn(go.wait)
    gevent.sleep(0)
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", deadline.WAITS_FOR: "turn"}
    before = stacks.describe(1, {}, {})
    found = stacks.describe(1, {}, {queued: environ, idle: None})
    assert len(found.greenlets) == len(before.greenlets) - 1
    (mine,) = [each for each in found.greenlets if each.request is not None]
    assert mine.request is not None
    assert mine.request.waits_for == "its turn"
    go.set()
    gevent.joinall([queued, idle])


def test_greenlets_that_were_made_before_the_freeze_are_found() -> None:
    """The garbage collector does not list them any more."""
    go = Event()

    def housekeeper() -> None:
        go.wait()

    early = gevent.spawn(housekeeper)
    gevent.sleep(0)
    stacks.note_permanent()
    gc.freeze()
    try:
        found = stacks.describe(1, {}, {})
    finally:
        gc.unfreeze()
    assert any("housekeeper" in str(stack) for stack in found.stacks)
    go.set()
    early.join()
