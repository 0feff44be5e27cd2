"""``flask documents export`` and ``import`` on a server: what is there afterwards, what is said."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from click.testing import CliRunner, Result
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from app.commands.documents import documents, place
from app.documents import endpoint, files, transfer
from tests.helpers.forms import in_the_long_form
from tests.helpers.proxy import Proxy
from tests.helpers.stored import BOTH, DOCUMENT, LATIN_1, TWICE, A
from tests.helpers.support import BIN, CHECKOUT, environ, wait_until

COUNT = 3_210
SIGNALS = [signal.SIGINT, signal.SIGTERM]
RAW = bson.CodecOptions(document_class=RawBSONDocument)

Target = Collection[dict[str, Any]]


@pytest.fixture
def target(empty_mongo: str) -> Iterator[Target]:
    """A collection that is not there yet."""
    with MongoClient[dict[str, Any]](empty_mongo) as client:
        yield client.get_default_database()["target"]


@pytest.fixture
def source(target: Target) -> Target:
    """A collection of several batches, with a document of all types."""
    source = target.database["source"]
    source.insert_many([{"_id": n, "text": f"ä{n}"} for n in range(COUNT - 1)])
    source.with_options(RAW).insert_one(RawBSONDocument(DOCUMENT))
    return source


def address(collection: Target) -> str:
    """Return what the commands take."""
    host, port = collection.database.client.address or ("", 0)
    return f"mongodb://{host}:{port}/{collection.full_name}"


def flask(*arguments: str, status: int = 0) -> Result:
    """Run one of the commands in this process."""
    done = CliRunner().invoke(documents, arguments, catch_exceptions=False)
    assert done.exit_code == status, done.output
    return done


def fails(*arguments: str) -> str:
    """Return the one line that a command fails with, without its beginning."""
    output = flask(*arguments, status=1).output
    assert output.startswith("Error: ")
    assert output.count("\n") == 1
    return output.removeprefix("Error: ").rstrip()


def contents(collection: Target) -> list[bytes]:
    """Return the documents as they are stored."""
    return [bytes(one.raw) for one in collection.with_options(RAW).find(sort=[("_id", 1)])]


def write(path: Path, lines: int, *more: str) -> Path:
    """Write so many documents, and *more* lines behind them."""
    text = "".join(f'{{"_id": {n}}}\n' for n in range(1, lines + 1))
    path.write_text(text + "\n".join(more))
    return path


@pytest.mark.parametrize(
    ("name", "options", "of_export"),
    [
        ("a.bson.zst", [], []),
        ("a.ndjson.gz", [], ["--canonical"]),
        ("a", ["--format", "bson", "--compress", "none"], []),
    ],
    ids=["BSON, zstd", "NDJSON, gzip", "options"],
)
def test_what_is_exported_is_imported_byte_by_byte(
    source: Target,
    target: Target,
    tmp_path: Path,
    name: str,
    options: list[str],
    of_export: list[str],
) -> None:
    """In each format and compression, whatever the types."""
    path = str(tmp_path / name)
    exported = flask("export", address(source), path, *options, *of_export)
    assert exported.stderr == f"{path}: 3,210 documents exported\n"
    imported = flask("import", path, address(target), *options)
    assert imported.stderr == f"{path}: 3,210 documents imported\n"
    assert contents(target) == contents(source)


def test_a_collection_that_is_not_there_is_no_empty_file(target: Target, tmp_path: Path) -> None:
    """A misspelled name is an error."""
    said = fails("export", address(target), str(tmp_path / "a.bson"))
    assert said.endswith(f"/{target.full_name}: there is no such collection")
    assert list(tmp_path.iterdir()) == []


def test_a_format_that_is_unknown_is_one_clear_line(target: Target, tmp_path: Path) -> None:
    """Before a server is asked."""
    said = fails("import", str(write(tmp_path / "a.txt", 1)), address(target))
    assert said.endswith("a.txt: its name shows no known format; say which one: --format ndjson "
                         "or bson or archive")  # fmt: skip


def test_a_line_that_is_no_document_ends_the_import(target: Target, tmp_path: Path) -> None:
    """The batches before it are stored, and that is said; the file names the line."""
    path = write(tmp_path / "a.ndjson", 2_500, "{_id: 2501}", '{"_id": 2502}')
    said = fails("import", str(path), address(target))
    assert said == (
        f"{path}: line 2501: not valid JSON: Expecting property name enclosed in double quotes "
        "at column 2; 2,000 documents imported"
    )
    assert target.count_documents({}) == 2_000


def test_a_file_that_ends_early_is_not_taken_for_a_whole_one(
    target: Target, tmp_path: Path
) -> None:
    """In the middle of a document, and in the middle of what is compressed."""
    path = tmp_path / "a.bson"
    path.write_bytes(b"".join(bson.encode({"_id": n}) for n in range(1_500))[:-3])
    said = fails("import", str(path), address(target))
    assert said == (
        f"{path}: document 1500: cut off after 11 bytes; the file ends in it; "
        "1,000 documents imported"
    )
    with files.writing(f"{path}.gz", "gzip") as stream:
        stream.write(os.urandom(50_000))
    whole = Path(f"{path}.gz").read_bytes()
    Path(f"{path}.gz").write_bytes(whole[:-100])
    assert "import" not in fails("import", f"{path}.gz", address(target)).partition("; ")[0]


def test_a_duplicate_is_named_by_its_number(target: Target, tmp_path: Path) -> None:
    """Those around it are stored, and that is said."""
    target.insert_one({"_id": 7, "old": True})
    path = write(tmp_path / "a.ndjson", 900, '{"_id": 8}')
    said = fails("import", str(path), address(target))
    assert said.startswith(f"{path}: line 7: E11000 duplicate key error")
    assert said.endswith(", and 1 more of this batch; 899 documents imported")
    assert target.count_documents({}) == 900


def test_an_import_is_completed_by_skipping_what_is_there(target: Target, tmp_path: Path) -> None:
    """What is stored stays as it is."""
    target.insert_many([{"_id": n, "old": True} for n in range(1, 1_501)])
    path = write(tmp_path / "a.ndjson", 2_000)
    done = flask("import", str(path), address(target), "--on-duplicate", "skip")
    assert done.stderr == f"{path}: 500 documents imported, 1,500 were there already\n"
    assert target.count_documents({}) == 2_000
    assert target.count_documents({"old": True}) == 1_500


def test_only_an_id_is_skipped(target: Target, tmp_path: Path) -> None:
    """A document that another unique index refuses would be lost without a word."""
    target.create_index("sku", unique=True)
    path = write(tmp_path / "a.ndjson", 0, '{"_id": 1, "sku": "a"}', '{"_id": 2, "sku": "a"}')
    said = fails("import", str(path), address(target), "--on-duplicate", "skip")
    assert said.startswith(f"{path}: line 2: E11000 duplicate key error")
    assert said.endswith("; 1 document imported")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (TWICE, "two fields are named 'a'"),
        (LATIN_1, "'utf-8' codec can't decode byte 0xe4"),
    ],
    ids=["two fields of one name", "no UTF-8"],
)
def test_bson_that_is_not_valid_reaches_no_server(
    target: Target, tmp_path: Path, content: bytes, reason: str
) -> None:
    """Servers differ in what they do with it."""
    path = tmp_path / "a.bson"
    path.write_bytes(DOCUMENT + content)
    said = fails("import", str(path), address(target))
    assert said.startswith(f"{path}: document 2: not valid BSON: {reason}")
    assert said.endswith("; 0 documents imported")
    assert target.count_documents({}) == 0


def test_a_document_of_16_mb_goes_there_and_back(target: Target, tmp_path: Path) -> None:
    """MongoDB's largest one."""
    empty = len(bson.encode({"_id": 1, "a": b""}))
    path, again = tmp_path / "a.bson", tmp_path / "b.bson"
    path.write_bytes(bson.encode({"_id": 1, "a": bytes(files.MAX_DOCUMENT_BYTES - empty)}))
    flask("import", str(path), address(target))
    flask("export", address(target), str(again))
    assert path.stat().st_size == files.MAX_DOCUMENT_BYTES
    assert again.read_bytes() == path.read_bytes()


