"""
Let uvloop make loops of asyncio's own kind.

Its own wait in C: a view that runs one would block the other greenlets of the worker until it ends.
"""

import asyncio
import logging
import warnings
from collections.abc import Callable, Coroutine
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


def replace(uvloop: ModuleType) -> None:
    """Replace uvloop's functions."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        policy: Any = getattr(asyncio, "DefaultEventLoopPolicy", None)
    # The last two are names that uvloop may have, and makes when they are asked for.
    replaced = {
        "Loop": asyncio.SelectorEventLoop, "new_event_loop": new_event_loop, "run": run,
        "install": _note, "EventLoopPolicy": policy,
    }  # fmt: skip
    for name, ours in replaced.items():
        setattr(uvloop, name, ours)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop."""
    _note()
    return asyncio.new_event_loop()


def run(
    main: Coroutine[Any, Any, T],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop,
    debug: bool | None = None,
) -> T:
    """Run a coroutine; parameters as of :func:`uvloop.run`."""
    with asyncio.Runner(debug=debug, loop_factory=loop_factory) as runner:
        return runner.run(main)


@cache
def _note() -> None:
    log.warning("uvloop's loops would block the worker: asyncio's own are used")
