"""
Read archives of ``mongodump --archive`` (common/archive/spec.md and parser.go of mongo-tools).

An archive is a magic number, a prelude (a header, and a document of metadata for each collection),
and blocks of the collections in any order. A block is a header that names a collection, documents
of it, and a terminator. A header with EOF ends a collection. Indexes and options in the metadata
are not read.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

from app.documents.files import FileError, Numbered, decode, read_document

MAGIC = 0x8199E26D.to_bytes(4, "little")
TERMINATOR = b"\xff\xff\xff\xff"


def read_archive(stream: BinaryIO, namespace: str | None) -> Iterator[Numbered]:
    """
    Yield the documents of one collection, each with its number in that collection.

    :param stream: the uncompressed archive.
    :param namespace: DATABASE.COLLECTION, str; None if the archive has only one.
    :raises FileError: it is no archive, is cut off, or has no such collection.
    """
    if stream.read(4) != MAGIC:
        raise FileError("it does not begin as an archive of mongodump does")
    chosen = _choose(_read_namespaces(stream), namespace)
    number, is_complete = 0, False
    while size := stream.read(4):
        header = _read_header(stream, size)
        name = f"{header.get('db')}.{header.get('collection')}"
        # The CRC in this header is not checked: in Python that takes a loop over all bytes, and a
        # compressed archive has a checksum of its own.
        is_complete |= name == chosen and bool(header.get("EOF"))
        for document in _read_block(stream, f"{name}, document"):
            # Blocks of other collections are read, because their length is not known before.
            if name != chosen:
                continue
            number += 1
            try:
                decode(document)
            except FileError as error:
                raise FileError(f"document {number}: {error}") from error
            yield number, document
    if not is_complete:
        raise FileError(f"cut off after document {number} of {chosen}")


def _read_namespaces(stream: BinaryIO) -> list[str]:
    """Read the prelude; return the names of its collections."""
    _read_header(stream, stream.read(4))
    metadata = [decode(document) for document in _read_block(stream, "the prelude, document")]
    return [f"{one.get('db')}.{one.get('collection')}" for one in metadata]


def _choose(found: list[str], namespace: str | None) -> str:
    if namespace is None and len(found) == 1:
        return found[0]
    if namespace not in found:
        missing = "it has" if namespace is None else f"it has no {namespace}, but"
        names = ", ".join(found) or "no collections"
        raise FileError(f"{missing} {names}; name one: --namespace DATABASE.COLLECTION")
    return namespace


def _read_header(stream: BinaryIO, size: bytes) -> Any:
    return decode(read_document(stream, size, "a header of the archive"))


def _read_block(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the documents up to the next terminator."""
    number = 1
    while (size := stream.read(4)) != TERMINATOR:
        yield read_document(stream, size, f"{name} {number} of a block")
        number += 1
