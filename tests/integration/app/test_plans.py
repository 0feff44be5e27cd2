"""Every documented pair of filter and order has an index that serves it, on 100,000 rows."""

import itertools
from collections.abc import Iterator
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import connection as PsycopgConnection

from app.store.agents import Agents
from app.store.authors import Authors
from app.store.books import _LINK, Books
from app.store.genres import Genres
from app.store.keys import Keys
from app.store.ports import Listing, Position
from app.store.tables import Statement, Table
from app.store.tasks import Tasks
from embedded.postgres import Postgres as Server
from greenline.postgres import prepared
from greenline.postgres.client import Postgres
from greenline.postgres.connect import connect
from greenline.postgres.pool import ConnectionPool
from tests.helpers.support import Databases, run

ROWS = 100_000
TABLES: tuple[type[Table[Any]], ...] = (Books, Authors, Genres, Agents, Tasks, Keys)
STAMPS = "now() - n * interval '1 s', now() - n * 7919 % rows * interval '1 s'"
# Few agents have many tasks, and few genres many books; names and titles differ.
FILL = f"""
insert into authors (name, created_at, updated_at) select 'name ' || n, {STAMPS} from numbers;
insert into genres (name, created_at, updated_at) select 'name ' || n, {STAMPS} from numbers;
insert into agents (name, created_at, updated_at) select 'name ' || n, {STAMPS} from numbers;
insert into books (title, published, created_at, updated_at)
select 'title ' || n * 31 % rows, date '1900-01-01' + nullif(n % 40000, 0), {STAMPS} from numbers;
insert into tasks (agent_id, title, status, created_at, updated_at)
select 1 + n % 1000, 'title ' || n * 31 % rows,
    (array['pending', 'running', 'done', 'failed'])[1 + n % 4], {STAMPS}
from numbers;
insert into api_keys (name, scopes, prefix, hash, created_at, updated_at)
select 'name ' || n, array['read'], 'prefix ' || n, sha256('x'), {STAMPS} from numbers;
insert into book_authors (book_id, author_id, position) select n, 1 + n % 5000, 1 from numbers;
insert into book_genres (book_id, genre_id, position) select n, 1 + n % 12, 1 from numbers;
"""
FILTERS: dict[str, object] = {
    "name": "name 7",
    "title": "title 7",
    "published": date(1950, 1, 1),
    "author": "name 7",
    "genre": "name 7",
    "agent_id": 7,
    "status": "done",
}
PLACES: dict[str, object] = {
    "id": ROWS // 2,
    "name": "name 5",
    "title": "title 5",
    "published": date(1950, 1, 1),
    "created_at": datetime.now(UTC),
    "updated_at": datetime.now(UTC),
}
# One more than a page: what has more of them is not read for a page.
PAGE = 101


@pytest.fixture(scope="module")
def pool(postgres: Server) -> Iterator[ConnectionPool]:
    """A pool on a database of its own, with 100,000 rows in each table."""
    admin = psycopg2.connect(postgres.superuser_url)
    admin.autocommit = True
    with admin.cursor() as cursor:
        cursor.execute("create database plans owner greenline")
        url = postgres.url.replace("/greenline?", "/plans?")
        run(["flask", "db", "upgrade"], Databases(url, "mongodb://127.0.0.1:1").environ)
        filler = psycopg2.connect(postgres.superuser_url.replace("/greenline?", "/plans?"))
        with filler:
            fill(filler)
        filler.close()
        # As Postgres comes: to the embedded one a look into an index costs a quarter of that.
        costs = f"{url}&options=-crandom_page_cost%3D4"
        made = ConnectionPool(partial(connect, costs, 5.0), max_size=1)
        yield made
        made.close(2.0)
        cursor.execute("drop database plans with (force)")
    admin.close()


def fill(conn: PsycopgConnection) -> None:
    """Make the rows, and the indexes after them: that takes a third of the time."""
    with conn.cursor() as cursor:
        cursor.execute("set session_replication_role = replica")  # no foreign keys, no triggers
        cursor.execute(
            "select indexname, indexdef from pg_indexes where schemaname = 'public'"
            " and indexname not in (select conname from pg_constraint)"
        )
        indexes = cursor.fetchall()
        for name, _ in indexes:
            cursor.execute(f"drop index {name}")
        numbers = f"(select n, {ROWS} as rows from generate_series(1, {ROWS}) n) numbers"
        cursor.execute(FILL.replace("from numbers", f"from {numbers}"))
        for _, definition in indexes:
            cursor.execute(definition)
        cursor.execute("analyze")


