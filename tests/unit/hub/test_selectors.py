"""greenline.hub.selectors: the hub hears of an event once."""

from tests.helpers.support import run

LEFT_ALONE = """
from greenline.patch import patch_all; patch_all()
import selectors, socket
import gevent
from greenline.hub.cooperate import FIRST

ours, other = socket.socketpair()
selector = selectors.DefaultSelector()
selector.register(ours, selectors.EVENT_READ)
print(selector.select(0.001))
for _ in range(2):
    other.send(b"x")
    with gevent.Timeout(5):
        for _ in range(3):
            gevent.idle(FIRST)  # the event has come
    print(len(selector.select()), ours.recv(1))
"""


def test_a_file_with_an_event_does_not_keep_the_hub_busy() -> None:
    """While nobody looks, idle watchers are called, which let those go on that have a turn."""
    done = run(["python", "-c", LEFT_ALONE], {})
    assert done.stdout.splitlines() == ["[]", "1 b'x'", "1 b'x'"]


CLOSED_IN_C = """
from greenline.patch import patch_all; patch_all()
import asyncio, ctypes, selectors, socket
import gevent

ours, other = socket.socketpair()
fd = ours.detach()
selector = asyncio.new_event_loop()._selector
selector.register(fd, selectors.EVENT_READ)
print(selector.select(0))
ctypes.CDLL(None).close(fd)  # by another way than Python's
gevent.sleep(0.01)
selector.unregister(fd)
print("it goes on")
"""


def test_a_file_that_a_library_closes_does_not_end_the_process() -> None:
    """Before the hub began to watch it; ``zmq.asyncio`` unregisters its sockets afterwards."""
    done = run(["python", "-c", CLOSED_IN_C], {})
    assert done.stdout.splitlines() == ["[]", "it goes on"]


KILLED = """
from greenline.patch import patch_all; patch_all()
import asyncio, ctypes, selectors, socket
import gevent

ours, other = socket.socketpair()
fd = ours.detach()
selector = asyncio.new_event_loop()._selector
selector.register(fd, selectors.EVENT_READ)

def look():
    try:
        selector.select()
    finally:
        ctypes.CDLL(None).close(fd)  # by another way than Python's
        gevent.sleep(0.01)
        selector.unregister(fd)
        print("it goes on")

looking = gevent.spawn(look)
gevent.spawn(looking.kill, block=False)
looking.join()
"""


def test_a_file_that_is_closed_as_its_greenlet_is_killed_does_not_end_the_process() -> None:
    """In the round of the hub in which its wait has begun."""
    assert run(["python", "-c", KILLED], {}).stdout == "it goes on\n"


SEEN_LATER = """
from greenline.patch import patch_all; patch_all()
import asyncio, selectors, socket
import gevent

ours, other = socket.socketpair()
selector = asyncio.new_event_loop()._selector
selector.register(ours, selectors.EVENT_READ)
other.send(b"x")
with gevent.Timeout(5):
    while not (found := selector.select(0)):
        pass
print(len(found))
"""


def test_one_who_never_waits_sees_its_events() -> None:
    """The hub looks during the calls."""
    assert run(["python", "-c", SEEN_LATER], {}).stdout == "1\n"
