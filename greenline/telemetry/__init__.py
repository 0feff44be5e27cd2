"""
Report on a worker: the access log, the error log and the counters of all workers.

``counters.totals()`` is the public face; all else is internal.
"""

__all__ = ["counters"]
