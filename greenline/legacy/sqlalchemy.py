"""
Let checkouts of SQLAlchemy's QueuePool nest without a deadlock.

A request that holds one connection and needs another one waits for other requests. If these do the
same, each of them waits until the pool's timeout. There are usually fewer threads than connections,
but not fewer greenlets. So a greenlet without a connection gets its first one only while the pool
has two left: the last one is reserved for greenlets that hold a connection. With two connections a
request, at least one request can always proceed.

First connections are given in the order of arrival. A pool whose checkouts have never nested ends
the reservation after some time.
"""

import inspect
import logging
import weakref
from collections import deque
from typing import Any

import gevent
from gevent import getcurrent
from gevent.hub import Waiter

from greenline.hub import deadline
from greenline.hub.cooperate import wake
from greenline.hub.lock_waits import LockWait
from greenline.offload.imports import after_import

POOL_MODULE = "sqlalchemy.pool.impl"
# After so many checkouts for each connection, none of them nested, the checkouts of a pool are
# taken not to nest. Until then one connection is reserved for nested checkouts.
NESTING_CHECKOUTS = 10


def install() -> None:
    """Wrap SQLAlchemy's QueuePool, now or after its import."""
    after_import(POOL_MODULE, _wrap_its_pool)


def _wrap_its_pool(module: Any) -> None:
    try:
        check(module)
    except Exception as error:  # whatever it raises, the application's import must not fail
        # Not the version, which SQLAlchemy sets later in its import.
        logging.getLogger(__name__).warning(
            "SQLAlchemy's QueuePool is not a known one (%s): requests that need two connections "
            "may wait for each other until the pool's timeout",
            error,
        )
    else:
        wrap(module.QueuePool)


def check(module: Any) -> None:
    """
    Prove that SQLAlchemy has the undocumented names that :func:`wrap` uses.

    :param module: ``sqlalchemy.pool.impl``.
    :raises AttributeError: one is missing.
    :raises TypeError: a method has other parameters, or an attribute another type.
    """
    pool = module.QueuePool(lambda: None)  # it connects at the first checkout
    inspect.signature(pool._do_get).bind()
    inspect.signature(pool._do_return_conn).bind(None)
    _ = pool._pool.maxsize + pool._max_overflow > 0, pool._timeout > 0
    # wrap() sets an attribute of its own.
    _ = module._ConnectionRecord(pool, connect=False).__dict__


def wrap(pool_class: Any) -> None:
    """Make *pool_class*, SQLAlchemy's QueuePool, admit a greenlet before each checkout."""
    get, give_back = pool_class._do_get, pool_class._do_return_conn
    if hasattr(get, "__wrapped__"):
        return

    def do_get(self: Any) -> Any:
        admission = self.__dict__.get("_greenline_admission") or _admission_of(self)
        if not admission.is_needed or not gevent.get_hub().main_hub:
            return get(self)
        me = weakref.ref(getcurrent())
        if me in admission.acquiring:  # QueuePool._do_get calls itself
            return get(self)
        if not admission.acquire(me, self._timeout):
            raise _timeout_of(self)
        admission.acquiring.add(me)
        try:
            record = get(self)
        except BaseException:
            admission.release(me)
            raise
        finally:
            admission.acquiring.discard(me)
        record._greenline_holder = me
        return record

    def do_return_conn(self: Any, record: Any) -> None:
        holder = record.__dict__.pop("_greenline_holder", None)
        try:
            give_back(self, record)
        finally:
            # Any greenlet may return a connection: it is counted for the one that took it.
            if holder is not None:
                self._greenline_admission.release(holder)

    do_get.__wrapped__ = get  # type: ignore[attr-defined]
    pool_class._do_get, pool_class._do_return_conn = do_get, do_return_conn


def _admission_of(pool: Any) -> "_Admission":
    is_limited = pool._max_overflow > -1 and not getattr(pool, "_is_asyncio", False)
    capacity = pool._pool.maxsize + pool._max_overflow if is_limited else 0
    pool._greenline_admission = _Admission(capacity)
    return pool._greenline_admission  # type: ignore[no-any-return]


def _timeout_of(pool: Any) -> Exception:
    """Return the error of SQLAlchemy for a pool without a free connection."""
    from sqlalchemy.exc import TimeoutError as PoolTimeoutError

    return PoolTimeoutError(
        f"QueuePool limit of size {pool.size()} overflow {pool.overflow()} reached, "
        f"connection timed out, timeout {pool._timeout:0.2f}",
        code="3o7r",
    )


class _Admission:
    """Decide which greenlet may take a connection of one pool."""

    def __init__(self, capacity: int) -> None:
        self.is_needed = capacity > 1
        self.acquiring: set[Any] = set()  # greenlets in SQLAlchemy's own checkout
        self._capacity = capacity
        # The connections in use, and those for which a holder of one waits: nested checkouts come
        # before first ones.
        self._taken = 0
        # By weak reference: a thread-local that is collected with its greenlet may end a checkout.
        self._held: dict[Any, int] = {}
        self._line: deque[tuple[Any, Waiter[None]]] = deque()
        self._checkouts = 0
        self._is_nested = False

    def acquire(self, me: Any, timeout_s: float) -> bool:
        """
        Admit a greenlet to a checkout, and count the connection for it.

        :param me: a weak reference to the greenlet.
        :param timeout_s: seconds to wait for a first connection, float.
        :returns: whether it may take a connection.
        :raises DeadlineExceeded: the request's deadline has passed.
        """
        self._checkouts += 1
        # A nested checkout does not wait here: it would keep a connection that others wait for.
        if me in self._held:
            self._is_nested = True
            self._count(me)
            return True
        if not self._line and self._has_room():
            self._count(me)
            return True
        return self._wait(me, timeout_s)

    def release(self, me: Any) -> None:
        """Count one connection of *me* less, and admit the greenlets for which there is room."""
        self._taken -= 1
        self._held[me] -= 1
        if not self._held[me]:
            del self._held[me]
        while self._line and self._has_room():
            first, waiter = self._line.popleft()
            self._count(first)  # now, so that no other greenlet takes the connection before it runs
            wake(waiter)

    def _has_room(self) -> bool:
        is_one_left = self._is_nested or self._checkouts < NESTING_CHECKOUTS * self._capacity
        return self._taken < self._capacity - is_one_left

    def _count(self, me: Any) -> None:
        self._taken += 1
        self._held[me] = self._held.get(me, 0) + 1

    def _wait(self, me: Any, timeout_s: float) -> bool:
        waiter: Waiter[None] = Waiter()
        entry = (me, waiter)
        self._line.append(entry)
        try:
            with LockWait(), deadline.spending("queued"), gevent.Timeout(timeout_s, False):  # type: ignore[arg-type]
                deadline.wait_in(waiter.get)
        except BaseException:
            # It may have been admitted in the same moment: the connection goes to the next one.
            if me in self._held:
                self.release(me)
            else:
                self._line.remove(entry)
            raise
        if me in self._held:
            return True
        self._line.remove(entry)
        return False
