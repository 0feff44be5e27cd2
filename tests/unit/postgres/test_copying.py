"""The rows of a COPY, from functions in the place of libpq's: in C, and by ctypes."""

import ctypes
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from greenline.postgres import copying
from greenline.postgres.copying import BLOCKED, END, FAILED, PIECE_BYTES, ReadRows

CONN = 18
GET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int)
CONSUME = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Fake:
    """
    A connection whose messages arrive one by one.

    :param answers: a row, or what is returned in its place.
    :param is_lost: whether it ends when more is to be read.
    """

    def __init__(self, *answers: bytes | int, is_lost: bool = False) -> None:
        self._answers = list(answers)
        self._is_lost = is_lost
        self.consumed = 0
        self.kept: dict[int, Any] = {}  # the rows that have not been freed

    def next(self) -> bytes | int:
        return self._answers.pop(0) if self._answers else BLOCKED

    def get_copy_data(self, conn: int, place: Any, is_async: int) -> int:
        assert (conn, is_async) == (CONN, 1)
        row = self.next()
        if isinstance(row, int):
            return row
        buffer = ctypes.create_string_buffer(row, len(row))
        place[0] = ctypes.addressof(buffer)
        self.kept[ctypes.addressof(buffer)] = buffer
        return len(row)

    def get_line(self, conn: Any, buffer: Any, size: Any) -> int:
        assert (conn.value, size.value) == (CONN, PIECE_BYTES)
        row = self.next()
        if isinstance(row, int):
            return row
        if len(row) > PIECE_BYTES:
            self._answers.insert(0, row[PIECE_BYTES:])
        buffer[: len(row[:PIECE_BYTES])] = row[:PIECE_BYTES]
        return len(row[:PIECE_BYTES])

    def consume_input(self, conn: int) -> int:
        assert conn == CONN
        self.consumed += 1
        return int(not self._is_lost)

    def free(self, row: int) -> None:
        del self.kept[row]


def compiled(fake: Fake) -> tuple[ReadRows, Any]:
    """Return the compiled function for *fake*, and what has to live as long as it."""
    if copying.compiled_rows is None:
        pytest.skip("there was no C compiler")
    from greenline.postgres._copying import read_rows

    functions = GET(fake.get_copy_data), CONSUME(fake.consume_input), FREE(fake.free)
    addresses = [ctypes.cast(each, ctypes.c_void_p).value for each in functions]
    return partial(read_rows, *addresses), functions


def by_ctypes(fake: Fake) -> tuple[ReadRows, Any]:
    """Return the one by ctypes for *fake*."""
    library = SimpleNamespace(PQgetlineAsync=fake.get_line, PQconsumeInput=fake.consume_input)

    def read_rows(pgconn: int, max_bytes: int) -> tuple[list[bytes], int]:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(copying, "libpq", library)
            return copying.rows_by_ctypes(pgconn, max_bytes)

    return read_rows, None


@pytest.fixture(params=[compiled, by_ctypes], ids=["compiled", "by ctypes"])
def reader(request: pytest.FixtureRequest) -> Callable[[Fake], tuple[ReadRows, Any]]:
    """Both ways to read."""
    found: Callable[[Fake], tuple[ReadRows, Any]] = request.param
    return found


def row(length: int) -> bytes:
    return b"x" * (length - 1) + b"\n"


@pytest.mark.parametrize(
    ("answers", "max_bytes", "rows", "last", "consumed"),
    [
        ([b"a\n", b"b\n", END], 100, [b"a\n", b"b\n"], END, 0),
        ([END], 100, [], END, 0),
        ([], 100, [], BLOCKED, 1),
        ([b"a\n", 0, b"b\n"], 100, [b"a\n", b"b\n"], BLOCKED, 2),
        ([b"abc\n", b"abc\n", b"d\n"], 5, [b"abc\n", b"abc\n"], 4, 0),
        ([b"a\0b\xff\n", END], 100, [b"a\0b\xff\n"], END, 0),
        ([row(PIECE_BYTES - 1), END], PIECE_BYTES, [row(PIECE_BYTES - 1)], END, 0),
        ([row(3 * PIECE_BYTES + 1), b"a\n"], 9, [row(3 * PIECE_BYTES + 1)], 3 * PIECE_BYTES + 1, 0),
    ],
    ids=[
        "to the end", "no row", "nothing yet", "more in the socket", "up to the limit", "any byte",
        "nearly a piece", "more than three pieces",
    ],
)  # fmt: skip
def test_what_has_arrived_is_read(
    reader: Any, answers: list[bytes | int], max_bytes: int, rows: list[bytes], last: int,
    consumed: int,
) -> None:  # fmt: skip
    """Up to the limit, the end, or a look into the socket that has found nothing."""
    fake = Fake(*answers)
    read_rows, _alive = reader(fake)
    found, got = read_rows(CONN, max_bytes)
    assert (found, got > 0, fake.consumed) == (rows, last > 0, consumed)
    assert got == last or last > 0
    assert fake.kept == {}


def test_a_lost_connection_is_a_failure(reader: Any) -> None:
    """With the rows that had arrived."""
    read_rows, _alive = reader(Fake(b"a\n", BLOCKED, is_lost=True))
    assert read_rows(CONN, 100) == ([b"a\n"], FAILED)


def test_a_null_pointer_is_an_error() -> None:
    """And no crash."""
    read_rows, _alive = compiled(Fake())
    with pytest.raises(ValueError, match="an address is 0"):
        read_rows(0, 100)
    with pytest.raises(TypeError):
        read_rows("18", 100)  # type: ignore[arg-type]
