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

# How many connections to each server this worker may have, by the name of the file of its slots.
pool_sizes: dict[str, int] = {}
# The plan of each server that this worker has asked, by the name of the pool.
plans: "dict[str, Plan]" = {}
# Those of *pool_sizes* whose connections go to code that connects by itself.
of_unmodified_code: set[str] = set()

__getattr__ = lazy.attributes(__name__, {"Plan": "plan"})
