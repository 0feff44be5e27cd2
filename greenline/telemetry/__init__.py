"""
Report on a worker: the access log, the error log and the counters of all workers.

``counters.totals()`` is the public face; all else is internal.
"""

from greenline import lazy

__all__ = ["counters"]

__getattr__ = lazy.modules(__name__, __all__)
