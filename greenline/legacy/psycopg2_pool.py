"""
Make connections of ``psycopg2.pool.ThreadedConnectionPool`` side by side, and hand them on.

The pool connects while it holds its lock, and closes what is returned beyond ``minconn``. Few
threads are in a pool at once. Many greenlets are: they would wait for each other's connects, and
most requests would need a new connection.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

PLACE = object()  # among the used connections: one that is being made


def install(module: Any, waiting: Callable[[Any], int], wake: Callable[[Any], None]) -> None:
    """
    Change the pool's class.

    :param module: ``psycopg2.pool``.
    :param waiting: returns how many greenlets wait for a connection of a pool, int.
    :param wake: wakes the first of them.
    """
    pool_class, error = module.ThreadedConnectionPool, module.PoolError
    if hasattr(pool_class.getconn, "_greenline"):
        return
    get, put_locked, own_connect = pool_class.getconn, pool_class._putconn, pool_class._connect

    @wraps(get)
    def getconn(pool: Any, key: Any = None) -> Any:
        # Two that name the same key share a connection; a subclass may connect in its own way.
        if key is not None or type(pool)._connect is not own_connect:
            return get(pool, key)
        with pool._lock:
            if pool._pool or pool.closed or len(pool._used) >= pool.maxconn:
                return pool._getconn()
            key = pool._getkey()
            pool._used[key] = PLACE
        try:
            conn = module.psycopg2.connect(*pool._args, **pool._kwargs)
            if pool.closed:
                conn.close()
                raise error("connection pool is closed")
        except BaseException:
            del pool._used[key]
            wake(pool)
            raise
        pool._used[key] = conn
        pool._rused[id(conn)] = key
        return conn

    @wraps(put_locked)
    def keep_for_waiting(pool: Any, *args: Any, **options: Any) -> None:
        # The pool is locked, and nothing else reads this number.
        least = pool.minconn
        pool.minconn = max(least, waiting(pool))
        try:
            put_locked(pool, *args, **options)
        finally:
            pool.minconn = least

    pool_class.getconn, pool_class._putconn = getconn, keep_for_waiting
