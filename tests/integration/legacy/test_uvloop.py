"""greenline.legacy.uvloop: what asks uvloop for a loop lets the other greenlets run."""

from tests.helpers.support import run

USED = """
from greenline.patch import patch_all; patch_all()
import asyncio, logging
import gevent, uvloop
logging.basicConfig(format="%(message)s")
uvloop.install()
begun = []
async def work():
    begun.append(None)
    while len(begun) < 16:
        await asyncio.sleep(0.01)
    return 42
def by_runner():
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())
def by_class():
    with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
        return runner.run(work())
ways = [lambda: uvloop.run(work()), lambda: asyncio.run(work()), by_runner, by_class] * 4
jobs = [gevent.spawn(way) for way in ways]
print([job.get(timeout=30) for job in jobs] == [42] * 16)
"""


def test_its_loops_wait_in_the_hub() -> None:
    """Each one waits for all others to begin; what is used instead is said once."""
    done = run(["python", "-W", "ignore", "-c", USED], {})
    assert done.stdout == "True\n"
    assert done.stderr == "uvloop's loops would block the worker: asyncio's own are used\n"
