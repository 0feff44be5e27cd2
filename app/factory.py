"""The composition root: build the resources, hand them to the repositories, wire the routes."""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from flask import Response
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import NotFound
from werkzeug.routing import BaseConverter

from app.api import (
    agents,
    authors,
    books,
    cors,
    docs,
    genres,
    keys,
    messages,
    openapi,
    ops,
    problems,
    products,
    request_id,
    resource,
    security_headers,
    states,
    tasks,
)
from app.api.access import Access
from app.api.operations import Routes
from app.records import MAX_ID
from app.store import schema
from app.store.agents import Agents
from app.store.authors import Authors
from app.store.books import Books
from app.store.declared import DECLARED
from app.store.diagnostics import Diagnostics
from app.store.genres import Genres
from app.store.indexes import Declared, Indexes
from app.store.keys import Keys, require_one
from app.store.messages import Messages
from app.store.products import Products
from app.store.states import States
from app.store.tasks import Tasks
from config import Settings
from config.env import named
from greenline import budget, counters, deadline, master
from greenline.errors import (
    ConfigError,
    DeadlineExceeded,
    StoreDown,
    StoreError,
    Unavailable,
)
from greenline.flask import Flask, environ
from greenline.ledger import TOLD_CAPACITY, Ledger
from greenline.ledger import path as ledger_path
from greenline.mongo.client import Mongo
from greenline.mongo.client import server_of as server_of_mongo
from greenline.postgres.caretaker import Caretaker
from greenline.postgres.client import Postgres
from greenline.postgres.connect import Connect, check_url, connect, server_of
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.errors import translated
from greenline.postgres.hosts import Hosts
from greenline.postgres.leased import LeasedLedger
from greenline.postgres.pool import ConnectionPool
from greenline.postgres.siblings import Siblings
from greenline.resources import Resources

CONNECT_TIMEOUT_S = 5.0
GOODBYE_S = 1.0


TRIAL_S = 2.0
MAX_BODY_BYTES = 1024 * 1024

log = logging.getLogger(__name__)


class Service(Flask):
    """Flask with a deadline around each handler, but for those of health: they have their own."""

    def __init__(self, *args: Any, request_timeout_s: float, **kwargs: Any) -> None:
        self._request_timeout_s = request_timeout_s
        super().__init__(*args, **kwargs)

    def add_url_rule(
        self, rule: str, endpoint: str | None = None, view_func: Any = None, *args: Any, **more: Any
    ) -> None:
        if view_func is not None and not (endpoint or "").startswith("health."):
            view_func = self._limited(view_func)
        super().add_url_rule(rule, endpoint, view_func, *args, **more)

    def _limited(self, view: Callable[..., ResponseReturnValue]) -> Callable[..., Response]:
        @wraps(view)
        def limited(**values: Any) -> Response:
            spent_s = environ().setdefault("greenline.spent", {})
            with deadline.limit(self._request_timeout_s, spent_s):
                return self._begun(self.make_response(view(**values)))

        return limited

    def _begun(self, response: Response) -> Response:
        """Begin a streamed answer in the request's time, and give each further chunk its own."""
        if response.is_streamed:
            chunks = iter(response.iter_encoded())
            response.response = deadline.Stream(chunks, response.response, self._request_timeout_s)
        return response


class IdConverter(BaseConverter):
    """``<id:...>`` in a route: what no bigint could hold is not there, whatever the method."""

    regex = r"[0-9]{1,19}"

    def to_python(self, value: str) -> int:
        number = int(value)
        if not 1 <= number <= MAX_ID:
            raise NotFound
        return number


class ObjectIdConverter(BaseConverter):
    """``<objectid:...>`` in a route: what could be no id of MongoDB's is not there."""

    regex = r"[0-9a-f]{24}"


def create_app(settings: Settings) -> Flask:
    """
    Build the service. Nothing is connected until ``extensions["greenline"].start()``.

    Raises:
        ConfigError: a setting is wrong.
    """
    resources = Resources()
    plans: dict[str, budget.Plan | None] = {"postgres": None, "mongodb": None}
    postgres = _postgres(settings, resources, plans)
    mongo = _mongo(settings, resources, plans)
    _with_indexes(mongo, resources, DECLARED)

    app = Service(__name__, static_folder=None, request_timeout_s=settings.request_timeout_s)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.url_map.converters["id"] = IdConverter
    app.url_map.converters["objectid"] = ObjectIdConverter
    app.url_map.merge_slashes = False  # a name may have two of them
    app.extensions["greenline"] = resources
    resources.on_trial = partial(_refuse_without_key, settings)
    request_id.register(app)
    security_headers.register(app)
    if settings.cors_origins:
        cors.register(app, settings.cors_origins)
    problems.register(app)
    keys_store = Keys(postgres)
    access = _access(settings, app, keys_store)
    routes = Routes(app, access.guard, is_open=not settings.auth)
    app.extensions["operations"] = routes.operations
    for declared in (
        books.resource(Books(postgres)),
        authors.resource(Authors(postgres)),
        genres.resource(Genres(postgres)),
        agents.resource(Agents(postgres)),
        tasks.resource(Tasks(postgres)),
        keys.resource(keys_store),
        states.resource(States(mongo)),
        messages.resource(Messages(mongo)),
        products.resource(Products(mongo)),
    ):
        resource.add(routes, declared)
    keys.add_rotate(routes, keys_store)
    ops.add_health(routes, resources.health, master.is_stopping)
    if settings.ops_token:
        ops.add_budget(routes, lambda: plans, settings.ops_token)
    if settings.diagnostics:
        ops.add_diagnostics(routes, Diagnostics(postgres))
    openapi.add(routes)
    docs.add(app)
    return app


