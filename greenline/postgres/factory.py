"""
Open Postgres in one call: a pool, the host's connection slots, the budget and a control connection.

Several pools of one process on one server share its part of the host's connections.
"""

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from sys import maxsize
from typing import Any

from gevent.lock import BoundedSemaphore
from psycopg2.extensions import make_dsn

from greenline import settings
from greenline.budget import of_unmodified_code, plans, pool_sizes
from greenline.budget.plan import (
    POSTGRES_EXTRA_A_WORKER,
    Deployment,
    Plan,
    PostgresFacts,
    postgres_plan,
)
from greenline.cache.feed import Feed
from greenline.errors import ConfigError, PoolClosed
from greenline.hub.nesting import NestedCheckouts
from greenline.lifecycle.resources import Resources, close_at_exit
from greenline.postgres.announcements import Reader
from greenline.postgres.client import Postgres
from greenline.postgres.connect import (
    Connect,
    check_url,
    connect,
    database_of,
    reads_any_host,
    server_of,
)
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.creator import creator
from greenline.postgres.fixed_plan import FixedPlan
from greenline.postgres.hosts import Hosts
from greenline.postgres.parameters import parameters
from greenline.postgres.pool import ConnectionPool
from greenline.postgres.reaper import Reaper
from greenline.settings import Sizing
from greenline.slots import SlotTable
from greenline.slots import path as slot_table_path
from greenline.slots.lease import LeasedSlotTable
from greenline.telemetry import counters

CONNECT_TIMEOUT_S = 5.0
POOL_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 1.0

log = logging.getLogger(__name__)

ANY_HOST = (
    "the pool may read from a standby, which is behind what the primary announces "
    "(target_session_attrs=read-write takes the primary of several hosts)"
)


class HostShare:
    """
    What one process has of the connections that its host may have to one server.

    :param path: the file of the host's slot table.
    :param sizing: what the budget is computed from; its ``hosts`` is None where they are counted.
    :param connect: makes the control connection.
    :param name: of the pool that opens it first, str, in the counters.
    :param database: to which the control connection is made, str.
    """

    def __init__(
        self, path: Path, sizing: Sizing, connect: Connect, name: str, database: str
    ) -> None:
        self.path = path
        self.database = database
        self._name = name
        self.sizing = sizing
        self.plan: Plan | None = None
        self.users: list[OpenPostgres] = []
        self.is_registered = False
        self._is_started = self._is_closed = False
        self.deadlock_check_s = 0.0  # when the server may be asked for a deadlock again
        # The requests that are admitted to a pool's connection and wait for it, each since when.
        self.acquiring: dict[Any, float] = {}
        self.moves = 0  # connections that are being taken over from idle handles
        # For code that connects by itself: all its pools on this server share the slots.
        self.nesting = NestedCheckouts(
            lambda: self.plan.max_pool_size if self.plan else maxsize,
            lambda: self.plan.worker if self.plan else maxsize,
        )
        self.hosts: Hosts | None = None
        self.slot_table: SlotTable
        min_connections = sizing.workers * (POSTGRES_EXTRA_A_WORKER + 1)
        if sizing.hosts is None:
            self.slot_table = counted = LeasedSlotTable(path)
            self.hosts = Hosts(
                counted, floor=min_connections, plan_for=self._plan_for, follow=self._follow
            )
            self.control = Control(
                self.hosts.named(connect), slot_table=self.slot_table, on_connect=self.hosts.read
            )
            self.reaper = Reaper(self.slot_table, self.control)
        else:
            self.slot_table = SlotTable(path)
            plan_for = partial(self._plan_for, hosts=sizing.hosts)
            fixed = FixedPlan(
                self.slot_table,
                min_connections=min_connections,
                plan_for=plan_for,
                follow=self._follow,
            )
            self.control = Control(connect, slot_table=self.slot_table, on_connect=fixed.read)
            self.reaper = Reaper(self.slot_table, self.control, partial(fixed.look, self.control))
        counters.add(f"{counters.SLOTS}{name}", self.slot_table.stats)
        counters.add(name, self.nesting.stats)  # they wait for the pools of code as it is

    def named(self, connect: Connect) -> Connect:
        """Return *connect*, with the host's name for each connection where hosts are counted."""
        return connect if self.hosts is None else self.hosts.named(connect)

    def start(self) -> None:
        """Look after the slots, and follow the number of hosts, in the background; once."""
        if self._is_started or self._is_closed:
            return
        self._is_started = True
        self.reaper.start()
        if self.hosts is not None:
            self.hosts.start(self.control)

    def close(self) -> None:
        """Close what :func:`open` made for it, in reverse order, each even if another one fails."""
        self._is_closed = True
        if _shares.get(self.path) is self:
            del _shares[self.path]
        pool_sizes.pop(self.path.name, None)
        plans.pop(self._name, None)
        counters.remove(f"{counters.SLOTS}{self._name}", self.slot_table.stats)
        counters.remove(self._name, self.nesting.stats)
        of_unmodified_code.discard(self.path.name)
        with ExitStack() as stack:
            stack.callback(self.slot_table.close)
            stack.callback(self.control.close)
            stack.callback(self.reaper.close)
            if self.hosts is not None:
                stack.callback(self.hosts.close)

    def _plan_for(self, facts: PostgresFacts, hosts: int) -> Plan:
        sizing = self.sizing
        return postgres_plan(
            facts,
            replace(Deployment(sizing.workers, sizing.hosts or 1, sizing.surge_hosts), hosts=hosts),
            pool_size=sizing.postgres_pool_size,
            pgbouncer_pool_size=sizing.pgbouncer_pool_size,
            is_counted=sizing.hosts is None,
        )

    def _follow(self, plan: Plan) -> None:
        # The arbiter has logged the first one, and `greenline budget` shows its sum.
        level = logging.DEBUG if self.plan is None else logging.INFO
        self.plan = plan
        # The limit of all pools of this process on this server together.
        pool_sizes[self.path.name] = plan.max_pool_size
        plans[self._name] = plan
        for user in self.users:
            user.resize(plan)
        # Last: a log handler may switch greenlets, which must not find the plan in parts.
        log.log(level, "postgres pool: %s", plan)


