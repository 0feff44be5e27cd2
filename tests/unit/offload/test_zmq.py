"""Sockets of ZeroMQ wait in the hub, as those of threads wait in their thread."""

import socket
import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

import gevent
import pytest
import zmq

from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from tests.helpers.support import run


@pytest.fixture(name="context")
def made_context() -> Iterator[Any]:
    """A context, whose sockets are closed after the test."""
    made = []

    class Context(zmq.Context[Any]):
        def socket(self, *args: Any, **kwargs: Any) -> Any:
            made.append(super().socket(*args, **kwargs))
            return made[-1]

    context: Any = Context()
    context.linger = 0
    with gevent.Timeout(30):
        yield context
        for each in made:
            each.close()
        context.term()


def pair(context: Any, kind: int = zmq.REP, peer: int = zmq.REQ) -> tuple[Any, Any]:
    """Return two sockets that are connected to each other."""
    server, client = context.socket(kind), context.socket(peer)
    client.connect(f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}")
    return server, client


def ticks_meanwhile(function: Any) -> int:
    """Return how often a greenlet of the hub ran while *function* waited."""
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        while True:
            gevent.sleep(0.01)
            ticks += 1

    ticker = gevent.spawn(tick)
    try:
        function()
        return ticks
    finally:
        ticker.kill()


def test_a_view_asks_a_thread_of_its_worker(context: Any) -> None:
    """By messages of one part and of several, of each kind."""
    server, client = pair(context)

    def serve() -> None:
        while (parts := server.recv_multipart())[0] != b"end":
            gevent.sleep(0.02)
            server.send_multipart(parts)
        server.send(b"ended")

    thread = threading.Thread(target=serve)
    thread.start()
    client.send(b"one")
    assert client.recv() == b"one"
    client.send_multipart([b"one", b"two"])
    assert client.recv_multipart() == [b"one", b"two"]
    client.send_json({"key": 1})
    assert client.recv_json() == {"key": 1}
    client.send(b"into")
    buffer = bytearray(10)
    assert client.recv_into(buffer) == 4
    assert buffer[:4] == b"into"
    client.send_string("end")
    assert client.recv_string() == "ended"
    thread.join()


@pytest.mark.parametrize("wait", ["recv", "poll", "select", "Poller"])
def test_its_own_timeouts_end_a_wait(context: Any, wait: str) -> None:
    """Meanwhile the hub runs."""
    server, _ = pair(context)
    poller = zmq.Poller()
    poller.register(server, zmq.POLLIN)

    def receive() -> None:
        server.rcvtimeo = 1000
        with pytest.raises(zmq.Again):
            server.recv()

    def nothing(found: Any) -> None:
        assert not found

    waits = {
        "recv": receive,
        "poll": lambda: nothing(server.poll(1000)),
        "select": lambda: nothing(zmq.select([server], [], [], 1.0)[0]),
        "Poller": lambda: nothing(poller.poll(1000)),
    }
    begun = monotonic()
    assert ticks_meanwhile(waits[wait]) > 5
    assert 1.0 <= monotonic() - begun < 2.0


def test_who_must_not_wait_does_not(context: Any) -> None:
    """With the flag, and with a timeout of 0."""
    server, client = pair(context, zmq.PULL, zmq.PUSH)
    with pytest.raises(zmq.Again):
        server.recv(zmq.NOBLOCK)
    assert server.poll(0) == 0
    server.rcvtimeo = 0
    with pytest.raises(zmq.Again):
        server.recv()
    client.send(b"late")
    server.rcvtimeo = 5000
    assert server.recv() == b"late"


def test_a_full_queue_is_waited_for(context: Any) -> None:
    """And each message arrives once, in order."""
    context.rcvhwm = context.sndhwm = 2  # messages
    server, client = pair(context, zmq.PULL, zmq.PUSH)
    other = context.socket(zmq.PUSH)
    other.sndtimeo = 100
    with pytest.raises(zmq.Again):
        other.send(b"to nobody")
    sender = gevent.spawn(lambda: [client.send(b"%d" % i + b"x" * 50_000) for i in range(300)])
    gevent.sleep(0.2)
    assert not sender.dead  # else the queue was not full
    assert [int(server.recv().rstrip(b"x")) for _ in range(300)] == list(range(300))
    sender.get()


