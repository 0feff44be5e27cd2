"""greenline.hub.loop_selector: a loop that has callbacks to run visits the hub at each step."""

from tests.helpers.support import run

USED = """
from greenline.patch import patch_all; patch_all()
import asyncio, selectors, socket
import gevent
from greenline.hub.loop_selector import LoopSelector

ours, other = socket.socketpair()
ours.setblocking(False)
ran = []

async def step_until(is_done):
    while not is_done():
        await asyncio.sleep(0)

async def work():
    loop = asyncio.get_running_loop()
    print(type(loop._selector) is LoopSelector)
    gevent.spawn(ran.append, "another greenlet")
    await step_until(lambda: ran)
    print(ran)
    read = asyncio.ensure_future(loop.sock_recv(ours, 10))
    await asyncio.sleep(0)
    other.send(b"x")
    await step_until(read.done)
    print(await read)
    gevent.spawn_later(0.1, other.send, b"late")
    print(await asyncio.wait_for(loop.sock_recv(ours, 10), 10))

asyncio.run(work())
given = selectors.DefaultSelector()
loop = asyncio.SelectorEventLoop(given)
print(loop._selector is given)
loop.close()
"""


def test_it_yields_and_sees_events() -> None:
    """A loop that never waits lets other greenlets run, and gets what its sockets receive."""
    done = run(["python", "-c", USED], {})
    assert done.stdout.splitlines() == [
        "True",
        "['another greenlet']",
        "b'x'",
        "b'late'",
        "True",
    ]
