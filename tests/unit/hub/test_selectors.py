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
