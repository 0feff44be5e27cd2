"""
Read and write files of documents: NDJSON (a line of Extended JSON for each) and BSON, plain or
compressed.

A document is its BSON bytes, so a BSON file is read and written without a change. Documents are
checked when they are read, before a server receives them.
"""

import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import bson
from bson import json_util
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError, InvalidBSON

STANDARD_STREAM = "-"
NDJSON, BSON, ARCHIVE = "ndjson", "bson", "archive"
NONE, GZIP, ZSTD = "none", "gzip", "zstd"
COMPRESSIONS = (NONE, GZIP, ZSTD)
FORMATS_BY_SUFFIX = {
    ".ndjson": NDJSON,
    ".jsonl": NDJSON,
    ".json": NDJSON,  # mongoexport's name for it
    ".bson": BSON,
    ".archive": ARCHIVE,
}
COMPRESSIONS_BY_SUFFIX = {".gz": GZIP, ".zst": ZSTD}

MIN_DOCUMENT_BYTES = 5
# The largest document that MongoDB stores.
MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
# A control character takes one byte of BSON and six of JSON; names and types need some more.
MAX_LINE_BYTES = 8 * MAX_DOCUMENT_BYTES
FILE_BUFFER_BYTES = 1024 * 1024

# A document with its number in the file, from 1; in NDJSON the number of its line.
Numbered = tuple[int, bytes]


class FileError(Exception):
    """A file, or a document in it, cannot be read or written."""


class UniqueNames(dict[str, Any]):
    """A document that refuses a repeated name, of which a dict would keep the last value."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self:
            raise InvalidBSON(f"two fields are named {name!r}")
        super().__setitem__(name, value)


_CODEC: CodecOptions[UniqueNames] = CodecOptions(
    document_class=UniqueNames,
    tz_aware=True,
    # MongoDB has dates beyond Python's range. A UUID stays binary, of whatever subtype.
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    uuid_representation=UuidRepresentation.UNSPECIFIED,
)


def json_options(*, canonical: bool) -> json_util.JSONOptions:
    """Return pymongo's options for Extended JSON, canonical or relaxed."""
    mode = json_util.JSONMode.CANONICAL if canonical else json_util.JSONMode.RELAXED
    return json_util.JSONOptions(
        json_mode=mode,
        tz_aware=True,
        datetime_conversion=DatetimeConversion.DATETIME_AUTO,
        uuid_representation=UuidRepresentation.UNSPECIFIED,
    )


_READING = json_options(canonical=False)


def format_of(path: str, given: str | None, known: tuple[str, ...] = (NDJSON, BSON)) -> str:
    """
    Return the format of a file, by its name.

    :param path: the file's path, or ``-``.
    :param given: the format if it was given explicitly, str; None to use the name.
    :param known: the possible formats, in the order for messages. Default NDJSON and BSON.
    :raises FileError: the name does not show it, or it is not possible.
    """
    # The suffix of the compression comes last: books.ndjson.gz.
    name = Path(path)
    if name.suffix in COMPRESSIONS_BY_SUFFIX:
        name = name.with_suffix("")
    found = given or FORMATS_BY_SUFFIX.get(name.suffix)
    if found not in known:
        what = "standard input or output has" if path == STANDARD_STREAM else "its name shows"
        raise FileError(f"{what} no known format; say which one: --format {' or '.join(known)}")
    return found


def compression_of(path: str, given: str | None) -> str:
    """
    Return the compression of a file, by its name.

    :param path: the file's path, or ``-``.
    :param given: the compression if it was given explicitly, str; None to use the name.
    """
    return given or COMPRESSIONS_BY_SUFFIX.get(Path(path).suffix, NONE)


@contextmanager
def reading(path: str, compression: str) -> Iterator[BinaryIO]:
    """
    Open a file for reading in a ``with`` block, which gives its uncompressed content.

    :param path: the file's path, or ``-`` for standard input.
    :param compression: one of ``COMPRESSIONS``.
    :raises FileError: it cannot be opened, or the block cannot read from it.
    """
    with _as_file_error(compression), ExitStack() as stack:
        file = sys.stdin.fileno() if path == STANDARD_STREAM else path
        raw = stack.enter_context(
            open(file, "rb", buffering=FILE_BUFFER_BYTES, closefd=path != STANDARD_STREAM)
        )
        yield _uncompressed(raw, compression)


