"""The composition root: build the resources, pass them to the repositories, add the routes."""

import logging
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from app.api import (
    agents,
    answer_headers,
    authors,
    books,
    cache_status,
    cors,
    docs,
    forwarded,
    genres,
    kept_items,
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
from app.databases import add_mongo, add_postgres, plans
from app.readiness import refuse_without_key
from app.records import AgentInput, AuthorInput, BookInput, GenreInput, ProductInput
from app.service import DeadlineFlask, IdConverter, NameConverter, ObjectIdConverter
from app.store.agents import Agents
from app.store.authors import Authors
from app.store.books import Books
from app.store.cached import Cached, CachedNamed
from app.store.diagnostics import Diagnostics
from app.store.genres import Genres
from app.store.keys import Keys
from app.store.messages import Messages
from app.store.ports import NamedItems, Repository
from app.store.products import Products
from app.store.states import States
from app.store.tasks import Tasks
from config import Settings
from config.settings import RATE_LIMIT, RATE_LIMIT_STORAGE
from greenline.cache import Cache
from greenline.flask import Flask
from greenline.lifecycle import Resources
from greenline.mongo import OpenMongo
from greenline.postgres import OpenPostgres
from greenline.postgres.connect import server_of
from greenline.slots import path as host_path
from greenline.worker import arbiter

log = logging.getLogger(__name__)

MAX_JSON_BYTES = 1024 * 1024
CACHE_TTL_S = 300.0  # what the database does not announce is not seen for so long


class Stores(NamedTuple):
    """The repositories whose items a cache may keep."""

    books: Repository[BookInput]
    authors: NamedItems[AuthorInput]
    genres: NamedItems[GenreInput]
    agents: NamedItems[AgentInput]
    products: Repository[ProductInput] | None  # None: no MongoDB


def create_app(settings: Settings) -> Flask:
    """
    Build the service. Nothing is connected until ``extensions["greenline"].start()``.

    :param settings: as :func:`config.load` returns them.
    :returns: the Flask application.
    :raises ConfigError: a setting is wrong.
    """
    resources = Resources()
    postgres = add_postgres(settings, resources)
    mongo = None
    if settings.mongodb_uri is not None:
        mongo = add_mongo(settings.mongodb_uri, settings, resources)

    app = DeadlineFlask(__name__, static_folder=None, request_timeout_s=settings.request_timeout_s)
    app.config["MAX_CONTENT_LENGTH"] = MAX_JSON_BYTES
    app.url_map.converters["id"] = IdConverter
    app.url_map.converters["name"] = NameConverter
    app.url_map.converters["objectid"] = ObjectIdConverter
    app.url_map.merge_slashes = False  # a name in a path may contain //
    app.extensions["greenline"] = resources
    # A dry run of a release starts no resources; this is its only check of a database.
    resources.on_dry_run = partial(refuse_without_key, settings)
    adds: list[answer_headers.Add] = [request_id.add, security_headers.add]
    if settings.cache_bytes:
        adds.append(cache_status.add)
    keys_store = Keys(postgres)
    access = _access(settings, keys_store, resources, adds)
    problems.register(app)
    routes = Routes(app, access.guard, is_open=not settings.auth)
    app.extensions["operations"] = routes.operations
    stores = _stores(settings, postgres, mongo)
    of_postgres: list[resource.Resource[Any]] = [
        books.resource(stores.books),
        authors.resource(stores.authors),
        genres.resource(stores.genres),
        agents.resource(stores.agents),
        tasks.resource(Tasks(postgres)),
        keys.resource(keys_store),
    ]
    for each in of_postgres:
        resource.add(routes, each)
    keys.add_rotate(routes, keys_store)
    of_mongo: list[resource.Resource[Any]] = []
    if mongo is not None and stores.products is not None:
        of_states = States(mongo)
        of_mongo = [
            states.resource(of_states),
            messages.resource(Messages(mongo)),
            products.resource(stores.products),
        ]
        for each in of_mongo:
            resource.add(routes, each)
        states.add_get_by_pair(routes, of_states)
    # Without a token /readyz shows no errors, which name addresses, and there is no /ops/budget.
    ops.add_health(routes, resources.health, arbiter.is_stopping, settings.ops_token)
    if settings.ops_token:
        opened: dict[str, OpenPostgres | OpenMongo] = {"postgres": postgres}
        if mongo is not None:
            opened["mongodb"] = mongo
        ops.add_budget(routes, partial(plans, opened), settings.ops_token)
    if settings.diagnostics:
        ops.add_diagnostics(routes, Diagnostics(postgres))
    # The document describes the routes that exist by now.
    openapi.add(routes)
    docs.add(app)
    # Each wraps the WSGI application of those before it, so a later one is further outside: CORS
    # answers a preflight request before Flask sees it, and all answers have their headers.
    kept_items.register(app, [*of_postgres, *of_mongo], access.admits)
    forwarded.register(app)
    request_id.register(app)
    answer_headers.register(app, adds)
    if settings.cors_origins:
        cors.register(app, settings.cors_origins)
    return app


def _stores(settings: Settings, postgres: OpenPostgres, mongo: OpenMongo | None) -> Stores:
    """Return the repositories, those with a cache where ``GREENLINE_CACHE_BYTES`` is set."""
    stores = Stores(
        Books(postgres),
        Authors(postgres),
        Genres(postgres),
        Agents(postgres),
        None if mongo is None else Products(mongo),
    )
    if not settings.cache_bytes:
        return stores
    keeps_products = mongo is not None and mongo.reads_primary
    max_bytes = max(settings.cache_bytes // 2, 1) if keeps_products else settings.cache_bytes
    # Workers of one service whose code is alike share what they load.
    code = sha256()
    for source in sorted(Path(__file__).parent.rglob("*")):
        if source.suffix in (".py", ".sql"):
            code.update(source.read_bytes())
    shared, release = f"{settings.database_url} {settings.mongodb_uri}", code.hexdigest()

    def cache_of(opened: OpenPostgres | OpenMongo, name: str) -> Cache:
        # A single worker has no other one to share a load with, and sharing has a cost.
        loads = f"{shared}, {name}" if settings.workers > 1 else None
        feed = opened.feed()
        return Cache(
            max_bytes, CACHE_TTL_S, feed=feed, shared_loads=loads, release=release, name=name
        )

    cache, note, products = cache_of(postgres, "postgres"), cache_status.note, stores.products
    if mongo is not None and products is not None:
        if keeps_products:
            products = Cached(products, cache_of(mongo, "mongodb"), note)
        else:
            log.warning("products are not kept: MONGODB_URI reads from secondaries")
    return Stores(
        # A book adds the authors and genres that are new, and shows the names of all.
        Cached(stores.books, cache, note, ["authors", "genres"]),
        CachedNamed(stores.authors, cache, note, ["books items", "books"]),
        CachedNamed(stores.genres, cache, note, ["books items", "books"]),
        CachedNamed(stores.agents, cache, note),
        products,
    )


def counts_path(database_url: str) -> Path:
    """
    Return the path of a host's request counts: one file for all services on one database.

    :param database_url: URL of the database that holds the API keys, str.
    """
    return host_path(f"rate limit of {server_of(database_url)}{urlsplit(database_url).path}")


def _access(
    settings: Settings,
    keys_store: Keys,
    resources: Resources,
    adds: list[answer_headers.Add],
) -> Access:
    """
    Return the guard of the views.

    With ``RATE_LIMIT`` it also counts requests, and what adds the headers of that joins *adds*.
    """
    find = keys_store.find if settings.auth else None
    if settings.rate_limit is None:
        return Access(find)
    # Imported here: the library limits takes a third of a second to import.
    from app.api import rate_limit
    from app.api.host_counts import HostCounts

    own = HostCounts(counts_path(settings.database_url))
    resources.add("rate limit", close=own.close)
    shared = None
    if settings.rate_limit_storage is not None:
        with RATE_LIMIT_STORAGE.named():
            shared = rate_limit.shared_storage(settings.rate_limit_storage)
    with RATE_LIMIT.named():
        limit = rate_limit.RateLimit(settings.rate_limit, own, shared)
    adds.append(rate_limit.add)
    return Access(find, limit.take)