# By the file of the host's slots. To the other processes, a second table here would be one more
# process with reserved connections of its own.
_shares: dict[Path, HostShare] = {}
_opening = BoundedSemaphore()  # the slot table's file may let a greenlet wait


def _forget() -> None:
    global _opening
    _shares.clear()
    _opening = BoundedSemaphore()  # the greenlet that holds it is the parent's


# A child opens its own: the files are closed in it.
os.register_at_fork(after_in_child=_forget)


class OpenPostgres(Postgres):
    """
    Postgres as :func:`open` returns it.

    :param pool: the pool of the connections; its name is the one in the counters.
    :param share: what this process has of the host's connections.
    :param connect: makes a connection of the pool.
    :param database: names the database and its server, str.
    :param prepare: whether statements are prepared.
    :param starts_later: whether :meth:`start` is called later. Default False: at the first use.
    :param reads_any_host: whether a connection may be to a standby. Default False.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        share: HostShare,
        connect: Connect,
        database: str,
        *,
        prepare: bool,
        starts_later: bool = False,
        reads_any_host: bool = False,
    ) -> None:
        super().__init__(pool, prepare=prepare)
        self.name = pool.name
        self._share = share
        self._connect = connect
        self._database = database
        self._starts_later = starts_later
        self._reads_any_host = reads_any_host
        self._readers: list[Reader] = []
        self._is_started = self._is_closed = False
        share.users.append(self)
        if share.plan is not None:
            self.resize(share.plan)

    @property
    def plan(self) -> Plan | None:
        """The connections of the host and its workers; None before the server was asked."""
        return self._share.plan

    def resize(self, plan: Plan) -> None:
        """Let the pool grow to what *plan* allows one worker."""
        self._pool.resize(plan.max_pool_size)

    def start(self) -> None:
        """
        Look after the host's slots, and read announcements for the feeds, from now on.

        The first wait for a connection does the former, too.
        """
        self._is_started = True
        self._share.start()
        for reader in self._readers:
            reader.start()

    def check(self, question: Callable[[Connection], object] | None = None) -> None:
        """
        Ask the server over the control connection, which the pool does not count.

        :param question: asks over the connection; None asks whether it answers.
        :raises ConfigError: the connections of all hosts do not fit.
        :raises StoreDown: no answer.
        """
        self.start()
        self._share.control.ask(question or _select_1)
        if self._share.hosts is not None:
            self._share.hosts.check()

    def creator(self, *, timeout_s: float = POOL_TIMEOUT_S) -> Callable[[], Connection]:
        """
        Return a function that connects in a slot of the host: SQLAlchemy's ``creator``.

        ``create_engine("postgresql+psycopg2://", creator=postgres.open().creator())``

        :param timeout_s: seconds to wait for a slot, float. Default 30.
        :returns: a function without arguments that returns a connection. It raises PoolTimeout
            where no slot became free in time, and StoreDown where the server refuses.
        """
        share = self._share
        control = share.control if self._prepare else None  # a pgbouncer's process ids are its own
        create = creator(self._connect, share.slot_table, control, timeout_s=timeout_s)

        def create_started() -> Connection:
            # Before the wait for a slot: without a lease, or where all slots are orphans, none
            # becomes free unless the share looks after them.
            share.start()
            return create()

        return create_started

    def feed(self, max_stale_s: float = 2.0) -> Feed:
        """
        Return the invalidations that the database announces, for ``greenline.cache.Cache(feed=)``.

        One process of the host reads the table that ``greenline.postgres.ANNOUNCEMENTS`` makes,
        over its control connection, as long as this pool is open; where that has *resources*, after
        their start.

        :param max_stale_s: seconds for which a value is used while nothing is read, float; they
            begin with its load. Default 2.
        :raises ConfigError: the file that the processes share cannot be used, or the process has
            opened another database of the server before this one.
        :raises PoolClosed: it is closed.
        """
        if self._is_closed:
            raise PoolClosed
        if self._database != self._share.database:
            raise ConfigError(
                f"the process reads over its control connection, to {self._share.database}, which "
                f"was opened before {self._database}: announcements are a database's own"
            )
        key, why_not = self._database, ""
        if self._reads_any_host:
            # Another pool may have the same hosts, and read from the primary alone.
            key, why_not = f"{key}, any host", ANY_HOST
        feed = Feed(key, max_stale_s)
        self._readers.append(Reader(self._share.control, feed, why_not))
        if self._is_started or not self._starts_later:
            self.start()
        return feed

    def stats(self) -> dict[str, int]:
        """Return the pool's max, size, active, idle, leaving and waiting."""
        return self._pool.stats()

    def get_stats(self) -> dict[str, int]:
        """Return :meth:`stats` and the counts, as :meth:`ConnectionPool.get_stats` does."""
        return self._pool.get_stats()

    def pop_stats(self) -> dict[str, int]:
        """Return the same as :meth:`get_stats`, and let the counts begin at 0 again."""
        return self._pool.pop_stats()

    def close(self) -> None:
        """Close the pool, and the host's share with its last pool; once."""
        if self._is_closed:
            return
        self._is_closed = True
        users = self._share.users
        users.remove(self)
        try:
            for reader in self._readers:
                reader.close()
            self._pool.close(CLOSE_TIMEOUT_S)
        finally:
            counters.remove(self.name, self._pool.stats)
            if not users:
                self._share.close()


