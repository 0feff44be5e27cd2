"""Sample data from Faker with a fixed seed, so that each run adds the same data."""

import random
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import click
from bson import ObjectId
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values
from pymongo.collection import Collection
from pymongo.database import Database

from app.commands.indexes import made
from app.documents.populate import BEGINNING, COUNTRIES, CURRENCIES, OPTIONAL
from app.store.ports import Document

SEED = 2718
BOOKS, AUTHORS, AGENTS, TASKS, SAMPLE_STATES = 1_000, 300, 20, 200, 100
MESSAGES, PRODUCTS = 300, 200
GENRES = "crime drama essay fable fantasy history horror memoir poetry romance satire travel"
STATUSES = ("pending", "running", "done", "failed")
PUBLICATION_DATES = (date(1946, 1, 1), date(2025, 12, 31))


def add_sample(conn: Connection, database: "Database[Document] | None") -> str:
    """
    Fill the empty tables, and the collections.

    :param conn: to Postgres.
    :param database: of MongoDB, None if the service has none.
    :returns: a description of the result.
    """
    # Postgres commits last. If this is interrupted, the next run begins again and replaces the
    # documents, which have fixed ids.
    with conn, conn.cursor() as cursor:
        # Two runs at once: the second one waits, and then finds the rows of the first.
        cursor.execute("lock table books in share row exclusive mode")
        cursor.execute("select (select count(*) from books) + (select count(*) from agents)")
        if cursor.fetchone() != (0,):
            return "left alone, the tables hold rows already"
        fake = faker(SEED)
        chance = random.Random(SEED)
        _books(cursor, fake, chance)
        tasks = _tasks(cursor, fake, chance)
        done = f"{BOOKS} books, {AGENTS} agents, {TASKS} tasks"
        if database is not None:
            # Created here, so that no worker is still creating them when the service is ready.
            for _ in made(database):
                pass
            _put(database.states, _states(fake, chance, tasks))
            _put(database.messages, _messages(fake, tasks))
            _put(database.products, _products(fake, chance))
            done += f", {SAMPLE_STATES} states, {MESSAGES} messages, {PRODUCTS} products"
    return done


def faker(seed: int) -> Any:
    """
    Return a Faker whose values depend only on *seed*.

    :raises ClickException: the package Faker is not installed.
    """
    try:
        from faker import Faker
    except ImportError as error:
        raise click.ClickException("Faker is missing: requirements-embedded.txt has it") from error
    fake = Faker("en_US")
    fake.seed_instance(seed)
    return fake


def _books(cursor: Cursor, fake: Any, chance: random.Random) -> None:
    authors = [(number, fake.unique.name()) for number in range(1, AUTHORS + 1)]
    genres = list(enumerate(GENRES.split(), start=1))
    books = [
        (number, fake.sentence(nb_words=4).rstrip("."), fake.date_between_dates(*PUBLICATION_DATES))
        for number in range(1, BOOKS + 1)
    ]
    written = [
        (book, author, position)
        for book, _, _ in books
        for position, author in enumerate(_some(chance, AUTHORS, 3), start=1)
    ]
    shelved = [
        (book, genre, position)
        for book, _, _ in books
        for position, genre in enumerate(_some(chance, len(genres), 3), start=1)
    ]
    _insert(cursor, "authors (id, name)", authors)
    _insert(cursor, "genres (id, name)", genres)
    _insert(cursor, "books (id, title, published)", books)
    _insert(cursor, "book_authors (book_id, author_id, position)", written)
    _insert(cursor, "book_genres (book_id, genre_id, position)", shelved)
    for table in ("authors", "genres", "books"):
        _skip_ids(cursor, table)


