"""Much data is compressed and decompressed in native threads, little in the greenlet."""

import bz2
import copy
import gzip
import importlib
import io
import lzma
import pickle
import random
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.monkey import get_original

from greenline.offload import compression

get_ident = get_original("_thread", "get_ident")
LITTLE = b"little " * 10
MUCH = random.Random(1).randbytes(compression.MIN_BYTES // 2) * 4
MODULES: list[Any] = [zlib, bz2, lzma]
NAMES = {
    "zlib": ("compress", "decompress", "compressobj", "decompressobj"),
    "bz2": ("BZ2Compressor", "BZ2Decompressor"),
    "lzma": ("LZMACompressor", "LZMADecompressor"),
}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that run in threads."""
    calls: list[str] = []
    run = compression._turns.run

    def noted(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def call() -> Any:
            assert get_ident() != here
            calls.append(function.__name__)
            return function(*args, **kwargs)

        return run(call)

    here = get_ident()
    monkeypatch.setattr(compression._turns, "run", noted)
    return calls


def compressor(module: Any) -> Any:
    """Return a new compressor of a module."""
    return getattr(module, NAMES[module.__name__][-2])()


def decompressor(module: Any) -> Any:
    """Return a new decompressor of a module."""
    return getattr(module, NAMES[module.__name__][-1])()


@pytest.mark.parametrize("module", MODULES)
def test_much_data_is_left_to_a_thread(module: Any, threads: list[str]) -> None:
    packed = module.compress(MUCH)
    assert packed != MUCH
    assert "compress" in threads
    threads.clear()
    assert module.decompress(packed) == MUCH
    assert threads == ["decompress"]


@pytest.mark.parametrize("module", MODULES)
def test_little_data_is_not(module: Any, threads: list[str]) -> None:
    assert module.decompress(module.compress(LITTLE)) == LITTLE
    assert threads == []


@pytest.mark.parametrize("module", MODULES)
def test_a_small_part_costs_one_call(module: Any) -> None:
    """A response of JSON may have 24,000 of them: six calls for each took as long as the JSON."""
    calls: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    packing, packed = compressor(module), module.compress(LITTLE)
    unpacking = decompressor(module)
    sys.setprofile(note)
    try:
        packing.compress(LITTLE)
        unpacking.decompress(packed)
    finally:
        sys.setprofile(None)
    assert calls == ["compress", "decompress"]
    # Python looks each attribute of an object up in a slower way where its class has this.
    assert not hasattr(type(packing), "__getattr__")


@pytest.mark.parametrize("module", MODULES)
def test_objects_leave_it_to_a_thread_as_well(module: Any, threads: list[str]) -> None:
    """The rest too: it may be most of the work."""
    packing, unpacking = compressor(module), decompressor(module)
    packed = packing.compress(LITTLE)
    assert threads == []
    packed += packing.compress(MUCH) + packing.flush()
    assert threads == ["compress", "flush"]
    assert unpacking.decompress(packed + b"rest") == LITTLE + MUCH
    assert threads[2:] == ["decompress"]
    assert (unpacking.eof, unpacking.unused_data) == (True, b"rest")


@pytest.mark.parametrize("module", MODULES)
def test_others_go_on(module: Any) -> None:
    looks = 0
    packing = gevent.spawn(module.compress, MUCH * 4)
    while not packing.ready():
        gevent.sleep(0.001)
        looks += 1
    assert module.decompress(packing.get()) == MUCH * 4
    assert looks > 5


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("wrong", ["text", 5, "text" * compression.MIN_BYTES])
def test_the_errors_are_the_modules_own(module: Any, wrong: Any) -> None:
    for make, name in ((compressor, "compress"), (decompressor, "decompress")):
        obj = make(module)
        for function in (getattr(module, name), getattr(obj, name)):
            with pytest.raises(TypeError, match="bytes-like"):
                function(wrong)
    with pytest.raises((zlib.error, OSError, lzma.LZMAError)):
        module.decompress(MUCH)


def test_parameters_are_passed_on() -> None:
    packed = zlib.compress(MUCH, 9, wbits=31)
    assert gzip.decompress(packed) == zlib.decompress(packed, wbits=31, bufsize=10) == MUCH
    packing = zlib.compressobj(level=1, wbits=-15, zdict=LITTLE)
    packed = packing.compress(LITTLE) + packing.flush(zlib.Z_SYNC_FLUSH) + packing.flush()
    unpacking = zlib.decompressobj(-15, zdict=LITTLE)
    assert unpacking.decompress(packed, max_length=5) == LITTLE[:5]
    assert unpacking.unconsumed_tail
    assert unpacking.flush() == LITTLE[5:]
    packed = lzma.compress(MUCH, format=lzma.FORMAT_ALONE)
    unpacking = lzma.LZMADecompressor(format=lzma.FORMAT_ALONE)
    assert unpacking.decompress(packed, max_length=5) == MUCH[:5]
    assert not unpacking.needs_input


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda each: each.copy()])
def test_a_copy_goes_on_by_itself(copied: Callable[[Any], Any]) -> None:
    packing = zlib.compressobj()
    begin = packing.compress(LITTLE)
    other = copied(packing)
    packed = begin + packing.compress(b"one") + packing.flush()
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(packed[:10])
    other_unpacking = copied(unpacking)
    assert found + unpacking.decompress(packed[10:]) == LITTLE + b"one"
    assert found + other_unpacking.decompress(packed[10:]) == LITTLE + b"one"
    assert zlib.decompress(begin + other.compress(b"two") + other.flush()) == LITTLE + b"two"


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("make", [compressor, decompressor])
def test_what_cannot_be_copied_still_cannot(module: Any, make: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(make(module))
    if module is not zlib:
        assert not hasattr(make(module), "copy")
        with pytest.raises(TypeError, match="cannot pickle"):
            copy.copy(make(module))


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_hold_the_same(kind: int, threads: list[str]) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.writestr("much", MUCH)
    assert threads
    with zipfile.ZipFile(file) as archive:
        assert archive.read("much") == MUCH


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_tarballs_hold_the_same(kind: Any) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=f"w:{kind}") as archive:
        info = tarfile.TarInfo("much")
        info.size = len(MUCH)
        archive.addfile(info, io.BytesIO(MUCH))
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        found = archive.extractfile("much")
        assert found is not None
        assert found.read() == MUCH


def test_a_file_is_compressed_in_a_thread(threads: list[str]) -> None:
    """As the middleware of frameworks does it with a response."""
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb") as packing:
        packing.write(MUCH)
    assert "compress" in threads
    assert gzip.decompress(file.getvalue()) == MUCH


def test_brotli_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brotli.py").write_text(
        "from gevent.monkey import get_original\n\n\n"
        "def compress(data, quality=11):\n"
        "    return get_original('_thread', 'get_ident')(), quality\n\n\n"
        "decompress = compress\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "brotli", None)  # which takes it out after the test
    del sys.modules["brotli"]
    brotli = importlib.import_module("brotli")
    for function in (brotli.compress, brotli.decompress):
        ident, quality = function(MUCH, quality=4)
        assert ident != get_ident()
        assert quality == 4
        assert function(LITTLE) == (get_ident(), 11)


def test_the_classes_have_the_names_of_the_originals() -> None:
    for module in MODULES:
        for name in NAMES[module.__name__]:
            replaced = getattr(module, name)
            assert (replaced.__module__, replaced.__name__) == (module.__name__, name)
            assert replaced.__doc__
    assert sys.modules["bz2"].BZ2Compressor is bz2.BZ2Compressor