def listings(table: type[Table[Any]]) -> Iterator[Listing]:
    """Yield a list of each form: every filter and order, both directions, from every place."""
    filters: list[dict[str, object]] = [{}, *({name: FILTERS[name]} for name in table.filters)]
    directions = (False, True)
    for filter_, order, descending in itertools.product(filters, table.orders, directions):
        value = PLACES[order]
        for position in (
            None,
            Position(value, ROWS // 2),
            Position(value, ROWS // 2, before=True),
        ):
            yield Listing(order, descending, PAGE - 1, filter_, position=position)


def plan(pool: ConnectionPool, table: Table[Any], listing: Listing) -> dict[str, Any]:
    """Return the plan of the very statement that *table* runs, as it is prepared."""
    return plan_of(pool, table.statement(listing))


def plan_of(pool: ConnectionPool, asked: Statement) -> dict[str, Any]:
    prepare, execute = prepared.statements(asked.name, asked.text)
    with pool.connection(autocommit=True, reset=False) as conn, conn.cursor() as cursor:
        cursor.execute(prepare)
        cursor.execute(f"explain (format json) {execute}", asked.values)
        row = cursor.fetchone()
        cursor.execute(f"deallocate {asked.name}")
    assert row is not None
    return dict(row[0][0]["Plan"])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all nodes of *plan*, but for those that make a document's members."""
    if plan.get("Parent Relationship") != "SubPlan":
        yield plan
        for child in plan.get("Plans", ()):
            yield from nodes(child)


def whole(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from whole(child)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_no_list_scans_its_table(pool: ConnectionPool, table: type[Table[Any]]) -> None:
    """Nor sorts it: only what a filter finds is sorted, and that is less than the table."""
    client = Postgres(pool)
    scanned, sorted_ = [], []
    for listing in listings(table):
        found = plan(pool, table(client), listing)
        if any(node["Node Type"] == "Seq Scan" for node in whole(found)):
            scanned.append(listing)
        rows = [node["Plan Rows"] for node in nodes(found) if node["Node Type"] == "Sort"]
        if any(count > (ROWS // 10 if listing.filters else PAGE) for count in rows):
            sorted_.append(listing)
    assert (scanned, sorted_) == ([], [])


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_no_write_scans_its_table(pool: ConnectionPool, table: type[Table[Any]]) -> None:
    """Nor one that it refers to: names are looked up."""
    made = table(Postgres(pool))
    values = {"id": 7, "ids": [7, 8], "items": "[]", "author_links": "[]", "genre_links": "[]"}
    written = [*made._one, *made._many, made._inserting]
    for name, text in [*written, *_LINK] if table is Books else written:
        found = plan_of(pool, Statement(name, text, values))
        assert "Seq Scan" not in [node["Node Type"] for node in whole(found)], name


def test_what_an_index_keeps_in_order_is_not_sorted(pool: ConnectionPool) -> None:
    """Filters that find a lot have an index for each order."""
    client = Postgres(pool)
    cases: list[tuple[type[Table[Any]], str, tuple[str, ...]]] = [
        (Tasks, "agent_id", tuple(Tasks.orders)),
        (Tasks, "status", tuple(Tasks.orders)),
        (Books, "author", ("id",)),
        (Books, "genre", ("id",)),
    ]
    for table, name, orders in cases:
        for listing in listings(table):
            if name in listing.filters and listing.order in orders:
                found = [node["Node Type"] for node in nodes(plan(pool, table(client), listing))]
                assert "Sort" not in found, listing


def test_a_page_of_a_hundred_books_is_one_statement(pool: ConnectionPool) -> None:
    """With their authors and genres, and no more rows are read than are shown."""
    client = Postgres(pool)
    books = Books(client)
    page = books.page(Listing("title", True, 100))
    assert (len(page.items), page.more) == (100, True)
    assert all(b'"authors":[{"id"' in item for item in page.items)
    with pool.connection(autocommit=True, reset=False) as conn, conn.cursor() as cursor:
        cursor.execute("select name, generic_plans, custom_plans from pg_prepared_statements")
        [(name, generic, custom)] = cursor.fetchall()
    assert (name.startswith("books_list_"), generic, custom) == (True, 1, 0)
