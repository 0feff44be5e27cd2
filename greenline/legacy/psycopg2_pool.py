"""
Make connections of ``psycopg2.pool.ThreadedConnectionPool`` side by side, and hand them on.

The pool connects while it holds its lock, and closes what is returned beyond ``minconn``. Few
threads are in a pool at once. Many greenlets are: they would wait for each other's connects, and
most requests would need a new connection.
"""

from functools import wraps
from typing import Any

from greenline.legacy.pool_queue import leave, waiters_of, wake_first

RESERVED = object()  # among the used connections: one that is being made


def install(module: Any) -> None:
    """
    Change the pool's class.

    :param module: ``psycopg2.pool``.
    """
    pool_class, pool_error = module.ThreadedConnectionPool, module.PoolError
    if hasattr(pool_class.getconn, "_greenline"):
        return
    get, get_locked, put_locked = pool_class.getconn, pool_class._getconn, pool_class._putconn
    own_connect = pool_class._connect

    @wraps(get)
    def getconn(pool: Any, key: Any = None) -> Any:
        is_changed = type(pool)._getconn is not get_locked or "_connect" in vars(pool)
        # Two that name the same key share a connection; a subclass may connect in its own way.
        if key is not None or is_changed or type(pool)._connect is not own_connect:
            return get(pool, key)
        with pool._lock:
            if pool._pool or pool.closed or len(pool._used) >= pool.maxconn:
                return pool._getconn()
            key = object()  # not one of the caller's
            pool._used[key] = RESERVED
        leave(pool)  # others may take what is returned meanwhile, or connect as well
        conn = None
        try:
            conn = module.psycopg2.connect(*pool._args, **pool._kwargs)
            with pool._lock:
                if pool.closed:
                    raise pool_error("connection pool is closed")
                pool._used[key] = conn
                pool._rused[id(conn)] = key
        except BaseException:
            pool._used.pop(key, None)
            if conn is not None:
                conn.close()
            wake_first(pool)
            raise
        return conn

    @wraps(put_locked)
    def putconn_locked(pool: Any, conn: Any, key: Any = None, close: bool = False) -> None:
        waiting, min_kept = len(waiters_of(pool)), pool.minconn
        if waiting <= min_kept:
            put_locked(pool, conn, key, close)
            # Those that were kept for others, which have gone.
            while not pool.closed and len(pool._pool) > min_kept:
                pool._pool.pop().close()
            return
        # The pool is locked, and nothing else reads this number.
        pool.minconn = waiting
        try:
            put_locked(pool, conn, key, close)
        except BaseException as error:
            # It is rolled back, where the pool would have closed it: that raises no error.
            put_locked(pool, conn, key, True)
            if not isinstance(error, module.psycopg2.Error):
                raise
        finally:
            pool.minconn = min_kept

    pool_class.getconn, pool_class._putconn = getconn, putconn_locked