def open(  # noqa: A001 - postgres.open() is the name that users type
    url: str | None = None,
    *,
    name: str = "postgres",
    workers: int | None = None,
    hosts: int | str | None = None,
    surge_hosts: int | None = None,
    max_size: int | None = None,
    pgbouncer_pool_size: int | None = None,
    timeout_s: float | None = POOL_TIMEOUT_S,
    max_waiting: int = 1000,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    statement_timeout_s: float | None = None,
    prepare: bool = True,
    resources: Resources | None = None,
    question: Callable[[Connection], object] | None = None,
) -> OpenPostgres:
    """
    Open a pool whose connections fit into what the server allows the workers of all hosts.

    Nothing connects before the first use. A second call with the same server shares the slots of
    the first. An argument that is None is read from the environment of the worker.

    :param url: ``postgresql://...``. Default ``DATABASE_URL``.
    :param name: the pool's name in the counters and in log lines. Default ``postgres``.
    :param workers: workers of this host, int. Default ``WEB_CONCURRENCY``, which the worker sets.
    :param hosts: hosts that share the server, int, or ``"auto"``: they are counted. Default
        ``GREENLINE_HOSTS``, 1.
    :param surge_hosts: hosts more while a deploy rolls, int. Default ``GREENLINE_SURGE_HOSTS``, 1.
    :param max_size: the most connections of this pool, int. Default ``POSTGRES_POOL_SIZE``; without
        one, what the server allows.
    :param pgbouncer_pool_size: connections that a pgbouncer in *url* gives all hosts together, int.
        Default ``PGBOUNCER_POOL_SIZE``.
    :param timeout_s: seconds to wait for a connection, float; None waits until the request's
        deadline. Default 30.
    :param max_waiting: greenlets that may wait for a connection, int. Default 1,000.
    :param connect_timeout_s: seconds, float. Default 5.
    :param statement_timeout_s: seconds after which the server ends a statement, float. Default
        None: never.
    :param prepare: prepare statements. False for a pgbouncer in transaction mode. Default True.
    :param resources: where start, check and close are registered; None closes at the exit of the
        process. Default None.
    :param question: what a check of *resources* asks. Default: whether the server answers.
    :raises ConfigError: an argument or a variable is wrong, or the server is open already with
        another number of workers, hosts or pool size.
    :raises LatePatching: psycopg2 would block the hub: call ``greenline.patch.patch_all()`` first.
    """
    url = check_url(url or _required_url())
    sizing = settings.sizing_of(
        workers=workers,
        hosts=hosts,
        surge_hosts=surge_hosts,
        postgres_pool_size=max_size,
        pgbouncer_pool_size=pgbouncer_pool_size,
    )
    # A pgbouncer in transaction mode takes no options, and its process ids are its own.
    timeout = (statement_timeout_s or 0) if prepare else None
    connect_to: Connect = partial(connect, url, connect_timeout_s, timeout)
    path = slot_table_path(server_of(url))
    with _opening:
        share = _share_of(path, sizing, connect_to, name, database_of(url))
        if share.sizing != sizing:
            raise ConfigError(
                f"{server_of(url)} is open already with another number of workers, hosts or "
                "pool size"
            )
        connect_to = share.named(connect_to)
        pool = ConnectionPool(
            connect_to,
            name=name,
            max_size=sizing.postgres_pool_size or 1,
            timeout_s=timeout_s,
            max_waiting=max_waiting,
            control=share.control if prepare else None,
            slot_table=share.slot_table,
            # Not at the connect, which needs a slot first.
            on_wait=share.start,
        )
        opened = OpenPostgres(
            pool,
            share,
            connect_to,
            database_of(url),
            prepare=prepare,
            starts_later=resources is not None,
            reads_any_host=reads_any_host(url),
        )
        of_unmodified_code.discard(path.name)
    counters.add(name, pool.stats, pool.statistics.reader())
    if resources is None:
        close_at_exit(opened.close)
    else:
        _register(opened, share, resources, question)
    return opened