def _tasks(cursor: Cursor, fake: Any, chance: random.Random) -> list[tuple[int, int]]:
    """Add agents and tasks; return the (task id, agent id) of each task."""
    agents = [
        (number, f"{fake.unique.first_name().lower()}-agent") for number in range(1, AGENTS + 1)
    ]
    tasks = [
        (number, chance.randint(1, AGENTS), fake.bs(), chance.choice(STATUSES))
        for number in range(1, TASKS + 1)
    ]
    _insert(cursor, "agents (id, name)", agents)
    _insert(cursor, "tasks (id, agent_id, title, status)", tasks)
    _skip_ids(cursor, "agents")
    _skip_ids(cursor, "tasks")
    return [(task, agent) for task, agent, _, _ in tasks]


def _states(fake: Any, chance: random.Random, tasks: list[tuple[int, int]]) -> list[Document]:
    return [
        {
            "task_id": task,
            "agent_id": agent,
            "data": {"step": chance.randint(1, 9), "note": fake.sentence(), "tags": fake.words(3)},
        }
        for task, agent in tasks[:SAMPLE_STATES]
    ]


def _messages(fake: Any, tasks: list[tuple[int, int]]) -> list[Document]:
    """Return messages of some tasks: a question, a tool's result and the agent's answer."""
    roles = (("user", None), ("tool", True), ("assistant", True))
    return [
        {
            "task_id": task,
            "role": role,
            "content": fake.sentence(nb_words=12),
            "agent_id": agent if is_agents else None,
        }
        for task, agent in tasks[: MESSAGES // len(roles)]
        for role, is_agents in roles
    ]


def _products(fake: Any, chance: random.Random) -> list[Document]:
    """Return products; each optional field is missing or empty in about a third of them."""
    return [_product(fake, chance, number) for number in range(1, PRODUCTS + 1)]


def _product(fake: Any, chance: random.Random, number: int) -> Document:
    word, name = fake.word(), f"{fake.color_name()} {fake.word()}"
    product = {
        "offerId": f"offer-{number:06d}",
        "title": name,
        "description": fake.sentence(nb_words=12),
        "link": f"https://shop.example/{number}",
        "imageLink": f"https://shop.example/{number}.jpg",
        "price": {
            "value": f"{chance.randint(1, 500)}.{chance.randint(0, 99):02d}",
            "currency": chance.choice(CURRENCIES),
        },
        "brand": fake.last_name(),
        "gtin": fake.ean13(),
        "mpn": f"{word.upper()}-{chance.randint(100, 999)}",
        "slug": dict.fromkeys(chance.sample(COUNTRIES, 2), f"{word}-{number}"),
    }
    for field in OPTIONAL:
        match chance.randint(1, 6):
            case 1:
                del product[field]
            case 2:
                product[field] = ""
    return product


def _put(collection: "Collection[Document]", contents: Sequence[Document]) -> None:
    """Write *contents* with fixed ids, replacing documents that have them."""
    documents = []
    for number, content in enumerate(contents, start=1):
        moment = BEGINNING + timedelta(minutes=number)
        stamps = {"created_at": moment, "updated_at": moment, "version": 1}
        documents.append({"_id": ObjectId(f"{number:024x}"), **content, **stamps})
    # Deleted first: an interrupted run may have left some of them.
    collection.delete_many({"_id": {"$in": [document["_id"] for document in documents]}})
    collection.insert_many(documents)


def _some(chance: random.Random, max_: int, count: int) -> list[int]:
    """Return 1 to *count* different numbers from 1 to *max_*."""
    return chance.sample(range(1, max_ + 1), chance.randint(1, count))


def _insert(cursor: Cursor, into: str, rows: Sequence[tuple[Any, ...]]) -> None:
    # With ids of our own, so that the tables refer to each other without a query.
    execute_values(
        cursor, f"insert into {into} overriding system value values %s", rows, page_size=1_000
    )


def _skip_ids(cursor: Cursor, table: str) -> None:
    """Set the sequence of *table* behind the ids that were inserted explicitly."""
    cursor.execute(
        f"select setval(pg_get_serial_sequence('{table}', 'id'), (select max(id) from {table}))"
    )