def test_the_only_way_to_a_full_peer_is_waited_for(context: Any) -> None:
    """A router that must deliver can always send to somebody, by its events."""
    context.rcvhwm = context.sndhwm = 2  # messages
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    router.router_mandatory, dealer.routing_id = 1, b"one"
    dealer.connect(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
    dealer.send(b"hello")
    router.recv_multipart()
    body = b"x" * 50_000
    sender = gevent.spawn(lambda: [router.send_multipart([b"one", body]) for _ in range(300)])
    gevent.sleep(0.2)
    assert not sender.dead
    assert ticks_meanwhile(lambda: gevent.sleep(1.0)) > 5  # it does not try all the time
    assert [dealer.recv() for _ in range(300)] == [body] * 300
    sender.get()


def test_many_wait_at_the_same_time(context: Any) -> None:
    """Each in its greenlet, on a socket of its own."""
    pairs = [pair(context) for _ in range(20)]
    waiting = [gevent.spawn(client.recv) for _, client in pairs if client.send(b"") is None]
    for number, (server, _) in enumerate(pairs):
        server.recv()
        server.send(b"%d" % number)
    gevent.joinall(waiting, raise_error=True)
    assert [int(each.value) for each in waiting] == list(range(20))


def test_files_are_polled_beside_sockets(context: Any) -> None:
    """As libzmq does, by number and by object."""
    server, client = pair(context, zmq.PULL, zmq.PUSH)
    one, other = socket.socketpair()
    poller = zmq.Poller()
    poller.register(server, zmq.POLLIN)
    poller.register(one, zmq.POLLIN)
    gevent.spawn_later(0.1, other.send, b"x")
    assert poller.poll() == [(one.fileno(), zmq.POLLIN)]
    one.recv(1)
    poller.modify(one, zmq.POLLOUT)
    assert poller.poll(5000) == [(one.fileno(), zmq.POLLOUT)]
    poller.unregister(one)
    gevent.spawn_later(0.1, client.send, b"x")
    assert poller.poll() == [(server, zmq.POLLIN)]
    one.close()
    other.close()


def test_a_deadline_ends_a_wait_and_the_socket_goes_on(context: Any) -> None:
    """And its next message is not lost."""
    server, client = pair(context, zmq.PULL, zmq.PUSH)
    with pytest.raises(DeadlineExceeded), deadline.limit(0.1):
        server.recv()
    with pytest.raises(DeadlineExceeded), deadline.limit(0.1):
        server.poll()
    client.send(b"kept")
    assert server.recv() == b"kept"


def test_a_proxy_runs_beside_the_hub() -> None:
    """Until its context ends, which is waited for as well."""
    context: Any = zmq.Context()
    front, back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    ports = [each.bind_to_random_port("tcp://127.0.0.1") for each in (front, back)]
    ended = []

    def relay() -> None:
        with pytest.raises(zmq.ContextTerminated):
            zmq.proxy(front, back)
        ended.append(True)
        front.close()
        back.close()

    proxy = threading.Thread(target=relay)
    proxy.start()
    client, server = context.socket(zmq.REQ), context.socket(zmq.REP)
    for each, port in zip((client, server), ports, strict=True):
        each.connect(f"tcp://127.0.0.1:{port}")
    with gevent.Timeout(30):
        client.send(b"question")
        assert server.recv() == b"question"
        server.send(b"answer")
        assert client.recv() == b"answer"
        server.close()
        client.close()
        context.term()
        proxy.join()
    assert ended


def test_the_end_of_a_context_ends_its_waits() -> None:
    """As it ends those of threads."""
    context: Any = zmq.Context()
    waiting = context.socket(zmq.PULL)

    def wait() -> None:
        with pytest.raises(zmq.ContextTerminated):
            waiting.recv()
        waiting.close()

    thread = threading.Thread(target=wait)
    thread.start()
    gevent.sleep(0.05)
    with gevent.Timeout(10):
        context.term()
        thread.join()


# In processes of their own: the thread of the first ends with its process, and the second loads
# zmq.green, by which pages are known to be of an application that uses gevent.
NOT_COPIED = """
from greenline.patch import patch_all; patch_all()
import sys
import threading
import zmq

with zmq.Context() as context:
    server, client = context.socket(zmq.REP), context.socket(zmq.REQ)
    client.connect(f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}")
    thread = threading.Thread(target=lambda: server.send_multipart(server.recv_multipart()))
    thread.start()
    client.send(b"x" * 100_000, copy=False)
    print(client.recv(copy=False).bytes == b"x" * 100_000, "zmq.green" in sys.modules)
    thread.join()
    server.close()
    client.close()
"""
GREEN = """
from greenline.patch import patch_all; patch_all()
import gevent
import zmq.green as zmq

with zmq.Context() as context:
    server, client = context.socket(zmq.REP), context.socket(zmq.REQ)
    client.connect(f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}")
    asked = gevent.spawn(lambda: server.send(server.recv()))
    client.send(b"x")
    print(client.recv())
    server.close()
    client.close()
"""


def test_a_message_that_is_not_copied_is_received() -> None:
    """A thread of pyzmq waits for its end, without zmq.green."""
    assert run(["python", "-c", NOT_COPIED], {}).stdout == "True False\n"


def test_the_green_sockets_of_pyzmq_stay_as_they_are() -> None:
    """They wait by themselves."""
    assert run(["python", "-c", GREEN], {}).stdout == "b'x'\n"


OLD = """
from greenline.patch import patch_all; patch_all()
import zmq.backend
from greenline.offload import zmq as ours

del zmq.backend.monitored_queue
zmq.backend.device = device = lambda *args: args
ours.patch(zmq.backend)
print(zmq.backend.device is device, zmq.backend.device(1, 2))
"""


def test_an_older_version_has_other_relays() -> None:
    """Version 25 has ``device`` and no ``monitored_queue``."""
    assert run(["python", "-c", OLD], {}).stdout == "False (1, 2)\n"
