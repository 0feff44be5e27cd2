"""``flask books export`` and ``import``: by COPY, all or nothing."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from click.testing import CliRunner, Result
from psycopg2.extensions import get_wait_callback, set_wait_callback

from app.commands.books import books
from app.store import schema
from tests.helpers.support import Databases, run

COUNTED = ("books", "authors", "genres", "book_authors", "book_genres")


@pytest.fixture
def database(empty_database: str) -> Iterator[str]:
    """An empty database with the schema, for commands in this process, which is green."""
    callback = get_wait_callback()
    set_wait_callback(None)
    try:
        with closing(psycopg2.connect(empty_database)) as conn:
            schema.upgrade(conn)
        yield empty_database
    finally:
        set_wait_callback(callback)


def flask(url: str, *arguments: str, status: int = 0) -> Result:
    """Run one of the commands in this process."""
    variables = Databases(url, "off").environ
    done = CliRunner().invoke(books, arguments, env=variables, catch_exceptions=False)
    assert done.exit_code == status, done.output
    return done


def fails(url: str, path: Path) -> str:
    """Return the one line that an import fails with."""
    output = flask(url, "import", str(path), status=1).output
    assert output.startswith(f"Error: {path}: ")
    assert output.count("\n") == 1
    return output.removeprefix(f"Error: {path}: ").rstrip()


def execute(url: str, statement: str) -> list[tuple[int, ...]]:
    with closing(psycopg2.connect(url)) as conn, conn, conn.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def counts(url: str) -> list[int]:
    """Return how many rows each table has."""
    return [execute(url, f"select count(*) from {table}")[0][0] for table in COUNTED]


def write(path: Path, *items: object) -> Path:
    """Write a book a line."""
    lines = [item if isinstance(item, bytes) else json.dumps(item).encode() for item in items]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


BOOKS = [
    {"title": "A", "published": "0001-01-01", "authors": ["x", "y", "x"], "genres": []},
    {"title": '\x01\x02\t\n"\\. ä \u2028', "authors": ["y"], "genres": ["g\\N", "h"]},
    {"title": "\\.", "published": None},
    {"title": "A", "published": "9999-12-31", "authors": ["z", "y"]},
]


def test_the_sample_comes_back_as_it_was(
    databases: Databases, database: str, tmp_path: Path
) -> None:
    """Each book with its authors and genres, in their order; by the command itself, in a pipe."""
    first, second = tmp_path / "a.ndjson.zst", tmp_path / "b.ndjson"
    exported = flask(databases.postgres, "export", str(first)).stderr
    done = flask(database, "import", str(first))
    assert done.stderr == exported.replace("exported", "imported")
    written = run(["flask", "books", "export", "-"], Databases(database, "off").environ)
    assert written.stderr == exported.replace(str(first), "-")
    flask(databases.postgres, "export", str(second))
    assert written.stdout == second.read_text()
    assert len(written.stdout.splitlines()) >= 1_000  # other tests may have added some


def test_what_is_odd_comes_back_as_it_was(database: str, tmp_path: Path) -> None:
    """Characters that COPY or JSON would quote, and the ends of the calendar."""
    path = write(tmp_path / "a.ndjson", *BOOKS)
    assert flask(database, "import", str(path)).stderr.endswith(" 4 books imported\n")
    flask(database, "export", str(path))
    empty = {"published": None, "authors": [], "genres": []}
    expected = [{**empty, **book} for book in BOOKS]
    expected[0]["authors"] = ["x", "y"]
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == expected
    assert counts(database) == [4, 3, 2, 5, 2]


def test_authors_who_are_there_are_taken(database: str, tmp_path: Path) -> None:
    """A second import adds books and no names; the API's next book has the next id."""
    path = write(tmp_path / "a.ndjson", *BOOKS)
    for _ in range(2):
        flask(database, "import", str(path))
    assert counts(database) == [8, 3, 2, 10, 4]
    made = execute(database, "insert into books (title) values ('n') returning id")
    assert made == [(9,)]