@contextmanager
def writing(path: str, compression: str) -> Iterator[BinaryIO]:
    """
    Open a file for writing in a ``with`` block, which gives the stream to write to.

    A regular file appears under its name, or replaces one, only when it is complete.

    :param path: the file's path, or ``-`` for standard output.
    :param compression: one of ``COMPRESSIONS``.
    :raises FileError: it cannot be opened, or the block cannot write to it.
    """
    with _as_file_error(compression), ExitStack() as stack:
        if path == STANDARD_STREAM:
            # Not sys.stdout.buffer: after an error Python would write the rest again at exit.
            raw = stack.enter_context(
                open(sys.stdout.fileno(), "wb", buffering=FILE_BUFFER_BYTES, closefd=False)
            )
        elif os.path.exists(path) and not os.path.isfile(path):  # a named pipe, /dev/null
            raw = stack.enter_context(open(path, "wb", buffering=FILE_BUFFER_BYTES))
        else:
            raw = stack.enter_context(_replaced(os.path.realpath(path)))
        with _compressed(raw, compression) as stream:
            yield stream
        # Here, so that a full disk is an error of this block.
        raw.flush()


@contextmanager
def _replaced(path: str) -> Iterator[BinaryIO]:
    part = f"{path}.part"
    try:
        with open(part, "wb", buffering=FILE_BUFFER_BYTES) as file:
            yield file
            file.flush()
            # On the disk before the rename: a crash must not leave an empty file under the name.
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        # Also after Ctrl-C: no partial file stays.
        with suppress(OSError):
            os.unlink(part)
        raise


@contextmanager
def _as_file_error(compression: str) -> Iterator[None]:
    kinds: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    if compression == ZSTD:
        kinds += (_zstd().ZstdError,)
    try:
        yield
    except BrokenPipeError:
        raise  # the reading end of a pipe was closed; click ends without a message
    except kinds as error:
        raise FileError(getattr(error, "strerror", None) or str(error)) from error


