"""An application that knows nothing of greenlets: its views run coroutines, as in threads."""

import asyncio
import threading
import time
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async

NAP_S = 0.2


async def _nap(number: str) -> str:
    before = asyncio.get_running_loop(), asyncio.current_task()
    await asyncio.sleep(NAP_S)
    assert (asyncio.get_running_loop(), asyncio.current_task()) == before
    return number


async def _block(number: str) -> str:
    """What a thread may do as well: block in a coroutine, and let the other threads go on."""
    time.sleep(NAP_S)
    return await _nap(number)


async def _nest(number: str) -> str:
    inner = _nap(number)
    try:
        asyncio.run(inner)
    except RuntimeError as error:
        inner.close()
        return f"{number} {error}"
    return "it ran"


async def _in_a_thread(number: str) -> str:
    def work() -> str:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            time.sleep(NAP_S)
            return number
        return "a loop runs in the thread"

    loop = asyncio.get_running_loop()
    one, other = await asyncio.gather(asyncio.to_thread(work), loop.run_in_executor(None, work))
    return one if one == other else "different"


async def _by_asgiref(number: str) -> str:
    return str(await sync_to_async(async_to_sync(_nap))(number))


def _by_hand(number: str) -> str:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(_nap(number))
    finally:
        assert asyncio.get_event_loop() is loop
        asyncio.set_event_loop(None)
        loop.close()


def _by_runner(number: str) -> str:
    with asyncio.Runner() as runner:
        return runner.run(_nap(number)) + runner.run(_nap(""))


KINDS = {
    "run": lambda number: asyncio.run(_nap(number)),
    "block": lambda number: asyncio.run(_block(number)),
    "nest": lambda number: asyncio.run(_nest(number)),
    "to_thread": lambda number: asyncio.run(_in_a_thread(number)),
    "asgiref": lambda number: async_to_sync(_by_asgiref)(number),
    "by_hand": _by_hand,
    "runner": _by_runner,
}

_seen = threading.local()


def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Answer ``/kind/number`` with the number."""
    _, kind, number = (environ["PATH_INFO"] + "//").split("/")[:3]
    answer = KINDS[kind](number) if kind in KINDS else ""
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [answer.encode()]
