"""The schema and the sample, as ``flask db`` makes them."""

import subprocess

import psycopg2
import psycopg2.errors
import pytest
from pymongo import MongoClient

from app.store import schema
from tests.helpers.support import BIN, CHECKOUT, START_LIMIT_S, Databases, environ, run

COUNTS = """
select (select count(*) from books), (select count(*) from authors), (select count(*) from agents),
       (select count(*) from tasks), (select count(*) from book_authors)
"""


def fetch(url: str, statement: str) -> tuple[object, ...]:
    conn = psycopg2.connect(url)
    try:
        with conn.cursor() as cursor:
            cursor.execute(statement)
            row = cursor.fetchone()
            assert row is not None
            return row
    finally:
        conn.close()


def test_upgrade_and_sample_happen_once(empty_database: str, empty_mongo: str) -> None:
    """A second run changes nothing and says so."""
    target = Databases(empty_database, empty_mongo)
    first = run(["flask", "db", "upgrade", "sample"], target.environ).stdout
    assert f"schema: {', '.join(schema.REVISIONS)} applied" in first
    before = fetch(empty_database, COUNTS)
    assert before[0] == 1000
    second = run(["flask", "db", "upgrade", "sample"], target.environ).stdout
    assert "schema: up to date" in second
    assert fetch(empty_database, COUNTS) == before
    with MongoClient(empty_mongo) as client:
        assert client.get_default_database().states.count_documents({}) == 100


def test_the_next_book_gets_an_id_of_its_own(databases: Databases) -> None:
    """The sample's fixed ids do not collide with those to come."""
    found = fetch(databases.postgres, "select nextval(pg_get_serial_sequence('books', 'id'))")
    assert found > (1000,)


def test_two_upgrades_at_once_apply_everything_once(empty_database: str, empty_mongo: str) -> None:
    """The second one waits for the first and finds nothing left to do."""
    target = environ(Databases(empty_database, empty_mongo).environ)
    command = [str(BIN / "flask"), "db", "upgrade"]
    both = [
        subprocess.Popen(command, cwd=CHECKOUT, env=target, text=True, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    said = sorted(str(one.communicate(timeout=START_LIMIT_S)[0]).strip() for one in both)
    assert [one.returncode for one in both] == [0, 0]
    assert said == [f"schema: {', '.join(schema.REVISIONS)} applied", "schema: up to date"]


def test_a_schema_ahead_of_the_code_is_left_alone(empty_database: str, empty_mongo: str) -> None:
    """During a rolling deploy the old code's upgrade does not touch the newer schema."""
    target = Databases(empty_database, empty_mongo)
    run(["flask", "db", "upgrade"], target.environ)
    conn = psycopg2.connect(empty_database)
    with conn, conn.cursor() as cursor:
        cursor.execute("update alembic_version set version_num = '9999'")
    conn.close()
    run(["flask", "db", "upgrade"], target.environ)
    assert fetch(empty_database, "select version_num from alembic_version") == ("9999",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "postgresql://127.0.0.1:1/none"),
        ("DATABASE_URL", "postgresql://h/d?sesame=1"),
        ("MONGODB_URI", "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200"),
        ("MONGODB_URI", "mongodb://me:sesame@"),
        ("PORT", "x"),
    ],
    ids=["postgres down", "bad url", "mongo down", "bad uri", "setting"],
)
def test_what_is_wrong_is_one_line(
    empty_database: str, empty_mongo: str, name: str, value: str
) -> None:
    """No stack, no password, the variable's name, and a status that scripts notice."""
    environ = {**Databases(empty_database, empty_mongo).environ, name: value}
    done = run(["flask", "db", "upgrade", "sample"], environ, check=False)
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"Error: {name}: ")


OLD_DATA = """
insert into books (title, published) values ('old', '1968-11-01'), ('older', null);
insert into authors (name) values ('old author');
insert into genres (name) values ('old genre');
insert into book_authors (book_id, author_id, position) values (1, 1, 1), (2, 1, 50);
insert into book_genres (book_id, genre_id, position) values (1, 1, 1);
insert into agents (name) values ('old agent');
insert into tasks (agent_id, title, status) values (1, 'old task', 'done');
"""


def test_data_of_the_first_schema_is_kept(empty_database: str, empty_mongo: str) -> None:
    """An upgrade gives what is there its first version, and leaves it as it is."""
    conn = psycopg2.connect(empty_database)
    first = schema.MIGRATIONS / "versions" / "0001_books.sql"
    with conn, conn.cursor() as cursor:
        cursor.execute(first.read_text())
        cursor.execute(OLD_DATA)
        cursor.execute("create table alembic_version (version_num varchar(32) primary key)")
        cursor.execute("insert into alembic_version values ('0001')")
    conn.close()
    done = run(["flask", "db", "upgrade"], Databases(empty_database, empty_mongo).environ)
    assert f"schema: {', '.join(schema.REVISIONS[1:])} applied" in done.stdout
    for table in ("books", "authors", "genres", "agents", "tasks"):
        kept = f"select min(version), max(version), count(updated_at) > 0 from {table}"
        assert fetch(empty_database, kept) == (1, 1, True), table
    assert fetch(empty_database, "select title, status from tasks") == ("old task", "done")


@pytest.mark.parametrize(
    "statement",
    [
        "insert into books (title) values ('')",
        "insert into books (title) values (repeat('x', 501))",
        "insert into books (title, published) values ('x', 'infinity')",
        "insert into books (title, published) values ('x', '0044-03-15 BC')",
        "insert into books (title, version) values ('x', 0)",
        "insert into book_authors (book_id, author_id, position) values (1, 300, 51)",
        "insert into book_genres (book_id, genre_id, position) values (1, 12, 0)",
        "insert into authors (name) values ('')",
        "insert into authors (name) values (repeat('x', 201))",
        "insert into genres (name) values ('')",
        "insert into genres (name) values (repeat('x', 201))",
        "insert into agents (name) values ('')",
        "insert into agents (name) values (repeat('x', 201))",
        "insert into tasks (agent_id, title) values (1, '')",
        "insert into tasks (agent_id, title) values (1, repeat('x', 501))",
        "insert into tasks (agent_id, title, status) values (1, 'x', 'asleep')",
        "insert into api_keys (name, scopes, prefix, hash, version)"
        " values ('x', array['read'], 'x', 'x', 0)",
        "insert into idempotency_keys (key, request, answer) values ('', sha256('x'), '')",
        "insert into idempotency_keys (key, request, answer) values ('x', 'short', '')",
    ],
)
def test_the_database_itself_refuses_what_the_types_do(
    databases: Databases, statement: str
) -> None:
    """A write past the service is held to the same rules."""
    conn = psycopg2.connect(databases.postgres)
    with conn.cursor() as cursor, pytest.raises(psycopg2.errors.CheckViolation):
        cursor.execute(statement)
    conn.close()


@pytest.mark.parametrize("table", ["authors", "genres", "agents"])
def test_the_database_itself_keeps_names_apart(databases: Databases, table: str) -> None:
    """Two workers cannot make one name twice."""
    conn = psycopg2.connect(databases.postgres)
    with conn.cursor() as cursor, pytest.raises(psycopg2.errors.UniqueViolation):
        cursor.execute(f"insert into {table} (name) select name from {table} limit 1")
    conn.close()
