"""Load an application with few collections: it makes objects that stay, and hardly any garbage."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

# As many objects may be made between two collections: a load that makes garbage keeps no more.
OBJECTS = 50_000

_before: tuple[int, int, int] | None = None


@contextmanager
def few_collections() -> Iterator[None]:
    """Begin few collections in the block; the usual number takes a tenth of an import's time."""
    global _before
    _before = gc.get_threshold()
    # Not gc.disable(): the application may call that, or gc.enable(), while it is loaded.
    gc.set_threshold(max(OBJECTS, _before[0]), *_before[1:])
    try:
        yield
    finally:
        _restore()


def _restore() -> None:
    global _before
    # Unless the application has set one of its own.
    if _before is not None and gc.get_threshold()[0] == OBJECTS:
        gc.set_threshold(*_before)
    _before = None


# A child that the application forks while it is loaded never comes to the end of the block.
os.register_at_fork(after_in_child=_restore)
