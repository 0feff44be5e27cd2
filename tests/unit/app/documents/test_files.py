"""Files of documents, read and written without a server."""

import gzip
import io
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import bson
import pytest

from app.documents import files
from app.documents.files import FileError
from tests.helpers.stored import DOCUMENT, LATE, LATIN_1, TWICE, TWICE_WITHIN, document


def read_ndjson(text: bytes) -> list[files.Numbered]:
    return list(files.read_ndjson(io.BytesIO(text)))


def read_bson(content: bytes) -> list[files.Numbered]:
    return list(files.read_bson(io.BytesIO(content)))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.ndjson", ("ndjson", "none")),
        ("a.b.jsonl.gz", ("ndjson", "gzip")),
        ("dump/shop/products.bson", ("bson", "none")),
        ("products.bson.zst", ("bson", "zstd")),
        ("products.json", ("ndjson", "none")),
    ],
)
def test_a_name_says_format_and_compression(path: str, expected: tuple[str, str]) -> None:
    """As people name such files."""
    assert (files.format_of(path, None), files.compression_of(path, None)) == expected


def test_what_is_given_wins_over_the_name() -> None:
    """For pipes, and for names that say nothing, or something else."""
    assert files.format_of("-", "bson") == "bson"
    assert files.compression_of("a.gz", "zstd") == "zstd"
    assert files.compression_of("-", None) == "none"


@pytest.mark.parametrize("path", ["-", "products", "products.txt", "a.gz", "a.archive"])
def test_a_name_that_says_nothing_is_refused(path: str) -> None:
    """With the option that says it."""
    with pytest.raises(FileError, match="--format ndjson or bson"):
        files.format_of(path, None)


@pytest.mark.parametrize("content", [DOCUMENT, LATE], ids=["all types", "late date"])
def test_canonical_json_keeps_every_byte(content: bytes) -> None:
    """There and back, for each type that MongoDB has."""
    line = files.to_json(content, files.json_options(canonical=True))
    assert line.count(b"\n") == 1
    assert read_ndjson(line) == [(1, content)]


def test_relaxed_json_keeps_all_but_the_width_of_numbers() -> None:
    """A number that is small comes back as an int32."""
    options = files.json_options(canonical=False)
    assert b'"long":7,' in files.to_json(DOCUMENT, options)
    for content in (DOCUMENT, LATE):
        ((_, back),) = read_ndjson(files.to_json(content, options))
        assert files.decode(back) == files.decode(content)


def test_bson_is_read_and_written_unchanged() -> None:
    """Several documents, one after the other."""
    written = files.writer("bson")
    assert written(DOCUMENT) == DOCUMENT
    assert read_bson(DOCUMENT + document(b"") + DOCUMENT) == [
        (1, DOCUMENT),
        (2, document(b"")),
        (3, DOCUMENT),
    ]


def test_a_document_without_an_id_gets_one_in_ndjson() -> None:
    """It stands first, as MongoDB has it; and blank lines count as lines."""
    ((number, made),) = read_ndjson(b'\n \r\n{"a": 1}')
    assert number == 3
    assert list(bson.decode(made)) == ["_id", "a"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": 1', "not valid JSON: Expecting ',' delimiter at column 8; the file ends in"),
        (b"nonsense\n", "not valid JSON: Expecting value at column 1$"),
        (b"[1]\n", "one object a line is a document, not list$"),
        (b'{"$oid": "0123456789abcdef01234567"}\n', "a document, not ObjectId$"),
        (b'{"a": {"$oid": "zz"}}\n', "not valid Extended JSON: 'zz' is not a valid ObjectId"),
        (b'{"a": {"$numberDecimal": "x"}}\n', "a number that MongoDB cannot store$"),
        (b'{"a": 9223372036854775808}\n', "a number that MongoDB cannot store$"),
        (b'{"a": "\xe4"}\n', "not valid Extended JSON: 'utf-8' codec can't decode byte 0xe4"),
        (b'{"a": "\\ud800"}\n', "surrogates not allowed"),
        (b'{"a": {"b": 1, "b": 1}}\n', "two fields are named 'b'"),
        (b'{"a\\u0000": 1}\n', "must not contain the NULL"),
        (b"[" * 100_000, "not valid Extended JSON: (maximum recursion|Stack overflow)"),
    ],
    ids=[
        "cut off", "no JSON", "a list", "no document", "ObjectId", "decimal", "number", "Latin-1",
        "surrogate", "two names", "NUL", "deep",
    ],
)  # fmt: skip
def test_a_line_that_is_no_document_is_named(line: bytes, reason: str) -> None:
    """By its number and with the reason; those before it were read."""
    reading = files.read_ndjson(io.BytesIO(b'{"_id": 1}\n\n' + line))
    assert next(reading)[0] == 1
    with pytest.raises(FileError, match=f"^line 3: .*{reason}"):
        next(reading)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (DOCUMENT[:-1], f"cut off after {len(DOCUMENT) - 1} bytes; the file ends in it"),
        (DOCUMENT[:3], "cut off after 3 bytes"),
        (b"\4\0\0\0", "has 5 to 16,777,216 bytes, not 4: is it BSON"),
        (b"{}\n{}\n", "bytes, not 2,064,285,051: is it BSON"),
        (struct.pack("<i", 2**24 + 1), "not 16,777,217"),
        (b"\5\0\0\0\1", "not valid BSON: "),
        (TWICE, "not valid BSON: two fields are named 'a'"),
        (TWICE_WITHIN, "not valid BSON: two fields are named 'a'"),
        (LATIN_1, "not valid BSON: 'utf-8' codec can't decode byte 0xe4"),
    ],
    ids=["cut off", "cut size", "small", "JSON", "large", "no end", "twice", "within", "Latin-1"],
)
def test_a_document_that_is_not_valid_bson_is_named(content: bytes, reason: str) -> None:
    """By its number and with the reason; those before it were read."""
    reading = files.read_bson(io.BytesIO(DOCUMENT + content))
    assert next(reading) == (1, DOCUMENT)
    with pytest.raises(FileError, match=f"^document 2: .*{reason}"):
        next(reading)


