"""
Let checkouts of SQLAlchemy's QueuePool nest without a deadlock: see :mod:`greenline.hub.nesting`.

That is for requests. Greenlets of the application take what is free, as its threads do: one that
holds a connection for ever would have requests wait for ever.

What its asyncio engines run in greenlets of their own may block: see
:mod:`greenline.hub.running_loop`.
"""

import inspect
import logging
import weakref
from typing import Any

import gevent
from gevent import getcurrent

from greenline import settings
from greenline.errors import PoolTimeout
from greenline.hub.handlers import Handler
from greenline.hub.nesting import NestedCheckouts
from greenline.offload.imports import after_import

POOL_MODULE = "sqlalchemy.pool.impl"
# Where the greenlets' class is since SQLAlchemy 2.1, which makes it at the first use, and before.
GREENLET_MODULES = ("sqlalchemy.util.concurrency", "sqlalchemy.util._concurrency_py3k")
_UNCOUNTED = object()


def install() -> None:
    """Wrap SQLAlchemy's QueuePool and its greenlets, now or after their import."""
    after_import(POOL_MODULE, _wrap_its_pool)
    for module in GREENLET_MODULES:
        after_import(module, _wrap_its_greenlets)


def _wrap_its_greenlets(module: Any) -> None:
    from greenline.hub import running_loop  # imports asyncio, as SQLAlchemy has done

    kind = getattr(getattr(module, "_concurrency_shim", module), "_AsyncIoGreenlet", None)
    if kind is not None:
        running_loop.share_with(kind)


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
    inspect.signature(pool._create_connection).bind()
    inspect.signature(pool._dec_overflow).bind()
    with pool._overflow_lock:
        pass
    _ = pool._pool.maxsize + pool._max_overflow > pool._overflow, pool._timeout > 0
    # wrap() sets an attribute of its own.
    _ = module._ConnectionRecord(pool, connect=False).__dict__


def wrap(pool_class: Any) -> None:
    """Make *pool_class*, SQLAlchemy's QueuePool, admit a greenlet before each checkout."""
    get, give_back = pool_class._do_get, pool_class._do_return_conn
    if hasattr(get, "__wrapped__"):
        return

    def do_get(self: Any) -> Any:
        admission = self.__dict__.get("_greenline_admission") or _admission_of(self)
        me = getcurrent()
        if not admission.is_limited or not gevent.get_hub().main_hub:
            return get(self)
        if not isinstance(me, Handler):
            record = get(self)
            if "_greenline_holder" not in record.__dict__:  # QueuePool._do_get calls itself
                record._greenline_holder = None
                admission.others += 1
            return record
        holder = weakref.ref(me)
        if holder in admission.acquiring:
            return get(self)
        try:
            is_admitted = admission.acquire(
                holder, self._timeout, has_idle=lambda: admission.others > 0
            )
        except PoolTimeout as error:
            raise _timeout_of(self) from error
        if not is_admitted:
            raise _timeout_of(self)
        admission.acquiring.add(holder)
        try:
            record = one_more(self) if admission.is_exceeded_by(holder) else get(self)
        except BaseException:
            admission.release(holder)
            raise
        finally:
            admission.acquiring.discard(holder)
        record._greenline_holder = holder
        return record

    def one_more(self: Any) -> Any:
        with self._overflow_lock:
            self._overflow += 1
        try:
            return self._create_connection()
        except BaseException:
            self._dec_overflow()
            raise

    def do_return_conn(self: Any, record: Any) -> None:
        holder = record.__dict__.pop("_greenline_holder", _UNCOUNTED)
        try:
            if holder is not _UNCOUNTED and self._overflow > self._max_overflow:
                close(self, record)
            else:
                give_back(self, record)
        finally:
            # Any greenlet may return a connection: it is counted for the one that took it.
            if holder is None:
                self._greenline_admission.others -= 1
                self._greenline_admission.admit()
            elif holder is not _UNCOUNTED:
                self._greenline_admission.release(holder)

    def close(self: Any, record: Any) -> None:
        """Close a connection, of which there is one more than the pool has."""
        try:
            record.close()
        finally:
            self._dec_overflow()

    do_get.__wrapped__ = get  # type: ignore[attr-defined]
    pool_class._do_get, pool_class._do_return_conn = do_get, do_return_conn


class _Admission(NestedCheckouts):
    """
    The admission to one pool.

    ``others`` are the connections that no request holds, ``acquiring`` the greenlets in a checkout.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(lambda: capacity, may_be_exceeded=True)
        self.is_limited = capacity > 1
        self.acquiring: set[Any] = set()


def _admission_of(pool: Any) -> _Admission:
    if settings.POOL.read() and getattr(pool._dialect, "driver", None) == "psycopg2":
        # Of pooled connections those are taken over that were not used for the longest.
        pool._pool.use_lifo = True
    is_limited = pool._max_overflow > -1 and not getattr(pool, "_is_asyncio", False)
    pool._greenline_admission = _Admission(
        pool._pool.maxsize + pool._max_overflow if is_limited else 0
    )
    return pool._greenline_admission  # type: ignore[no-any-return]


def _timeout_of(pool: Any) -> Exception:
    """Return the error of SQLAlchemy for a pool without a free connection."""
    from sqlalchemy.exc import TimeoutError as PoolTimeoutError

    return PoolTimeoutError(
        f"QueuePool limit of size {pool.size()} overflow {pool.overflow()} reached, "
        f"connection timed out, timeout {pool._timeout:0.2f}",
        code="3o7r",
    )