def _access(settings: Settings, app: Flask, keys_store: Keys) -> Access:
    """Return the guard of the views, which counts what each client asks where that is limited."""
    find = keys_store.find if settings.auth else None
    if settings.rate_limit is None:
        return Access(find)
    from app.api import rate_limit  # what counts takes a third of a second to import

    with named("RATE_LIMIT"):
        limit = rate_limit.RateLimit(settings.rate_limit)
    rate_limit.register(app)
    return Access(find, limit.take)


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


def _refuse_without_key(settings: Settings) -> None:
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


def _deployment(settings: Settings) -> budget.Deployment:
    return budget.Deployment(settings.workers, settings.hosts or 1, settings.surge_hosts)


def _postgres(
    settings: Settings, resources: Resources, plans: dict[str, budget.Plan | None]
) -> Postgres:
    """Add the pool, and what shares the host's connections between the workers."""
    with named("DATABASE_URL"):
        url = check_url(settings.database_url)
    # A pooler in transaction mode takes no options, and gives a process id that is its own.
    is_direct = settings.postgres_prepare
    statement_timeout_s = settings.request_timeout_s if is_direct else None
    open_one: Connect = partial(connect, url, CONNECT_TIMEOUT_S, statement_timeout_s)
    path = ledger_path(server_of(url))
    least = settings.workers * (budget.POSTGRES_EXTRA_A_WORKER + 1)

    def plan_for(facts: budget.PostgresFacts, hosts: int) -> budget.Plan:
        return budget.postgres_plan(
            facts,
            replace(_deployment(settings), hosts=hosts),
            pool_size=settings.postgres_pool_size,
            pgbouncer_pool_size=settings.pgbouncer_pool_size,
            is_counted=settings.hosts is None,
        )

    def follow(plan: budget.Plan) -> None:
        plans["postgres"] = plan
        pool.resize(plan.pool_most)
        log.info("postgres pool: %s", plan)

    hosts: Hosts | None = None
    ledger: Ledger
    if settings.hosts is None:
        ledger = counted = LeasedLedger(path)
        hosts = Hosts(counted, floor=least, plan_for=plan_for, follow=follow)
        open_one = hosts.named(open_one)
        control = Control(open_one, ledger=ledger, on_connect=hosts.read)
        caretaker = Caretaker(ledger, control)
    else:
        ledger = Ledger(path)
        siblings = Siblings(
            ledger, least=least, plan_for=partial(plan_for, hosts=settings.hosts), follow=follow
        )
        control = Control(open_one, ledger=ledger, on_connect=siblings.read)
        caretaker = Caretaker(ledger, control, partial(siblings.look, control))
    pool = ConnectionPool(
        open_one,
        max_size=settings.postgres_pool_size or 1,
        timeout_s=settings.pool_timeout_s,
        max_waiting=settings.pool_max_waiting,
        control=control if is_direct else None,
        ledger=ledger,
    )
    resources.add("ledger of connections", close=ledger.close)
    resources.add("postgres", close=control.close, check=partial(control.ask, _required(settings)))
    resources.add("slots", start=caretaker.start, close=caretaker.close)
    if hosts is not None:
        start = partial(hosts.start, control)
        resources.add("hosts", start=start, close=hosts.close, check=hosts.check)
    resources.add("postgres pool", close=lambda: pool.close(GOODBYE_S))
    counters.gauges["postgres"] = pool.stats
    return Postgres(pool, prepare=settings.postgres_prepare)


def _mongo(settings: Settings, resources: Resources, plans: dict[str, budget.Plan | None]) -> Mongo:
    """Add the ledger of its connections; the client is added with its indexes."""
    uri = settings.mongodb_uri
    least_a_worker = budget.MONGODB_EXTRA_A_WORKER + 1
    ledger = Ledger(ledger_path(server_of_mongo(uri)), floor=least_a_worker)
    # Until the server has told what there is: what it told the others, or what they need to ask.
    least = settings.workers * least_a_worker
    ledger.resize(max(least, ledger.spare[TOLD_CAPACITY]), least)
    resources.add("ledger of connections to MongoDB", close=ledger.close)

    def size_for(told: int | None) -> int:
        try:
            plan = plans["mongodb"] = budget.mongodb_plan(
                told,
                _deployment(settings),
                pool_size=settings.mongodb_max_pool_size,
                max_connections=settings.mongodb_max_connections,
            )
        except ConfigError as error:  # what fits no more is no fault of who asks
            raise StoreDown(f"MongoDB: {error}") from error
        ledger.resize(plan.host, plan.reserved)
        ledger.spare[TOLD_CAPACITY] = plan.host
        log.info("mongodb pool: %s", plan)
        return plan.worker

    with named("MONGODB_URI"):
        queue_s = settings.pool_timeout_s or settings.request_timeout_s
        mongo = Mongo(
            uri,
            size_for=size_for,
            timeout_s=queue_s,
            documentdb=settings.mongodb_documentdb,
            ledger=ledger,
        )
    counters.gauges["mongodb"] = mongo.stats
    return mongo


def _with_indexes(mongo: Mongo, resources: Resources, declared: Declared) -> None:
    """Add MongoDB, ready when it answers and its unique indexes are there; the others follow."""
    indexes = Indexes(partial(mongo.database, repeatable=True), declared)

    def check() -> None:
        mongo.check()
        mongo.capabilities()  # tells the log, once
        indexes.check()

    resources.add("mongodb", close=mongo.close, check=check)
    resources.add("indexes", start=indexes.start, close=indexes.close)
