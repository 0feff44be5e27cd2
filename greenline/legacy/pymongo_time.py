"""
Count the time that requests spend in MongoDB, for the ``MongoClient`` objects of any code.

A request works with MongoDB from the checkout of a connection to its checkin. A pool whose
``greenline_counts_time`` is False is left out.
"""

from functools import wraps
from typing import Any

from greenline.hub import deadline

SPENDING = "greenline_spending"  # the attribute of a connection that is checked out


def install() -> None:
    """Replace the two methods of pymongo's pool; a pymongo without them is left as it is."""
    try:
        from pymongo.synchronous.pool import Pool
    except ImportError:  # before 4.9
        return
    pool: Any = Pool
    if hasattr(pool, "greenline_counts_time") or not hasattr(pool, "_get_conn"):
        return
    pool.greenline_counts_time = True
    get_conn, checkin = pool._get_conn, pool.checkin

    @wraps(get_conn)
    def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        connection = get_conn(self, *args, **kwargs)
        if self.greenline_counts_time:
            spending = deadline.spending("mongodb")
            spending.__enter__()
            vars(connection)[SPENDING] = spending
        return connection

    @wraps(checkin)
    def end(self: Any, conn: Any) -> Any:
        spending = vars(conn).pop(SPENDING, None)
        if spending is not None:
            spending.__exit__()
        return checkin(self, conn)

    pool._get_conn, pool.checkin = begin, end
