"""``flask documents export`` and ``import``: copy a collection to a file, and a file to one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from signal import SIGINT
from typing import Any

import click

from app.commands.documents import batches_option, documents, place
from app.documents import files, transfer
from app.documents.endpoint import CollectionEndpoint, opened
from app.documents.mongodump import read_archive
from app.documents.progress import plural
from app.documents.reading import Reader
from app.documents.stop import Stop, stoppable
from greenline.errors import GreenlineError

FAIL, SKIP = "fail", "skip"
IMPORTED = (files.NDJSON, files.BSON, files.ARCHIVE)
EXPORTED = (files.NDJSON, files.BSON)

compress = click.option(
    "--compress",
    type=click.Choice(files.COMPRESSIONS),
    help="How the file is compressed; else its name says: .gz, .zst.",
)


def format_option(formats: tuple[str, ...]) -> Callable[[Any], Any]:
    """Return the option ``--format`` with *formats* as its choices."""
    return click.option(
        "--format",
        "format_",
        type=click.Choice(formats),
        help="What the file is; else its name says: .ndjson, .jsonl, .json, .bson.",
    )


@documents.command("export")
@click.argument("source", metavar="COLLECTION")
@click.argument("path", metavar="FILE")
@format_option(EXPORTED)
@compress
@click.option("--canonical", is_flag=True, help="Canonical Extended JSON: all types are kept.")
def export(
    source: str, path: str, format_: str | None, compress: str | None, canonical: bool
) -> None:
    """
    Write all documents of COLLECTION to FILE, or to standard output for "-".

    COLLECTION is one of the service's own, DATABASE.COLLECTION on its server, or
    mongodb://HOST/DATABASE.COLLECTION. NDJSON is a line of Extended JSON a document.
    """
    # The format is checked before the connection, and the collection before the file is created.
    with _plainly(path):
        to_file = files.writer(files.format_of(path, format_, EXPORTED), canonical=canonical)
        with _opened(source) as endpoint:
            endpoint.require()
            with files.writing(path, files.compression_of(path, compress)) as stream:
                count = transfer.export_documents(Reader(endpoint), stream.write, to_file)
    click.echo(f"{path}: {count:,} {plural(count)} exported", err=True)


@documents.command("import")
@click.argument("path", metavar="FILE")
@click.argument("target", metavar="COLLECTION")
@format_option(IMPORTED)
@compress
@click.option("--namespace", help="DATABASE.COLLECTION to take from an archive of mongodump.")
@click.option(
    "--on-duplicate",
    type=click.Choice((FAIL, SKIP)),
    default=FAIL,
    show_default=True,
    help="What to do with a document whose _id is there: skip leaves the stored one as it is.",
)
@batches_option
def import_(
    path: str,
    target: str,
    format_: str | None,
    compress: str | None,
    namespace: str | None,
    on_duplicate: str,
    batches_at_once: int,
) -> None:
    """
    Insert the documents of FILE, or of standard input for "-", into COLLECTION.

    FILE is what export or mongoexport wrote, a .bson file of mongodump, or its archive. An import
    that ended early is completed with --on-duplicate skip.
    """
    # Filled by the import, so that an error can report what was imported before it.
    done = transfer.Imported()
    with _plainly(path):
        format_ = files.format_of(path, format_, IMPORTED)
    compression = files.compression_of(path, compress)
    with (
        _plainly(path, done),
        files.reading(path, compression) as stream,
        _opened(target, batches_at_once) as endpoint,
    ):
        transfer.import_documents(
            endpoint.collection,
            _readers(namespace)[format_](stream),
            noun="line" if format_ == files.NDJSON else "document",
            at_once=batches_at_once,
            skip_duplicates=on_duplicate == SKIP,
            done=done,
        )
    click.echo(f"{path}: {done}", err=True)


def _readers(namespace: str | None) -> dict[str, Callable[[Any], Iterator[files.Numbered]]]:
    return {
        files.NDJSON: files.read_ndjson,
        files.BSON: files.read_bson,
        files.ARCHIVE: partial(read_archive, namespace=namespace),
    }


@contextmanager
def _opened(address: str, batches_at_once: int = 1) -> Iterator[CollectionEndpoint]:
    with opened(place(address), batches_at_once) as endpoint, endpoint.errors():
        yield endpoint


@contextmanager
def _plainly(path: str, done: transfer.Imported | None = None) -> Iterator[None]:
    """Turn errors and signals of a ``with`` block into one line, with the progress of an import."""
    so_far = "" if done is None else "; {}"
    # Defined here as well: a KeyboardInterrupt may come before the handler is installed.
    stop = Stop()
    try:
        with stoppable(raises=True) as stop:
            yield
    except (files.FileError, transfer.ImportRefused) as error:
        raise click.ClickException(f"{path}: {error}{so_far.format(done)}") from error
    except GreenlineError as error:
        raise click.ClickException(f"{error}{so_far.format(done)}") from error
    except KeyboardInterrupt as error:
        click.echo(f"Error: {path}: stopped{so_far.format(done)}", err=True)
        # The exit status of a process that a signal has ended.
        raise click.exceptions.Exit(128 + (stop.signal or SIGINT)) from error