def test_the_largest_document_is_read_and_a_larger_one_is_refused() -> None:
    """16 MiB of BSON, from BSON and from JSON."""
    room = files.MAX_DOCUMENT_BYTES - len(bson.encode({"_id": 1, "a": ""}))
    for more in (0, 1):
        text = "x" * (room + more)
        line = b'{"_id":1,"a":"%b"}\n' % text.encode()
        content = bson.encode({"_id": 1, "a": text})
        if more == 0:
            assert read_ndjson(line) == read_bson(content) == [(1, content)]
            continue
        with pytest.raises(FileError, match=r"^line 1: it has 16,777,217 bytes of BSON"):
            read_ndjson(line)
        with pytest.raises(FileError, match=r"^document 1: .* not 16,777,217"):
            read_bson(content)


def test_a_line_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another kind may have no line end at all."""
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1_000)
    stream = io.BytesIO(b"{}\n" + b"x" * 100_000)
    with pytest.raises(FileError, match=r"^line 2: longer than 1,000 bytes"):
        list(files.read_lines(stream))
    assert stream.tell() < 2_000


def test_json_that_would_lose_a_field_is_not_written() -> None:
    """A server may store two fields of one name; BSON keeps both."""
    with pytest.raises(FileError, match="two fields are named 'a'"):
        files.writer("ndjson")(TWICE)
    assert files.writer("bson")(TWICE) == TWICE


@pytest.mark.parametrize("compression", files.COMPRESSIONS)
class TestCompression:
    """What each way to compress has in common."""

    CONTENT = os.urandom(100) * 40_000

    @pytest.fixture
    def path(self, compression: str, tmp_path: Path) -> str:
        """The path of a complete file."""
        path = str(tmp_path / "a.bson")
        with files.writing(path, compression) as stream:
            for begin in range(0, len(self.CONTENT), 1_000):
                stream.write(self.CONTENT[begin : begin + 1_000])
        return path

    def test_what_is_written_is_read(self, path: str, compression: str) -> None:
        """And it is smaller."""
        with files.reading(path, compression) as stream:
            assert stream.read() == self.CONTENT
        is_smaller = os.path.getsize(path) < len(self.CONTENT)
        assert is_smaller == (compression != "none")

    def test_a_failure_leaves_the_file_as_it_was(self, path: str, compression: str) -> None:
        """Nothing incomplete has the file's name, and nothing else is left."""
        with pytest.raises(ZeroDivisionError), files.writing(path, compression) as stream:
            stream.write(b"x" * 5_000_000)
            raise ZeroDivisionError
        with files.reading(path, compression) as stream:
            assert stream.read() == self.CONTENT
        assert os.listdir(os.path.dirname(path)) == ["a.bson"]

    def test_a_full_disk_is_one_clear_line(self, compression: str) -> None:
        """Whether it is noticed at a write or at the end."""
        for size in (10, 5_000_000):
            with pytest.raises(FileError, match=r"^No space left on device$"):
                with files.writing("/dev/full", compression) as stream:
                    stream.write(os.urandom(size))


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [("cut off", "ended before the end-of-stream"), ("other", "[Nn]ot a gzipped|Unknown frame")],
)
def test_a_damaged_file_is_one_clear_line(
    compression: str, content: str, reason: str, tmp_path: Path
) -> None:
    """Cut off in the middle, or not compressed at all."""
    path = tmp_path / "a"
    with files.writing(str(path), compression) as stream:
        stream.write(os.urandom(100_000))
    path.write_bytes(path.read_bytes()[:-50_000] if content == "cut off" else b"other" * 100)
    with pytest.raises(FileError, match=reason), files.reading(str(path), compression) as stream:
        stream.read()


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    """The file that it leads to is written."""
    (tmp_path / "link").symlink_to("file")
    with files.writing(str(tmp_path / "link"), "none") as stream:
        stream.write(b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"x"


def test_a_missing_file_or_folder_is_one_clear_line(tmp_path: Path) -> None:
    """With the operating system's reason."""
    path = str(tmp_path / "missing" / "a")
    for opening in (files.reading, files.writing):
        with pytest.raises(FileError, match=r"^No such file or directory$"), opening(path, "none"):
            pass


def test_a_pipe_is_written_as_it_is(tmp_path: Path) -> None:
    """A named pipe is not replaced by a file."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read, _ = ends = os.open(path, os.O_RDONLY | os.O_NONBLOCK), os.open(path, os.O_WRONLY)
    try:
        with files.writing(str(path), "gzip") as stream:
            stream.write(b"x")
        assert gzip.decompress(os.read(read, 1_000)) == b"x"
    finally:
        for end in ends:
            os.close(end)


def test_documents_are_read_one_by_one() -> None:
    """Memory does not depend on the number of documents."""

    class Endless(io.RawIOBase):
        given = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
            size = len(buffer) // len(DOCUMENT) * len(DOCUMENT)
            buffer[:size] = DOCUMENT * (size // len(DOCUMENT))
            self.given += size
            return size

    source = Endless()
    reading: Iterator[files.Numbered] = files.read_bson(io.BufferedReader(source, 1 << 20))  # type: ignore[arg-type]
    for expected in range(1, 1_001):
        assert next(reading)[0] == expected
    assert source.given <= 2 << 20
