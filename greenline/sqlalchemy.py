"""
SQLAlchemy's engine on the host's connection budget.

:func:`create_engine` is the public face.
"""

import os
from collections import defaultdict
from contextlib import ExitStack
from typing import Any

import sqlalchemy
from gevent import getcurrent
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from greenline.hub import request_end
from greenline.hub.handlers import Handler
from greenline.lazy import needs_extra

with needs_extra("postgres"):
    from greenline.postgres.transparent import pooled_connect

DRIVER = "postgresql+psycopg2"
OF_THE_BUDGET = {
    "creator", "max_overflow", "pool", "poolclass", "pool_recycle", "pool_size", "pool_timeout"
}  # fmt: skip

# What each request has returned to an engine, and may check out again.
_returned: dict[Any, dict["RequestPool", list[Any]]] = {}
# The connections of a child's parent are not the child's.
os.register_at_fork(after_in_child=_returned.clear)


def create_engine(url: str | sqlalchemy.URL, **options: Any) -> sqlalchemy.Engine:
    """
    Return an engine whose connections are checkouts from a pool within the host's budget.

    A request keeps what it has checked out until its end, and checks it out again meanwhile. Its
    wait for a connection ends with its deadline.

    :param url: ``postgresql://...`` or ``postgresql+psycopg2://...``.
    :param options: those of ``sqlalchemy.create_engine``, but for those that size a pool.
    :raises sqlalchemy.exc.ArgumentError: *url* has another driver, or an option sizes a pool.
    """
    parsed = sqlalchemy.make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername=DRIVER)
    if parsed.drivername != DRIVER:
        raise ArgumentError(f"{parsed.drivername}: greenline pools psycopg2's connections only")
    if wrong := sorted(OF_THE_BUDGET & options.keys()):
        raise ArgumentError(f"{', '.join(wrong)}: the budget sizes the pool of this engine")
    engine = sqlalchemy.create_engine(parsed, poolclass=RequestPool, **options)
    event.listen(engine, "do_connect", _connect)
    if _end_request not in request_end.functions:
        request_end.functions.append(_end_request)
    return engine


class RequestPool(NullPool):
    """Connections that a request has until its end; without a request, until their return."""

    def _do_get(self) -> Any:
        returned = _returned.get(getcurrent(), {}).get(self)
        return returned.pop() if returned else super()._do_get()

    def _do_return_conn(self, record: Any) -> None:
        me = getcurrent()
        if isinstance(me, Handler):
            _returned.setdefault(me, defaultdict(list))[self].append(record)
        else:
            super()._do_return_conn(record)


def _end_request() -> None:
    with ExitStack() as stack:  # each is closed if another one fails
        for records in _returned.pop(getcurrent(), {}).values():
            for record in records:
                stack.callback(record.close)


def _connect(_dialect: Any, _record: Any, args: Any, kwargs: Any) -> Any:
    return pooled_connect(*args, **kwargs)
