"""``flask books``: export and import all books with their authors and genres."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import click
from psycopg2.extensions import connection as Connection

from app.commands.document_files import compress
from app.commands.servers import plain_errors, postgres
from app.documents import files
from app.store import book_copy, schema
from config import load


@click.group()
def books() -> None:
    """
    Export and import books with their authors and genres.

    A file has a book a line (NDJSON), as a client sends it: title, published, authors and genres.
    """


@books.command("export")
@click.argument("path", metavar="FILE")
@compress
def export(path: str, compress: str | None) -> None:
    """Write all books to FILE, or to standard output for "-"."""
    compression = files.compression_of(path, compress)
    with _plainly(path), _opened() as conn, files.writing(path, compression) as stream:
        count = book_copy.export_books(conn, stream)
    click.echo(f"{path}: {count:,} books exported", err=True)


@books.command("import")
@click.argument("path", metavar="FILE")
@compress
def import_(path: str, compress: str | None) -> None:
    """
    Add the books of FILE, or of standard input for "-": all of them, or none.

    Each gets a new id; authors and genres that are not there are made.
    """
    compression = files.compression_of(path, compress)
    # The file first: a wrong path needs no connection.
    with _plainly(path), files.reading(path, compression) as stream, _opened() as conn:
        count = book_copy.import_books(conn, files.read_lines(stream))
    click.echo(f"{path}: {count:,} books imported", err=True)


@contextmanager
def _opened() -> Iterator[Connection]:
    with plain_errors(), closing(postgres(load())) as conn:
        schema.require_current(conn)
        # The check began a transaction; the command begins its own.
        conn.rollback()
        yield conn


@contextmanager
def _plainly(path: str) -> Iterator[None]:
    try:
        yield
    except (files.FileError, book_copy.BookRefused) as error:
        raise click.ClickException(f"{path}: {error}") from error
