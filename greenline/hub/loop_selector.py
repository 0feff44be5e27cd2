"""
Let asyncio's loops look for events at less cost.

A loop that has callbacks to run asks its selector at each step what is ready now. gevent's waits
for a timer of zero seconds: it makes a timer and raises an exception, which costs more than the
step.
"""

import asyncio
from functools import wraps
from typing import Any

from gevent.selectors import GeventSelector

from greenline.hub.gevent_compat import get_hub_if_exists


class LoopSelector(GeventSelector):
    """A selector that visits the hub once where it is to return at once."""

    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready; with a timeout of 0, what the hub has seen until now."""
        # As if there were events: gevent yields to the hub then, and does not wait. A native thread
        # whose waits are in the hub of the worker must not set it.
        if timeout is not None and timeout <= 0 and self.hub is get_hub_if_exists():
            self._ready.set()  # type: ignore[attr-defined]
        return super().select(timeout)


def install() -> None:
    """Give each new loop such a selector, unless it gets another one. Call once in a process."""
    kind: Any = asyncio.selector_events.BaseSelectorEventLoop
    init = kind.__init__

    @wraps(init)
    def __init__(self: Any, selector: Any = None) -> None:  # noqa: N807
        init(self, LoopSelector() if selector is None else selector)

    kind.__init__ = __init__
