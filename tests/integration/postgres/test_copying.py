"""COPY in green mode: the rows of psycopg2's own, while other greenlets run."""

import io
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import psycopg2
import pytest
from psycopg2 import errors, extensions
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, TRANSACTION_STATUS_INTRANS

from embedded.postgres import Postgres
from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.postgres import copying
from greenline.postgres.copying import PIECE_BYTES
from tests.helpers.pools import Watch, ask
from tests.helpers.support import wait_until

LIMIT_S = 30.0
LONG = [1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES - 1, 3_000_000, 1]
IN, OUT = "in", "out"
# In the list of the select: in FROM the server would first make all rows.
ENDLESS = {
    IN: "copy copied (body) from stdin",
    OUT: "copy (select generate_series(1, 1000000000)) to stdout",
}
MUCH = "abcdefghi\n" * 100_000  # more than the sockets hold
LOCKED = {
    IN: "copy copied (body) from stdin",
    OUT: """copy (
        select case when n = 1000 then pg_advisory_xact_lock(18)::text else repeat('x', 100) end
        from generate_series(1, 1001) n
    ) to stdout""",
}
with_both_readers = pytest.mark.usefixtures("reader")
both_ways = pytest.mark.parametrize("way", [IN, OUT])


@pytest.fixture(params=["compiled", "by ctypes"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads the rows of a COPY out of the database."""
    if request.param == "by ctypes":
        monkeypatch.setattr(copying, "read_rows", copying.rows_by_ctypes)
    elif copying.compiled_rows is None:
        pytest.skip("there was no C compiler")
    else:
        monkeypatch.setattr(copying, "read_rows", copying.compiled_rows)


@pytest.fixture
def conn(postgres: Postgres, watch: Watch) -> Iterator[Any]:
    """A connection as an application makes it, to a database with a table of the test's own."""
    watch.ask("create unlogged table copied (number serial, body text); select 1")
    watch.ask("grant all on copied, copied_number_seq to public; select 1")
    with closing(psycopg2.connect(postgres.url, application_name=watch.name)) as made:
        yield made
    watch.ask("drop table copied; select 1")


class Endless(io.TextIOBase):
    """A file of rows without end, which can be written as well; ``rows`` counts."""

    rows = 0

    def read(self, size: int | None = -1) -> str:
        self.rows += 1
        return f"{self.rows}\n"

    def write(self, text: str) -> int:
        self.rows += 1
        return len(text)


class Failing(Endless):
    """One that raises *error* in the middle."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def read(self, size: int | None = -1) -> str:
        self._fail()
        return super().read(size)

    def write(self, text: str) -> int:
        self._fail()
        return super().write(text)

    def _fail(self) -> None:
        if self.rows == 1000:
            raise self.error


def copy(conn: Any, statement: str, file: Any) -> int:
    """Execute a COPY and return its number of rows."""
    with conn.cursor() as cursor:
        cursor.copy_expert(statement, file)
        count: int = cursor.rowcount
        return count


def sent(conn: Any, text: str) -> int:
    """Copy rows of one column into the table."""
    return copy(conn, "copy copied (body) from stdin", io.StringIO(text))


def received(conn: Any, query: str) -> str:
    """Return what a COPY of *query* writes."""
    file = io.StringIO()
    copy(conn, f"copy ({query}) to stdout", file)
    return file.getvalue()


@with_both_readers
@pytest.mark.parametrize("is_text", [True, False], ids=["text", "binary"])
@pytest.mark.parametrize("is_file", [True, False], ids=["file", "in memory"])
def test_what_goes_in_comes_out(conn: Any, tmp_path: Path, is_file: bool, is_text: bool) -> None:
    """From and to each kind of file, with the number of rows."""
    rows = [f"{number}\ttitle \u017e {number}" for number in range(1, 5001)]
    text = "".join(f"{row}\n" for row in rows)
    given: Any = text if is_text else text.encode()

    def opened() -> Any:
        if is_file:
            return (tmp_path / "file").open("w+" if is_text else "wb+")
        return io.StringIO() if is_text else io.BytesIO()

    with opened() as source:
        source.write(given)
        source.seek(0)
        assert copy(conn, "copy copied from stdin", source) == 5000
    with opened() as sink:
        assert copy(conn, "copy (table copied order by number) to stdout", sink) == 5000
        sink.seek(0)
        assert sink.read() == given


def test_copy_from_and_copy_to_are_the_same(conn: Any) -> None:
    """With a separator, a null and columns of one's own."""
    with conn.cursor() as cursor:
        source = io.StringIO("1|none\n2|a\n")
        cursor.copy_from(source, "copied", sep="|", null="none", columns=("number", "body"))
        assert cursor.rowcount == 2
        sink = io.StringIO()
        cursor.copy_to(sink, "copied", sep=",", null="-", columns=["body"])
        assert (cursor.rowcount, sink.getvalue()) == (2, "-\na\n")
        cursor.execute("select body from copied where number = 1")
        assert (cursor.rowcount, cursor.fetchall()) == (1, [(None,)])


@with_both_readers
def test_a_file_of_the_applications_own_gets_a_row_at_a_time(conn: Any) -> None:
    """And is read by the size that was asked for, as by psycopg2."""
    sizes: list[int] = []
    written: list[bytes] = []

    class File:
        def read(self, size: int) -> str:
            sizes.append(size)
            return "a\n" * 100 if len(sizes) <= 3 else ""

        def write(self, row: bytes) -> None:
            written.append(row)

    with conn.cursor() as cursor:
        cursor.copy_expert("copy copied (body) from stdin", File(), 123)
        assert (cursor.rowcount, sizes) == (300, [123] * 4)
        cursor.copy_expert("copy copied (body) to stdout", File())
    assert written == [b"a\n"] * 300


@with_both_readers
def test_no_row_is_a_copy_too(conn: Any) -> None:
    """Its number is 0."""
    assert sent(conn, "") == 0
    sink = io.StringIO()
    assert copy(conn, "copy copied to stdout", sink) == 0
    assert sink.getvalue() == ""


@with_both_readers
@pytest.mark.parametrize("is_own", [True, False], ids=["Python's file", "the application's"])
def test_a_row_may_be_longer_than_what_is_read_at_once(conn: Any, is_own: bool) -> None:
    """Of any length about that of a piece, and of many pieces."""
    text = "".join("x" * (length - 1) + "\n" for length in LONG)
    assert sent(conn, text) == len(LONG)
    statement = "copy (select body from copied order by number) to stdout"
    if is_own:
        file = io.StringIO()
        assert copy(conn, statement, file) == len(LONG)
        assert file.getvalue() == text
    else:
        rows: list[bytes] = []
        assert copy(conn, statement, SimpleNamespace(write=rows.append)) == len(LONG)
        assert b"".join(rows).decode() == text
        assert all(row.endswith(b"\n") for row in rows)


def test_a_source_may_give_more_than_was_asked_for(conn: Any) -> None:
    """All of it in the first read, for instance."""
    given = iter(["y" * 9 + "\n"])

    class Source:
        def read(self, size: int) -> str:
            return next(given, "") * 100_000

    assert copy(conn, "copy copied (body) from stdin", Source()) == 100_000
    assert ask(conn, "select count(*) from copied where body = 'yyyyyyyyy'") == 100_000


def test_the_binary_format_is_kept(conn: Any) -> None:
    """Byte by byte."""
    assert sent(conn, "a\n\\N\nb\n" * 10_000) == 30_000
    first, again = io.BytesIO(), io.BytesIO()
    assert copy(conn, "copy copied to stdout (format binary)", first) == 30_000
    ask(conn, "truncate copied; select 1")
    first.seek(0)
    assert copy(conn, "copy copied from stdin (format binary)", first) == 30_000
    copy(conn, "copy copied to stdout (format binary)", again)
    assert again.getvalue() == first.getvalue()
    assert ask(conn, "select count(*) from copied where body is null") == 10_000


def test_text_has_the_connections_encoding(conn: Any) -> None:
    """A binary file has its bytes."""
    conn.set_client_encoding("LATIN2")
    assert sent(conn, "\u017elu\u0165\n") == 1
    assert received(conn, "select body from copied") == "\u017elu\u0165\n"
    raw = io.BytesIO()
    copy(conn, "copy (select body from copied) to stdout", raw)
    assert raw.getvalue() == "\u017elu\u0165\n".encode("latin2")
    with pytest.raises(errors.QueryCanceled, match="UnicodeEncodeError"):
        sent(conn, "\u4e2d\n")


def test_it_is_part_of_the_transaction(conn: Any) -> None:
    """It begins one, and is rolled back with it."""
    sent(conn, "a\n")
    assert conn.info.transaction_status == TRANSACTION_STATUS_INTRANS
    conn.rollback()
    assert received(conn, "select body from copied") == ""
    conn.rollback()
    conn.autocommit = True
    sent(conn, "b\n")
    assert conn.info.transaction_status == TRANSACTION_STATUS_IDLE
    assert received(conn, "select body from copied") == "b\n"


def bad_row(conn: Any) -> None:
    copy(conn, "copy copied (number) from stdin", io.StringIO("1\n" * 50_000 + "one\n"))


def missing_table(conn: Any) -> None:
    copy(conn, "copy missing from stdin", Endless())


def failing_source(conn: Any) -> None:
    copy(conn, ENDLESS[IN], Failing(KeyError("mine")))


def wrong_source(conn: Any) -> None:
    copy(conn, ENDLESS[IN], type("Source", (), {"read": lambda self, size: 1})())


def failing_query(conn: Any) -> None:
    query = "select 1000 / (1000 - n) from generate_series(1, 100000) n"
    copy(conn, f"copy ({query}) to stdout", io.StringIO())


def failing_sink(conn: Any) -> None:
    query = "select repeat('x', 100) from generate_series(1, 100000)"
    copy(conn, f"copy ({query}) to stdout", Failing(KeyError("mine")))


@with_both_readers
@pytest.mark.parametrize("is_autocommit", [True, False], ids=["autocommit", "in a transaction"])
@pytest.mark.parametrize(
    ("fail", "error", "text"),
    [
        (bad_row, errors.InvalidTextRepresentation, 'CONTEXT:  COPY copied, line 50001, column nu'),
        (missing_table, errors.UndefinedTable, 'relation "missing" does not exist'),
        (failing_source, errors.QueryCanceled, r"error in \.read\(\) call: KeyError 'mine'"),
        (wrong_source, errors.QueryCanceled, "got int instead of bytes"),
        (failing_query, errors.DivisionByZero, "^division by zero"),
        (failing_sink, KeyError, "mine"),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type(ask)) else "",
)  # fmt: skip
def test_a_failure_leaves_the_connection_usable(
    conn: Any,
    fail: Callable[[Any], None],
    error: type[Exception],
    text: str,
    is_autocommit: bool,
) -> None:
    """psycopg2's error, with what the server says of it, and nothing is in the table."""
    conn.autocommit = is_autocommit
    pid = conn.info.backend_pid
    with pytest.raises(error, match=text) as caught:
        fail(conn)
    if isinstance(caught.value, psycopg2.Error):
        assert errors.lookup(caught.value.pgcode or "") is error
        assert (caught.value.pgerror or "").startswith("ERROR:  ")
    if not is_autocommit:
        conn.rollback()
    assert ask(conn, "select count(*) from copied") == 0
    assert sent(conn, "a\n") == 1
    assert conn.info.backend_pid == pid


def by_deadline(copy_all: Callable[[Any], None]) -> None:
    with pytest.raises(DeadlineExceeded), deadline.limit(0.3):
        copy_all(Endless())


def by_kill(copy_all: Callable[[Any], None]) -> None:
    file = Endless()
    running = gevent.spawn(copy_all, file)
    wait_until(lambda: file.rows > 1000, "rows to be copied")
    running.kill(timeout=LIMIT_S)
    assert isinstance(running.value, gevent.GreenletExit)


def by_timeout(copy_all: Callable[[Any], None]) -> None:
    file = Endless()
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.3):
        copy_all(file)


def by_exit(copy_all: Callable[[Any], None]) -> None:
    with pytest.raises(gevent.GreenletExit):
        copy_all(Failing(gevent.GreenletExit()))


@with_both_readers
@both_ways
@pytest.mark.parametrize("end", [by_deadline, by_kill, by_timeout, by_exit])
def test_an_interruption_closes_the_connection(
    conn: Any, postgres: Postgres, watch: Watch, way: str, end: Callable[[Any], None]
) -> None:
    """Its backend ends, what it had copied is gone, and another connection works."""
    pid = conn.info.backend_pid
    end(lambda file: copy(conn, ENDLESS[way], file))
    assert conn.closed
    with pytest.raises(psycopg2.InterfaceError, match="connection already closed"):
        conn.cursor()
    wait_until(lambda: watch.count(f"pid = {pid}") == 0, "the backend to end")
    with closing(psycopg2.connect(postgres.url)) as other:
        assert ask(other, "select count(*) from copied") == 0


@pytest.fixture
def lock(conn: Any, postgres: Postgres) -> Iterator[Any]:
    """A lock for which a COPY of LOCKED waits in its middle; a rollback releases it."""
    with conn.cursor() as cursor:
        cursor.execute("""
            create function pg_temp.wait() returns trigger language plpgsql as
                $$begin perform pg_advisory_xact_lock(18); return new; end$$;
            create trigger wait before insert on copied for each row execute function pg_temp.wait()
        """)
    with closing(psycopg2.connect(postgres.url)) as other:
        ask(other, "select pg_advisory_xact_lock(18)")
        yield other


@with_both_readers
@both_ways
def test_a_wait_for_the_server_ends_with_the_deadline(
    conn: Any, watch: Watch, lock: Any, way: str
) -> None:
    """Where it takes and sends nothing."""
    with pytest.raises(DeadlineExceeded), deadline.limit(0.5):
        copy(conn, LOCKED[way], io.StringIO(MUCH if way == IN else ""))
    assert conn.closed
    wait_until(lambda: watch.count() == 0, "the backend to end")


@both_ways
def test_it_ends_with_the_deadline_where_nothing_waits(conn: Any, way: str) -> None:
    """The first piece is the last one, where it takes until the deadline."""
    pieces = 0

    class File:
        def read(self, size: int) -> str:
            return "x" * (PIECE_BYTES - 1) + "\n" if self._next() < 3 else ""

        def write(self, row: bytes) -> None:
            self._next()

        def _next(self) -> int:
            nonlocal pieces
            pieces += 1
            while deadline.remaining():
                pass
            return pieces

    statement = "copy (select repeat('x', 9000) from generate_series(1, 10)) to stdout"
    # So long that the first piece comes before it.
    with pytest.raises(DeadlineExceeded), deadline.limit(2.0):
        copy(conn, ENDLESS[IN] if way == IN else statement, File())
    assert pieces == 1
    assert conn.closed


@with_both_readers
@both_ways
def test_a_lost_server_is_an_error_of_psycopg2(conn: Any, watch: Watch, way: str) -> None:
    """The connection is closed, as after any loss."""
    file = Endless()
    pid = conn.info.backend_pid
    running = gevent.spawn(copy, conn, ENDLESS[way], file)
    wait_until(lambda: file.rows > 1000, "rows to be copied")
    assert not running.ready()
    assert watch.ask("select pg_terminate_backend(%s)", pid)
    with pytest.raises(psycopg2.OperationalError, match="server closed the connection"):
        running.get(timeout=LIMIT_S)
    assert conn.closed


def test_greenlets_that_share_a_connection_take_turns(conn: Any) -> None:
    """The rows of one are never among those of another."""
    conn.autocommit = True
    text = "".join(f"{number}\n" for number in range(20_000))
    works: list[Callable[[], Any]] = [
        lambda: sent(conn, text),
        lambda: received(conn, "select n from generate_series(0, 19999) n"),
        lambda: ask(conn, "select 7"),
    ] * 3
    running = [gevent.spawn(work) for work in works]
    gevent.joinall(running, timeout=LIMIT_S, raise_error=True)
    assert [one.value for one in running] == [20_000, text, 7] * 3
    assert ask(conn, "select count(*) from copied") == 60_000


@both_ways
def test_others_run_while_it_waits(conn: Any, watch: Watch, lock: Any, way: str) -> None:
    """One of them holds the lock for which it waits."""
    file = io.StringIO(MUCH if way == IN else "")
    running = gevent.spawn(copy, conn, LOCKED[way], file)
    wait_until(lambda: watch.count("wait_event_type = 'Lock'") == 1, "the COPY to wait")
    assert not running.ready()
    lock.rollback()
    assert running.get(timeout=LIMIT_S) == (MUCH.count("\n") if way == IN else 1001)


@both_ways
def test_others_run_where_nothing_waits(conn: Any, way: str) -> None:
    """After each piece, because the sockets hold all of it."""
    turns = 0
    seen: list[int] = []

    def run() -> None:
        nonlocal turns
        while True:
            turns += 1
            gevent.sleep(0)

    class File:
        def read(self, size: int) -> str:
            seen.append(turns)
            return "x" * (PIECE_BYTES - 1) + "\n" if len(seen) < 3 else ""

        def write(self, row: bytes) -> None:
            seen.append(turns)
            if len(seen) == 1:
                gevent.sleep(0.5)  # the others have arrived then

    other = gevent.spawn(run)
    try:
        if way == IN:
            copy(conn, "copy copied (body) from stdin", File())
        else:
            copy(
                conn,
                "copy (select repeat('x', 9000) from generate_series(1, 10)) to stdout",
                File(),
            )
    finally:
        other.kill()
    assert len(seen) == (3 if way == IN else 10)
    assert all(before < after for before, after in pairwise(seen))


def test_what_the_server_says_meanwhile_is_read(conn: Any) -> None:
    """5 MB of notices while 1 MB of rows is sent; the last ones are kept."""
    with conn.cursor() as cursor:
        cursor.execute("""
            create function pg_temp.talk() returns trigger language plpgsql as
                $$begin raise notice '%', repeat('x', 1000); return new; end$$;
            create trigger talk before insert on copied for each row execute function pg_temp.talk()
        """)
    with gevent.Timeout(LIMIT_S):
        assert sent(conn, ("x" * 199 + "\n") * 5_000) == 5_000
    assert "xxx" in conn.notices[-1]


def test_without_libpqs_functions_psycopg2_refuses(
    conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own words."""
    monkeypatch.setattr(copying, "libpq", None)
    with pytest.raises(psycopg2.ProgrammingError, match="can't execute COPY"):
        sent(conn, "a\n")
    with suppress(psycopg2.Error):
        conn.close()


def test_psycopgs_own_class_of_connections_is_as_it_was(postgres: Postgres) -> None:
    """Outside of green mode psycopg2 copies by itself."""
    callback = extensions.get_wait_callback()
    extensions.set_wait_callback(None)
    try:
        with closing(psycopg2.connect(postgres.url)) as blocking:
            assert type(blocking) is extensions.connection
            assert received(blocking, "select 1") == "1\n"
    finally:
        extensions.set_wait_callback(callback)