def _zstd() -> Any:
    """Return the module zstd, which the standard library has from Python 3.14 on."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        try:
            from backports import zstd
        except ImportError as error:
            needed = "zstd needs the package backports.zstd: requirements-common.txt has it"
            raise FileError(needed) from error
    return zstd


def _uncompressed(raw: BinaryIO, compression: str) -> BinaryIO:
    if compression == NONE:
        return raw
    stream: Any = gzip.GzipFile(fileobj=raw) if compression == GZIP else _zstd().ZstdFile(raw)
    return io.BufferedReader(stream, FILE_BUFFER_BYTES)


@contextmanager
def _compressed(raw: BinaryIO, compression: str) -> Iterator[BinaryIO]:
    if compression == NONE:
        yield raw
    elif compression == GZIP:
        with gzip.GzipFile("", "wb", 6, raw) as stream, _buffered(stream) as buffered:
            yield buffered
    else:
        with _zstd().ZstdFile(raw, "wb") as stream, _buffered(stream) as buffered:
            yield buffered


@contextmanager
def _buffered(stream: Any) -> Iterator[BinaryIO]:
    """Collect small documents in a buffer: each write calls the compressor."""
    buffered = io.BufferedWriter(stream, FILE_BUFFER_BYTES)
    yield buffered
    buffered.flush()


def read_lines(stream: BinaryIO) -> Iterator[Numbered]:
    """
    Yield each line that is not blank, with its number.

    :raises FileError: a line is longer than that of any document.
    """
    # The limit bounds the memory: a file of another kind may have no line ends at all.
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise FileError(f"line {number}: longer than {MAX_LINE_BYTES:,} bytes")
        if not line.isspace():
            yield number, line


def read_ndjson(stream: BinaryIO) -> Iterator[Numbered]:
    """
    Yield the documents of a stream of Extended JSON, each with its line's number.

    :raises FileError: a line is no document; the message has its number.
    """
    for number, line in read_lines(stream):
        try:
            yield number, from_json(line)
        except FileError as error:
            # A missing line end means that the file was cut off: only the last line can lack it.
            end = "" if line.endswith(b"\n") else "; the file ends in this line"
            raise FileError(f"line {number}: {error}{end}") from error


def read_bson(stream: BinaryIO) -> Iterator[Numbered]:
    """
    Yield the documents of a stream of BSON, each with its number.

    :raises FileError: a document is invalid, cut off or too large; the message has its number.
    """
    number = 0
    while size := stream.read(4):
        number += 1
        document = read_document(stream, size, f"document {number}")
        # Only to check it: the bytes themselves are passed on.
        try:
            decode(document)
        except FileError as error:
            raise FileError(f"document {number}: {error}") from error
        yield number, document


def read_document(stream: BinaryIO, size: bytes, name: str) -> bytes:
    """
    Read the rest of a BSON document, and return the whole document.

    :param stream: positioned after the size.
    :param size: the document's first four bytes, or fewer at the end of a file.
    :param name: the document's name in errors, str.
    :raises FileError: it is cut off, or has an impossible size.
    """
    # Checked before the read: a wrong size could request gigabytes.
    size_bytes = int.from_bytes(size, "little", signed=True)
    if len(size) == 4 and not MIN_DOCUMENT_BYTES <= size_bytes <= MAX_DOCUMENT_BYTES:
        limits = f"{MIN_DOCUMENT_BYTES} to {MAX_DOCUMENT_BYTES:,}"
        raise FileError(f"{name}: a document has {limits} bytes, not {size_bytes:,}: is it BSON?")
    document = size + (stream.read(size_bytes - 4) if len(size) == 4 else b"")
    if len(size) < 4 or len(document) < size_bytes:
        raise FileError(f"{name}: cut off after {len(document):,} bytes; the file ends in it")
    return document


def decode(document: bytes) -> Mapping[str, Any]:
    """
    Decode a BSON document.

    :raises FileError: it is invalid, has text that is not UTF-8, or a repeated name.
    """
    try:
        return bson.decode(document, _CODEC)
    except (BSONError, RecursionError) as error:
        raise FileError(f"not valid BSON: {error}") from error


def from_json(text: bytes) -> bytes:
    """
    Return one document of Extended JSON as BSON, with a new ``_id`` if it has none.

    :raises FileError: it is no document, or MongoDB cannot store it.
    """
    try:
        value = json.loads(text.decode(), object_pairs_hook=_from_pairs)
        if not isinstance(value, dict):
            raise FileError(f"one object a line is a document, not {type(value).__name__}")
        if "_id" not in value:
            # At the front, where servers store it.
            value = {"_id": bson.ObjectId(), **value}
        document = bson.encode(value, codec_options=_CODEC)
    except json.JSONDecodeError as error:
        raise FileError(f"not valid JSON: {error.msg} at column {error.colno}") from error
    except ArithmeticError as error:
        raise FileError("it has a number that MongoDB cannot store") from error
    except (ValueError, TypeError, RecursionError, BSONError) as error:
        raise FileError(f"not valid Extended JSON: {error}") from error
    if len(document) > MAX_DOCUMENT_BYTES:
        limit = f"{MAX_DOCUMENT_BYTES:,} bytes"
        raise FileError(f"it has {len(document):,} bytes of BSON, and MongoDB stores {limit}")
    return document


def _from_pairs(pairs: list[tuple[str, Any]]) -> Any:
    # Pairs instead of an object_hook, which would not see a repeated name.
    document = UniqueNames()
    for name, value in pairs:
        document[name] = value
    return json_util.object_hook(document, _READING)


def to_json(document: bytes, options: json_util.JSONOptions) -> bytes:
    """
    Return a BSON document as a line of Extended JSON.

    :param document: BSON.
    :param options: as :func:`json_options` returns them.
    :raises FileError: JSON would lose a part of it, such as a repeated name.
    """
    text = json_util.dumps(
        decode(document), json_options=options, ensure_ascii=False, separators=(",", ":")
    )
    return text.encode() + b"\n"


def writer(format: str, *, canonical: bool = False) -> Callable[[bytes], bytes]:  # noqa: A002
    """
    Return a function that converts a BSON document to its form in a file.

    :param format: ``NDJSON`` or ``BSON``.
    :param canonical: write canonical instead of relaxed Extended JSON. Default False.
    """
    if format == BSON:
        return bytes
    options = json_options(canonical=canonical)
    return lambda document: to_json(document, options)
