"""Load an application without collections: it makes objects that stay, and hardly any garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Begin no collection in the block, which takes a tenth of an import's time."""
    # Not gc.disable(): the application may call that, or gc.enable(), while it is loaded.
    before = gc.get_threshold()
    gc.set_threshold(0, *before[1:])
    during = gc.get_threshold()
    try:
        yield
    finally:
        if gc.get_threshold() == during:  # the application has set no other one
            gc.set_threshold(*before)