def test_a_dump_s_file_and_its_archive_are_imported(target: Target, tmp_path: Path) -> None:
    """The .bson of a folder; the collection that is named of an archive."""
    folder = tmp_path / "dump" / "shop"
    folder.mkdir(parents=True)
    (folder / "products.bson").write_bytes(b"".join(map(bson.encode, A)))
    (tmp_path / "shop.archive").write_bytes(BOTH)
    flask("import", str(folder / "products.bson"), address(target))
    assert list(target.find(sort=[("_id", 1)])) == A
    archive = [str(tmp_path / "shop.archive"), address(target)]
    assert "it has shop.a, shop.b; name one" in fails("import", *archive)
    done = flask("import", *archive, "--namespace", "shop.b")
    assert done.stderr == f"{archive[0]}: 1 document imported\n"
    assert target.count_documents({}) == len(A) + 1


def test_reading_is_a_few_batches_ahead_at_most(target: Target) -> None:
    """The file's size does not matter."""
    done = transfer.Imported()
    ahead = []

    def numbered() -> Iterator[files.Numbered]:
        for number in range(1, 10_001):
            ahead.append(number - done.inserted)
            yield number, bson.encode({"_id": number})

    transfer.import_documents(
        target, numbered(), noun="line", at_once=2, skip_duplicates=False, done=done
    )
    assert target.count_documents({}) == done.inserted == 10_000
    assert max(ahead) <= 4 * transfer.BATCH


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_an_import_that_is_stopped_is_completed(
    target: Target, tmp_path: Path, number: signal.Signals
) -> None:
    """One line says what was imported; the same file again adds what is missing."""
    path = write(tmp_path / "a.ndjson", 2_500)
    # A shell starts what runs in the background, as CI may be, with SIGINT ignored.
    command = ["env", "--default-signal=INT", BIN / "flask", "documents", "import", "-"]
    process = subprocess.Popen(
        [*command, address(target), "--format", "ndjson"],
        cwd=CHECKOUT,
        env=environ({}),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(path.read_bytes())
        process.stdin.flush()  # and not closed: it waits for more
        wait_until(lambda: target.count_documents({}) == 2_000, "two batches to be stored")
        process.send_signal(number)
        process.wait(60)  # communicate() would close its input, and let it end by itself
        _, said = process.communicate()
    finally:
        process.kill()
    assert said == b"Error: -: stopped; 2,000 documents imported\n"
    assert process.returncode == 128 + number
    done = flask("import", str(path), address(target), "--on-duplicate", "skip")
    assert done.stderr == f"{path}: 500 documents imported, 2,000 were there already\n"
    assert sorted(target.distinct("_id")) == list(range(1, 2_501))  # stored in any order


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_an_export_that_is_stopped_leaves_no_file(
    source: Target, tmp_path: Path, mongo_proxy: Proxy, number: signal.Signals
) -> None:
    """The part that was written is deleted, and one line says that it was stopped."""
    path, part = tmp_path / "a.bson", tmp_path / "a.bson.part"
    mongo_proxy.hold(b"getMore")
    uri = f"mongodb://127.0.0.1:{mongo_proxy.port}/{source.full_name}?directConnection=true"
    process = subprocess.Popen(
        [BIN / "flask", "documents", "export", uri, path],
        cwd=CHECKOUT,
        env=environ({}),
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(part.exists, "the file to be begun")
        process.send_signal(number)
        _, said = process.communicate(timeout=50)
    finally:
        process.kill()
    assert said == f"Error: {path}: stopped\n".encode()
    assert process.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_enough_ends_an_export_quietly(source: Target) -> None:
    """As ``| head`` does."""
    command = f"flask documents export {address(source)} - --format ndjson | head -n 1"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=CHECKOUT,
        env=environ({"PATH": f"{BIN}:{os.environ['PATH']}"}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ('{"_id":0,"text":"ä0"}\n', "")


def test_a_server_that_is_lost_leaves_no_doubt_but_for_what_was_sent(
    target: Target, mongo_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was acknowledged is there, and what was not may be; nothing else is."""
    # A busy machine connects in that time as well.
    monkeypatch.setattr(endpoint, "SELECTION_MS", 2_000)
    done = transfer.Imported()
    uri = f"mongodb://127.0.0.1:{mongo_proxy.port}/{target.full_name}?directConnection=true"

    def numbered() -> Iterator[files.Numbered]:
        for number in range(1, 10_001):
            if number == 5_500:
                wait_until(lambda: target.count_documents({}) >= 1_000, "the first batch")
                mongo_proxy.refuse()
            yield number, bson.encode({"_id": number})

    with endpoint.opened(place(uri)) as there, pytest.raises(PyMongoError):
        transfer.import_documents(
            there.collection,
            numbered(),
            noun="line",
            at_once=2,
            skip_duplicates=False,
            done=done,
        )
    assert "may be there or not" in str(done)
    assert 1_000 <= done.unknown <= 3_000
    assert done.inserted <= target.count_documents({}) <= done.inserted + done.unknown


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
def test_a_full_disk_leaves_no_file(source: Target, tmp_path: Path) -> None:
    """Nothing that is incomplete has the file's name."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]).returncode:
        pytest.skip("no mount here")
    try:
        said = fails("export", address(source), f"{disk}/a.bson")
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert said == f"{disk}/a.bson: No space left on device"


@in_the_long_form
def test_memory_does_not_grow_with_the_collection(target: Target, tmp_path: Path) -> None:
    """300,000 products, 130 MB of BSON, there and back."""
    path, again = str(tmp_path / "a.ndjson.gz"), str(tmp_path / "b.bson.zst")
    with files.writing(path, "gzip") as stream:
        for number in range(300_000):
            stream.write(b'{"_id":%d,"text":"%b"}\n' % (number, b"x" * 400))
    for arguments in (
        ["import", path, address(target)],
        ["export", address(target), again],
        ["import", again, address(target), "--on-duplicate", "skip"],
    ):
        assert peak_mb("documents", *arguments) < 150
    assert target.count_documents({}) == 300_000


def peak_mb(*arguments: str) -> float:
    """Run ``flask`` in a process of its own and return the most memory that it had."""
    code = (
        "import atexit, resource, sys; from flask.cli import main; "
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        "atexit.register(lambda: print(peak())); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=CHECKOUT,
        env=environ({}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout) / 1024
