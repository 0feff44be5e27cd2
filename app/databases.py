"""
The databases' part of the composition: pools, slot tables and whatever looks after them.

Each is added to the resources with its start, its close and its check, in one call.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial

from app.store import schema
from app.store.declared import DECLARED
from app.store.indexes import Declared, Indexes
from app.store.keys import require_one
from config import Settings
from config.env import named
from greenline.admission import pool_sizes
from greenline.budget.plan import (
    MONGODB_EXTRA_A_WORKER,
    POSTGRES_EXTRA_A_WORKER,
    Deployment,
    Plan,
    PostgresFacts,
    mongodb_plan,
    postgres_plan,
)
from greenline.errors import ConfigError, DeadlineExceeded, StoreDown, StoreError, Unavailable
from greenline.hub import deadline
from greenline.lifecycle.resources import Resources
from greenline.mongo.client import Mongo
from greenline.mongo.client import server_of as server_of_mongo
from greenline.postgres.client import Postgres
from greenline.postgres.connect import Connect, check_url, connect, server_of
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.errors import translated
from greenline.postgres.fixed_plan import FixedPlan
from greenline.postgres.hosts import Hosts
from greenline.postgres.lease import LeasedSlotTable
from greenline.postgres.pool import ConnectionPool
from greenline.postgres.reaper import Reaper
from greenline.slots import TOLD_CAPACITY, SlotTable
from greenline.slots import path as slot_table_path
from greenline.telemetry import counters

CONNECT_TIMEOUT_S = 5.0
# A statement ends so long before its request does that the server's word of it comes in time.
STATEMENT_MARGIN_S = 0.25
GOODBYE_S = 1.0
TRIAL_S = 2.0

# This worker's plans of connections by server; None is a server that has not been asked yet.
Plans = dict[str, Plan | None]

log = logging.getLogger(__name__)


def _deployment(settings: Settings) -> Deployment:
    return Deployment(settings.workers, settings.hosts or 1, settings.surge_hosts)


def statement_limit_s(request_timeout_s: float) -> float:
    """Return after how many seconds Postgres itself ends a statement."""
    return request_timeout_s - min(STATEMENT_MARGIN_S, request_timeout_s / 10)


def add_postgres(settings: Settings, resources: Resources, plans: Plans) -> Postgres:
    """Add the pool, and what shares the host's connections between the workers."""
    with named("DATABASE_URL"):
        url = check_url(settings.database_url)
    # A pooler in transaction mode takes no options, and gives a process id that is its own.
    is_direct = settings.postgres_prepare
    statement_timeout_s = statement_limit_s(settings.request_timeout_s) if is_direct else None
    open_one: Connect = partial(connect, url, CONNECT_TIMEOUT_S, statement_timeout_s)
    path = slot_table_path(server_of(url))
    least = settings.workers * (POSTGRES_EXTRA_A_WORKER + 1)

    def plan_for(facts: PostgresFacts, hosts: int) -> Plan:
        return postgres_plan(
            facts,
            replace(_deployment(settings), hosts=hosts),
            pool_size=settings.postgres_pool_size,
            pgbouncer_pool_size=settings.pgbouncer_pool_size,
            is_counted=settings.hosts is None,
        )

    def follow(plan: Plan) -> None:
        plans["postgres"] = plan
        pool.resize(plan.pool_most)
        pool_sizes["postgres"] = plan.pool_most
        log.info("postgres pool: %s", plan)

    hosts: Hosts | None = None
    slot_table: SlotTable
    if settings.hosts is None:
        slot_table = counted = LeasedSlotTable(path)
        hosts = Hosts(counted, floor=least, plan_for=plan_for, follow=follow)
        open_one = hosts.named(open_one)
        control = Control(open_one, slot_table=slot_table, on_connect=hosts.read)
        reaper = Reaper(slot_table, control)
    else:
        slot_table = SlotTable(path)
        fixed_plan = FixedPlan(
            slot_table, least=least, plan_for=partial(plan_for, hosts=settings.hosts), follow=follow
        )
        control = Control(open_one, slot_table=slot_table, on_connect=fixed_plan.read)
        reaper = Reaper(slot_table, control, partial(fixed_plan.look, control))
    pool = ConnectionPool(
        open_one,
        max_size=settings.postgres_pool_size or 1,
        timeout_s=settings.pool_timeout_s,
        max_waiting=settings.pool_max_waiting,
        control=control if is_direct else None,
        slot_table=slot_table,
    )
    resources.add("ledger of connections", close=slot_table.close)
    resources.add("postgres", close=control.close, check=partial(control.ask, _required(settings)))
    resources.add("slots", start=reaper.start, close=reaper.close)
    if hosts is not None:
        start = partial(hosts.start, control)
        resources.add("hosts", start=start, close=hosts.close, check=hosts.check)
    resources.add("postgres pool", close=lambda: pool.close(GOODBYE_S))
    counters.gauges["postgres"] = pool.stats
    return Postgres(pool, prepare=settings.postgres_prepare)


