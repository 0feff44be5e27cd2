"""
Call functions at the end of each request, in the greenlet that has run the application.

Rooms above the hub add theirs; the worker calls :func:`run`.
"""

from collections.abc import Callable
from contextlib import ExitStack

functions: list[Callable[[], None]] = []


def run() -> None:
    """Call the functions that were added, the last one first; each is called if another fails."""
    if functions:
        with ExitStack() as stack:
            for each in functions:
                stack.callback(each)
