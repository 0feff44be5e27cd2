"""
How many connections each worker may hold, computed from what the servers allow.

:class:`Plan`, the ``plan`` of an opened database, is the public face; all else is internal.
"""

from typing import TYPE_CHECKING

from greenline import lazy

if TYPE_CHECKING:
    from greenline.budget.plan import Plan

__all__ = ["Plan"]

# Exit statuses of ``greenline budget``.
FITS, DOES_NOT_FIT, UNREACHABLE = 0, 1, 3

# How many connections each pool of ours has in this worker, by the pool's name.
pool_sizes: dict[str, int] = {}

__getattr__ = lazy.attributes(__name__, {"Plan": "plan"})