def add_mongo(uri: str, settings: Settings, resources: Resources, plans: Plans) -> Mongo:
    """Add the client of *uri*, the slot table of its connections, and its indexes."""
    plans["mongodb"] = None
    least_a_worker = MONGODB_EXTRA_A_WORKER + 1
    slot_table = SlotTable(slot_table_path(server_of_mongo(uri)), floor=least_a_worker)
    # Until the server has told what there is: what it told the others, or what they need to ask.
    least = settings.workers * least_a_worker
    slot_table.resize(max(least, slot_table.spare[TOLD_CAPACITY]), least)
    resources.add("ledger of connections to MongoDB", close=slot_table.close)

    def size_for(told: int | None) -> int:
        try:
            plan = plans["mongodb"] = mongodb_plan(
                told,
                _deployment(settings),
                pool_size=settings.mongodb_max_pool_size,
                max_connections=settings.mongodb_max_connections,
            )
        except ConfigError as error:  # what fits no more is no fault of who asks
            raise StoreDown(f"MongoDB: {error}") from error
        slot_table.resize(plan.host, plan.reserved)
        slot_table.spare[TOLD_CAPACITY] = plan.host
        log.info("mongodb pool: %s", plan)
        return plan.worker

    with named("MONGODB_URI"):
        queue_s = settings.pool_timeout_s or settings.request_timeout_s
        mongo = Mongo(
            uri,
            size_for=size_for,
            timeout_s=queue_s,
            documentdb=settings.mongodb_documentdb,
            slot_table=slot_table,
        )
    counters.gauges["mongodb"] = mongo.stats
    _with_indexes(mongo, resources, DECLARED)
    return mongo


def _with_indexes(mongo: Mongo, resources: Resources, declared: Declared) -> None:
    """Add MongoDB, ready when it answers, may be read, and has its indexes."""
    indexes = Indexes(partial(mongo.database, repeatable=True), declared, mongo.capabilities)

    def check() -> None:
        mongo.check()
        mongo.capabilities()  # tells the log, once
        indexes.check()

    resources.add("mongodb", close=mongo.close, check=check)
    resources.add("indexes", start=indexes.start, close=indexes.close)


def _required(settings: Settings) -> Callable[[Connection], None]:
    """Return what Postgres has to hold: the schema and, until one was seen, a key."""
    is_open = not settings.auth

    def require(conn: Connection) -> None:
        nonlocal is_open
        schema.require_current(conn)
        if not is_open:
            require_one(conn)
            is_open = True

    return require


def refuse_without_key(settings: Settings) -> None:
    """
    Try a start: nobody could use a service that has no key yet.

    One whose Postgres cannot tell comes up, is not ready, and says so.

    Raises:
        ConfigError: there is no key, and this is no service that is open to everybody.
    """
    if not settings.auth:
        log.warning("AUTH=off: whoever reaches this service may do everything")
        return
    try:
        with (
            deadline.limit(TRIAL_S),
            closing(connect(settings.database_url, TRIAL_S, None)) as conn,
            translated(),
        ):
            conn.autocommit = True
            schema.require_current(conn)
            require_one(conn)
    except (DeadlineExceeded, StoreError, Unavailable) as error:
        log.warning("not known whether there is an API key: %s", error)