NO_BOOKS = [
    ({"title": ""}, "Expected `str` of length >= 1 - at `$.title`"),
    ({"title": "x" * 501}, "Expected `str` of length <= 500 - at `$.title`"),
    ({"title": "a\0"}, "Expected `str` matching regex"),
    ({"title": "A", "published": "2026-02-30"}, "Invalid RFC3339"),
    ({"title": "A", "authors": ["x"] * 51}, "Expected `array` of length <= 50"),
    ({"title": "A", "isbn": "1"}, "Object contains unknown field `isbn`"),
    ({"authors": []}, "Object missing required field `title`"),
    ([], "Expected `object`, got `array`"),
    (b'{"title": "\xe4"}', "'utf-8' codec can't decode"),
    (b'{"title": "\\ud800"}', ""),
    (b'{"title": "A"} {"title": "B"}', "JSON is malformed: trailing characters"),
]


def test_a_line_that_is_no_book_is_named_and_nothing_is_imported(
    database: str, tmp_path: Path
) -> None:
    """By its number, and by what the API says of it."""
    for line, reason in NO_BOOKS:
        path = write(tmp_path / "a.ndjson", *BOOKS, line, *BOOKS)
        said = fails(database, path)
        assert said.startswith(f"line 5: {reason}"), line
    assert counts(database) == [0] * 5


def test_a_line_that_a_constraint_refuses_is_named_and_nothing_is_imported(
    database: str, tmp_path: Path
) -> None:
    """One of the database's own: the first of several lines, where blank lines are counted."""
    execute(database, "create unique index one_title on books (title)")
    path = write(
        tmp_path / "a.ndjson", *({"title": f"t{n % 400}", "authors": ["x"]} for n in range(600))
    )
    path.write_text(f"\n{path.read_text()}")
    said = fails(database, path)
    assert said == (
        'line 402: duplicate key value violates unique constraint "one_title": '
        "Key (title)=(t0) already exists."
    )
    assert counts(database) == [0] * 5
    execute(database, "alter table authors add constraint no_x check (name <> 'x')")
    said = fails(database, path)
    assert said.startswith('line 2: new row for relation "authors" violates check constraint')


def test_a_file_that_ends_early_is_imported_not_at_all(database: str, tmp_path: Path) -> None:
    """In the middle of a line, and in the middle of what is compressed."""
    path = write(tmp_path / "a.ndjson", *BOOKS)
    path.write_text(path.read_text()[:-3])
    assert fails(database, path) == "line 4: Input data was truncated"
    whole = tmp_path / "b.ndjson.gz"
    flask(
        database,
        "import",
        str(write(path, *({"title": f"{os.urandom(9)!r}"} for _ in range(5_000)))),
    )
    flask(database, "export", str(whole))
    whole.write_bytes(whole.read_bytes()[:-100])
    before = counts(database)
    assert "ended before the end-of-stream marker" in fails(database, whole)
    assert counts(database) == before


def test_a_schema_that_is_not_there_is_one_clear_line(empty_database: str, tmp_path: Path) -> None:
    """With what to run."""
    path = write(tmp_path / "a.ndjson", *BOOKS)
    for command in ("import", "export"):
        done = flask(empty_database, command, str(path), status=1)
        assert done.output.startswith("Error: the schema is behind: nothing is there")
        assert done.output.endswith("run flask db upgrade\n")
    assert path.read_text().count("\n") == len(BOOKS)


def test_a_full_disk_is_one_clear_line(database: str) -> None:
    """Its reason is the operating system's."""
    flask(database, "export", "/dev/full")  # no book yet, no byte
    execute(database, "insert into books (title) select 'x' from generate_series(1, 50000)")
    done = flask(database, "export", "/dev/full", status=1)
    assert done.output == "Error: /dev/full: No space left on device\n"
