"""Migrations 0003 to 0005: what each write announces, by whichever program."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg2
import pytest
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from app.errors import SchemaBehind
from app.store import schema
from embedded.postgres import Postgres

Announced = Callable[..., list[list[str]]]
ROWS = """
    insert into books (title) values ('Dune'), ('Tehanu');
    insert into authors (name) values ('Herbert'), ('Le Guin');
    insert into genres (name) values ('novel'), ('tale');
    insert into agents (name) values ('reader');
    insert into book_authors (book_id, author_id, position) values (1, 1, 1), (2, 2, 1);
    insert into book_genres (book_id, genre_id, position) values (1, 1, 1);
"""


@pytest.fixture
def written(empty_database: str) -> Iterator[Connection]:
    """A database with some rows, for a program that writes."""
    with closing(psycopg2.connect(empty_database)) as conn:
        schema.upgrade(conn)
        with pytest.raises(SchemaBehind, match="run flask db upgrade with it"):
            schema.require_announcements(conn)
        schema.announce(conn)
        schema.require_announcements(conn)
        with conn.cursor() as cursor, pytest.raises(SchemaBehind):
            cursor.execute("drop trigger announce_delete on book_genres")
            schema.require_announcements(conn)
        conn.rollback()
        with conn, conn.cursor() as cursor:
            cursor.execute(ROWS)
        yield conn


@pytest.fixture
def announced(written: Connection) -> Announced:
    """Runs statements in one transaction; returns the lines of what it has announced."""

    def announced(*statements: str) -> list[list[str]]:
        with written, written.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        with written, written.cursor() as cursor:
            cursor.execute("delete from greenline_announcements returning tags")
            return [sorted(tags.split("\n")) for tags in sorted({row[0] for row in cursor})]

    announced()
    return announced


OF_1, OF_2 = ["books", "books 1"], ["books", "books 2"]
AUTHOR = ["authors", "authors 1", "books", "books items"]
GENRE = ["books", "books items", "genres", "genres 1"]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("insert into books (title) values ('Lavinia')", [["books", "books 3"]]),
        ("update books set title = 'Dune 2' where id = 1", [OF_1]),
        ("update books set title = title || '!'", [["books", "books 1", "books 2"]]),
        ("delete from books where id = 1", [OF_1]),
        ("update books set title = 'none' where id = 7", []),
        ("truncate books cascade", [["books", "books items"]]),
        ("update authors set name = 'Frank' where id = 1", [OF_1, AUTHOR]),
        ("update authors set name = name", [sorted([*AUTHOR, "authors 2"])]),
        ("update genres set name = 'epic' where id = 1", [OF_1, GENRE]),
        ("insert into genres (name) values ('saga')", [["genres", "genres 3"]]),
        ("delete from agents", [["agents", "agents 1"]]),
        ("truncate agents cascade", [["agents", "agents items"]]),
        ("delete from book_authors where book_id = 1", [OF_1]),
        ("update book_authors set position = 2 where book_id = 2", [OF_2]),
        ("update book_authors set book_id = 2 where book_id = 1", [OF_1, OF_2]),
        ("update book_genres set book_id = 2", [OF_1, OF_2]),
        ("insert into book_genres values (2, 2, 1)", [OF_2]),
        ("truncate book_genres", [["books", "books items"]]),
        ("insert into tasks (agent_id, title) values (1, 'read')", []),
    ],
)  # fmt: skip
def test_a_write_announces_what_it_changes(
    announced: Announced, statement: str, expected: list[list[str]]
) -> None:
    assert sorted(announced(statement)) == sorted(expected)


def test_a_transaction_announces_a_thing_once(announced: Announced) -> None:
    change = "update books set title = title || '.' where id = 1"
    assert announced(change, change, "delete from book_authors where book_id = 1") == [OF_1]


def test_what_is_undone_is_not_announced(announced: Announced) -> None:
    assert announced("savepoint s", "delete from books", "rollback to savepoint s") == []


def test_two_hundred_items_are_named_and_more_are_all(announced: Announced) -> None:
    """An announcement has at most 7,999 bytes."""
    long = "alter table books alter id restart with 9000000000000000000"
    insert = "insert into books (title) select 'x' from generate_series(1, {})"
    [lines] = announced(long, insert.format(200))
    assert len(lines) == 201
    assert announced(insert.format(201)) == [["books", "books items"]]


@contextmanager
def writing_as_superuser(postgres: Postgres, database: str) -> Iterator[Cursor]:
    """A transaction of the superuser's in the database of an address."""
    name = psycopg2.extensions.parse_dsn(database)["dbname"]
    with closing(psycopg2.connect(postgres.superuser_url, dbname=name)) as conn:
        with conn, conn.cursor() as cursor:
            yield cursor


def test_a_copy_announces(announced: Announced, empty_database: str, postgres: Postgres) -> None:
    """Only the superuser may read what a program writes, and the tests' driver cannot send it."""
    with writing_as_superuser(postgres, empty_database) as cursor:
        cursor.execute("copy books (title) from program 'printf \"Orsinia\\nLavinia\\n\"'")
    assert announced() == [["books", "books 3", "books 4"]]


def test_a_program_that_restores_data_is_heard(
    announced: Announced, postgres: Postgres, empty_database: str
) -> None:
    """It may have switched off the triggers that are not always enabled."""
    with writing_as_superuser(postgres, empty_database) as cursor:
        cursor.execute("set session_replication_role = replica")
        cursor.execute("update books set title = 'Dune 2' where id = 1")
        cursor.execute("update authors set name = 'Frank' where id = 1")
    assert announced("select 1") == [AUTHOR, OF_1]


def test_any_role_that_may_write_is_heard(
    announced: Announced, postgres: Postgres, empty_database: str
) -> None:
    """Wherever it looks for tables by their names."""
    with writing_as_superuser(postgres, empty_database) as cursor:
        cursor.execute("create role writer_of_books; grant select, update on books to public")
        cursor.execute("set local role writer_of_books; set local search_path = pg_catalog")
        cursor.execute("update public.books set title = 'Dune 2' where id = 1")
        cursor.execute("reset role; drop role writer_of_books")
    assert announced("select 1") == [OF_1]