def own_sizing() -> Sizing:
    """
    Return what the environment says of the budget.

    :raises ConfigError: a variable is wrong.
    """
    return settings.sizing_of(
        workers=None,
        hosts=None,
        surge_hosts=None,
        postgres_pool_size=None,
        pgbouncer_pool_size=None,
    )


def pool_of(
    dsn: str,
    connect_as_given: Connect,
    *,
    name: str,
    timeout_s: float,
    on_wait: Callable[[], object],
) -> tuple[ConnectionPool, HostShare, Callable[[], None]]:
    """
    Return a pool for code that connects by itself, the host's share of the server, of which its
    connections are a part, and the function that closes it.

    :param dsn: the connection string of the code.
    :param connect_as_given: makes a connection, with the parameters of the code alone.
    :param name: the pool's name in the counters and in log lines, str.
    :param timeout_s: seconds to wait for a connection, float.
    :param on_wait: called before a greenlet waits for a connection.
    """
    given = parameters(dsn)
    given.pop("service", None)  # its parameters are in *given*
    control_dsn = make_dsn(**given)
    # Without options, which a pgbouncer refuses before it can be noticed.
    connect_control = partial(connect, control_dsn, CONNECT_TIMEOUT_S, None)
    with _opening:
        sizing = own_sizing()
        path = slot_table_path(server_of(control_dsn))
        share = _share_of(path, sizing, connect_control, name, database_of(control_dsn))
        if not share.users:
            of_unmodified_code.add(share.path.name)
        connect_to = share.named(connect_as_given)

        # A pgbouncer's process ids are its own.
        is_direct = sizing.pgbouncer_pool_size is None

        def wait() -> None:
            share.start()
            on_wait()

        pool = ConnectionPool(
            connect_to,
            name=name,
            max_size=share.sizing.postgres_pool_size or 1,
            timeout_s=timeout_s,
            control=share.control if is_direct else None,
            slot_table=share.slot_table,
            on_wait=wait,
        )
        database = database_of(control_dsn)
        opened = OpenPostgres(pool, share, connect_to, database, prepare=is_direct)
    counters.add(name, pool.stats, pool.statistics.reader())
    return pool, share, opened.close


def _share_of(path: Path, sizing: Sizing, connect: Connect, name: str, database: str) -> HostShare:
    """Return what this process has of the slots in *path*; call with ``_opening``."""
    share = _shares.get(path)
    if share is None:
        share = _shares[path] = HostShare(path, sizing, connect, name, database)
    return share


def _register(
    opened: OpenPostgres,
    share: HostShare,
    resources: Resources,
    question: Callable[[Connection], object] | None,
) -> None:
    """Register the parts one by one, so that readiness names the one that is not ready."""
    if not share.is_registered:
        share.is_registered = True
        if share.hosts is not None:
            resources.add("hosts", close=bool, check=share.hosts.check)

    def check() -> None:
        share.control.ask(question or _select_1)

    resources.add(opened.name, start=opened.start, close=opened.close, check=check)


def _required_url() -> str:
    url, _ = settings.databases()
    if not url:
        name = settings.DATABASE_URL.name
        raise ConfigError(f"{name}: {settings.not_set(name)}")
    return url


def _select_1(conn: Connection) -> None:
    with conn.cursor() as cursor:
        cursor.execute("select 1")
