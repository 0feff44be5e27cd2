"""greenline.postgres.announcements: writes by anybody invalidate the caches of the host."""

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg2
import pytest

from embedded.pgbouncer import Pgbouncer
from embedded.postgres import Postgres, temporary
from greenline import postgres
from greenline.cache import Cache
from greenline.cache.feed import WRITTEN, Feed
from greenline.errors import ConfigError, PoolClosed, StoreDown
from greenline.postgres import ANNOUNCEMENTS, OpenPostgres, announcements
from greenline.postgres.announcements import Reader
from tests.helpers.support import CHECKOUT, wait_until

MB = 1 << 20
# As docs/cache.md has it.
TABLE = (
    ANNOUNCEMENTS
    + """
create table shelf (id int primary key, title text not null);
create function shelf_changed() returns trigger language plpgsql as $$
begin
    insert into greenline_announcements (tags) values ('shelf');
    return null;
end
$$;
create trigger changed after insert or update or delete or truncate on shelf
for each statement execute function shelf_changed();
"""
)


@pytest.fixture(scope="module")
def own() -> Iterator[Postgres]:
    """A Postgres that the tests may stop."""
    with temporary(30) as server:
        write(server.url, TABLE)
        yield server


@pytest.fixture
def server(own: Postgres) -> Postgres:
    """With an old book on the shelf."""
    write(
        own.url,
        "alter table shelf enable trigger changed; truncate shelf;"
        "insert into shelf values (1, 'old')",
    )
    return own


def write(url: str, statement: str) -> None:
    """Run a statement as another program does."""
    with closing(psycopg2.connect(url)) as conn, conn, conn.cursor() as cursor:
        cursor.execute(statement)


class Shop:
    """A process with a cache of titles."""

    url = ""

    def __init__(self, opened: OpenPostgres, feed: Feed) -> None:
        self.cache = Cache(MB, 600, feed=feed)
        self.feed = feed
        self._opened = opened

    def title(self) -> str:
        def load() -> str:
            with self._opened.connection(autocommit=True) as conn, conn.cursor() as cursor:
                cursor.execute("select min(title) from shelf")
                return str(cursor.fetchone()[0])

        return self.cache.get_or_load("title", load, tags=["shelf"])

    def is_confirmed(self) -> bool:
        """Return whether a process reads."""
        now_s = time.monotonic()
        return self.feed.is_current(now_s - 60, now_s, self.feed.pull())

    def backend(self) -> int:
        """Return the backend of the control connection."""
        return int(self._opened._share.control.ask(lambda conn: conn.info.backend_pid))


@pytest.fixture
def sockets(server: Postgres, tmp_path: Path) -> Path:
    """A link to the folder of the server's socket, which is another one after a restart."""
    link = tmp_path / "sockets"
    link.symlink_to(Path(server.socket).parent)
    return link


@pytest.fixture
def shop(server: Postgres, sockets: Path) -> Iterator[Shop]:
    url = server.url.replace(str(Path(server.socket).parent), str(sockets))
    opened = postgres.open(url, workers=1, hosts=1)
    shop = Shop(opened, opened.feed())
    shop.url = url
    wait_until(shop.is_confirmed, "the reader")
    yield shop
    opened.close()


@pytest.fixture
def pgbouncer(server: Postgres) -> Iterator[Pgbouncer]:
    """One that pools transactions, in four connections."""
    try:
        with Pgbouncer(server, 4) as running:
            yield running
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("statement", "seen"),
    [
        ("update shelf set title = 'new'", "new"),
        ("insert into shelf values (2, 'a new one')", "a new one"),
        ("delete from shelf", "None"),
        ("truncate shelf", "None"),
        (
            "alter table shelf disable trigger changed; update shelf set title = 'new';"
            "insert into greenline_announcements (tags) values ('')",
            "new",
        ),
    ],
    ids=["update", "insert", "delete", "truncate", "everything"],
)
def test_a_write_of_another_program_is_seen(
    server: Postgres, shop: Shop, statement: str, seen: str
) -> None:
    """Long before the value is too old; until then there is one load."""
    assert shop.title() == shop.title() == "old"
    write(server.url, statement)
    written_s = time.monotonic()
    wait_until(lambda: shop.title() == seen, "the write")
    assert time.monotonic() - written_s < 0.1 + 1.0
    assert shop.cache.stats()["loads"] == 2


def announce(url: str, tags: str) -> None:
    with closing(psycopg2.connect(url)) as conn, conn, conn.cursor() as cursor:
        cursor.execute("insert into greenline_announcements (tags) values (%s)", (tags,))


def test_announcements_of_many_writers_are_read_together(
    server: Postgres, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, and in whichever order they are committed; each is read once."""
    published: list[str] = []
    reads = 0
    publish, step = Feed.publish, Reader.step

    def counted(reader: Reader) -> None:
        nonlocal reads
        reads += 1
        step(reader)

    def noted(feed: Feed, tags: Iterable[str]) -> None:
        found = list(tags)
        published.extend(found)
        publish(feed, found)

    monkeypatch.setattr(Feed, "publish", noted)
    monkeypatch.setattr(Reader, "step", counted)
    backend, began_s = shop.backend(), time.monotonic()
    with ExitStack() as stack:
        conns = [stack.enter_context(closing(psycopg2.connect(server.url))) for _ in range(8)]
        for number in range(200):
            for conn in conns:
                with conn.cursor() as cursor:
                    cursor.execute(
                        "insert into greenline_announcements (tags) values (%s)", (f"a {number}",)
                    )
            # One is committed at once, the others by and by, the first one last.
            for conn in conns[-1 - number % 8 :]:
                conn.commit()
        for conn in conns:
            conn.commit()
    wait_until(lambda: f"a {199}" in published and len(set(published)) == 200, "all of them")
    took_s = time.monotonic() - began_s
    assert 0 < reads <= took_s / announcements.READ_S + 2
    assert shop.backend() == backend


def test_a_transaction_that_was_in_progress_is_read_once_when_it_ends(
    server: Postgres, shop: Shop
) -> None:
    """It began before others that have been read, and is read after them."""
    shop.title()
    with closing(psycopg2.connect(server.url)) as slow, slow.cursor() as cursor:
        cursor.execute("update shelf set title = 'late'")
        for number in range(3):
            written = shop.feed._cells[WRITTEN]
            announce(server.url, f"another {number}")
            wait_until(lambda written=written: shop.feed._cells[WRITTEN] > written, "another one")
        assert shop.title() == "old"
        assert shop.cache.stats()["loads"] == 1
        written = shop.feed._cells[WRITTEN]
        slow.commit()
    wait_until(lambda: shop.title() == "late", "the write")
    confirmed_s = shop.feed.pull()
    wait_until(lambda: shop.feed.pull() > confirmed_s, "another look")
    assert shop.feed._cells[WRITTEN] == written + 1


def test_more_than_a_read_takes_are_everything(
    server: Postgres, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "MAX_ROWS", 10)
    for count, loads in ((10, 1), (11, 2)):
        shop.title()
        written = shop.feed._cells[WRITTEN]
        write(
            server.url,
            "insert into greenline_announcements (tags)"
            f" select 'another ' || n from generate_series(1, {count}) as n",
        )
        wait_until(lambda written=written: shop.feed._cells[WRITTEN] > written, "them")
        shop.title()
        assert shop.cache.stats()["loads"] == loads


def test_what_was_not_committed_or_has_another_tag_changes_nothing(
    server: Postgres, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """The value stays, and so does the connection."""
    shop.title()
    backend, written = shop.backend(), shop.feed._cells[WRITTEN]
    write(server.url, "begin; update shelf set title = 'new'; rollback")
    for number in range(5):
        announce(server.url, f"another {number}")
        wait_until(
            lambda number=number: shop.feed._cells[WRITTEN] > written + number, "the other tag"
        )
    assert shop.title() == "old"
    assert shop.cache.stats()["loads"] == 1
    assert shop.backend() == backend
    assert caplog.text == ""


def test_rows_are_deleted_when_all_have_read_them(
    server: Postgres, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of a transaction that was in progress in the meantime."""
    monkeypatch.setattr(announcements, "CLEAN_S", 0.1)
    monkeypatch.setattr(announcements, "KEPT_S", 0.5)
    with closing(psycopg2.connect(server.url)) as conn, conn.cursor() as cursor:
        cursor.execute("insert into greenline_announcements (tags) values ('in progress')")
        announce(server.url, "after it")
        confirmed_s = time.monotonic() + 2
        wait_until(lambda: shop.feed.pull() > confirmed_s, "many looks")
        with closing(psycopg2.connect(server.url)) as other, other.cursor() as looking:
            looking.execute("select array_agg(tags) from greenline_announcements")
            assert looking.fetchone() == (["after it"],)
        conn.commit()
        wait_until(lambda: _rows(server.url) == 0, "the end of both")


def test_without_the_right_to_delete_rows_are_read_all_the_same(
    server: Postgres, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The table grows, and the log says why."""
    monkeypatch.setattr(announcements, "CLEAN_S", 0.1)
    monkeypatch.setattr(announcements, "KEPT_S", 0.2)
    shop.title()
    write(server.url, "revoke delete on greenline_announcements from public, greenline")
    wait_until(lambda: "announcements cannot be deleted: permission" in caplog.text, "the reason")
    confirmed_s = time.monotonic() + 0.5
    wait_until(lambda: shop.feed.pull() > confirmed_s, "further attempts")
    assert caplog.text.count("cannot be deleted") == 1
    write(server.url, "grant delete on greenline_announcements to public")
    assert shop.title() == "old"
    assert shop.cache.stats()["loads"] == 1
    assert "was lost" not in caplog.text


def _rows(url: str) -> int:
    with closing(psycopg2.connect(url)) as conn, conn.cursor() as cursor:
        cursor.execute("select count(*) from greenline_announcements")
        return int(cursor.fetchone()[0])


def test_after_a_pause_the_caches_are_emptied(
    server: Postgres, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was announced meanwhile may have been deleted."""
    shop.title()
    write(server.url, "alter table shelf disable trigger changed; update shelf set title = 'new'")
    assert shop.title() == "old"
    monkeypatch.setattr(announcements, "MAX_PAUSE_S", 0.0)
    wait_until(lambda: shop.title() == "new", "the emptied cache")


@pytest.mark.parametrize(
    ("statement", "reason", "undo"),
    [
        (
            "alter table greenline_announcements rename to gone",
            'relation "greenline_announcements" does not exist',
            "alter table gone rename to greenline_announcements",
        ),
        (
            "revoke all on greenline_announcements from public, greenline",
            "permission denied for table greenline_announcements",
            "grant select, insert, delete on greenline_announcements to public",
        ),
    ],
    ids=["no table", "no right"],
)
def test_a_table_that_cannot_be_read_leaves_it_to_time(
    server: Postgres, shop: Shop, caplog: pytest.LogCaptureFixture,
    statement: str, reason: str, undo: str,
) -> None:  # fmt: skip
    """Also where it could be read before: the caches are emptied then, and it is said once."""
    shop.title()
    write(server.url, f"alter table shelf disable trigger changed; {statement}")
    write(server.url, "update shelf set title = 'new'")
    wait_until(lambda: f"announcements cannot be read: {reason}" in caplog.text, "the reason")
    assert shop.feed.pull() == 0.0
    assert len(shop.cache) == 0
    assert shop.title() == "new"
    write(server.url, undo)
    wait_until(shop.is_confirmed, "the reader")
    assert caplog.text.count("announcements cannot be read") == 1
    assert "announcements are read again" in caplog.text


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_an_announcement_has_the_text_of_its_tag(
    server: Postgres, sockets: Path, encoding: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever encoding the connection was given; where the database has none, time alone."""
    name = f"in_{encoding.lower()}"
    with closing(psycopg2.connect(server.superuser_url)) as conn, conn.cursor() as cursor:
        conn.autocommit = True
        cursor.execute(
            f"create database {name} owner greenline template template0 encoding '{encoding}'"
            " locale 'C'"
        )
    url = server.url.replace("/greenline?", f"/{name}?") + "&client_encoding=SQL_ASCII"
    write(url, TABLE + "insert into shelf values (1, 'old')")
    opened = postgres.open(url, name=name, workers=1, hosts=1)
    feed = opened.feed()
    cache, loads = Cache(MB, 600, feed=feed), iter(range(99))
    shop = Shop(opened, feed)
    if encoding == "SQL_ASCII":
        wait_until(lambda: "the encoding SQL_ASCII" in caplog.text, "the reason")
    else:
        wait_until(shop.is_confirmed, "the reader")
    assert cache.get_or_load("title", lambda: next(loads), tags=["Bücher"]) == 0
    announce(url.replace("SQL_ASCII", "UTF8"), "Bücher")
    wait_until(
        lambda: cache.get_or_load("title", lambda: next(loads), tags=["Bücher"]) == 1,
        "another load", feed.max_stale_s + 5,
    )  # fmt: skip
    opened.close()


def test_a_pool_that_may_read_from_a_standby_leaves_it_to_time(
    server: Postgres, sockets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless it takes the primary alone."""
    several = f"postgresql://greenline@/greenline?host={sockets},{sockets}"
    opened = postgres.open(several, workers=1, hosts=1)
    shop = Shop(opened, opened.feed(0.5))
    wait_until(lambda: "target_session_attrs" in caplog.text, "the reason")
    assert shop.title() == "old"
    write(server.url, "update shelf set title = 'new'")
    wait_until(lambda: shop.title() == "new", "the end of its time", 5)
    assert not shop.is_confirmed()
    opened.close()
    opened = postgres.open(f"{several}&target_session_attrs=read-write", workers=1, hosts=1)
    wait_until(Shop(opened, opened.feed()).is_confirmed, "the reader")
    opened.close()


def test_another_database_of_the_server_is_refused(server: Postgres, shop: Shop) -> None:
    """The control connection of the process is to the first one."""
    with closing(psycopg2.connect(server.superuser_url)) as conn, conn.cursor() as cursor:
        conn.autocommit = True
        cursor.execute("create database other")
    url = shop.url.replace("/greenline?", "/other?")
    assert url != shop.url
    other = postgres.open(url, name="other", workers=1, hosts=1)
    with pytest.raises(ConfigError, match="opened before"):
        other.feed()
    other.close()
    with pytest.raises(PoolClosed):
        other.feed()


def test_a_forked_child_leaves_the_connection_to_its_parent(server: Postgres) -> None:
    """In a script, where the child has the greenlets as well."""
    program = f"""
from greenline.patch import patch_all
patch_all()
import os, time, gevent
from greenline import postgres
db = postgres.open({server.url!r}, workers=1, hosts=1)
feed = db.feed()
def confirmed():
    return feed.is_current(0.0, time.monotonic(), feed.pull())
while not confirmed(): gevent.sleep(0.01)
pid = os.fork()
if pid == 0:
    gevent.sleep(1.5)
    os._exit(0)
while os.waitpid(pid, os.WNOHANG) == (0, 0): gevent.sleep(0.01)
ended_s = time.monotonic()
while feed.pull() < ended_s and time.monotonic() < ended_s + 30: gevent.sleep(0.01)
print(feed.pull() >= ended_s)
db.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_forked_child_reads_no_answer_of_its_parents(server: Postgres) -> None:
    """Its copies of the greenlets that wait find a lost connection, and end no session."""
    program = f"""
from greenline.patch import patch_all
patch_all()
import os, gevent
from greenline import postgres
db = postgres.open({server.url!r}, workers=1, hosts=1)
SLOW = "select %(n)s::int from pg_sleep(0.5)"
def ask(number): return db.fetch("slow", SLOW, {{"n": number}})[0][0]
asked = [gevent.spawn(ask, number) for number in range(8)]
gevent.sleep(0.2)
pid = os.fork()
if pid == 0:
    gevent.sleep(1.5)
    os._exit(0)
print([each.get(timeout=20) for each in asked])
os.waitpid(pid, 0)
print(ask(9))
db.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"{[*range(8)]}\n9\n", done.stderr


def test_a_lost_connection_empties_the_caches(
    server: Postgres, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """And says so; what was written meanwhile is seen, and then another connection reads."""
    shop.title()
    write(
        server.superuser_url,
        "alter table shelf disable trigger changed; update shelf set title = 'unannounced';"
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where query like '%pg_current_snapshot%' and pid <> pg_backend_pid()",
    )
    wait_until(lambda: shop.title() == "unannounced", "the emptied cache")
    assert "the connection that read Postgres' announcements was lost" in caplog.text
    write(server.superuser_url, "alter table shelf enable trigger changed")
    wait_until(shop.is_confirmed, "another connection")
    write(server.url, "update shelf set title = 'new'")
    wait_until(lambda: shop.title() == "new", "the write")


def test_a_restart_of_postgres_is_survived(server: Postgres, shop: Shop, sockets: Path) -> None:
    """Without it values are used for an instant."""
    assert shop.title() == "old"
    server.kill()
    wait_until(lambda: shop.feed.pull() and len(shop.cache) == 0, "the caches to be emptied")
    with pytest.raises(StoreDown):
        wait_until(lambda: shop.title() != "old", "the value to be too old")
    sockets.unlink()
    server.start()
    sockets.symlink_to(Path(server.socket).parent)
    wait_until(shop.is_confirmed, "the reader")
    write(server.url, "update shelf set title = 'new'")
    wait_until(lambda: shop.title() == "new", "the write")


def test_another_process_reads_when_the_first_has_ended(server: Postgres, shop: Shop) -> None:
    """One of the host at a time; what it misses in between it takes for changed."""
    second = postgres.open(shop.url, name="second", workers=1, hosts=1)
    other = Shop(second, second.feed())
    assert other.title() == "old"
    (first,) = shop._opened._readers
    first.close()
    write(server.url, "alter table shelf disable trigger changed; update shelf set title = 'new'")
    wait_until(lambda: other.title() == "new", "the second reader")
    wait_until(other.is_confirmed, "its proof")
    second.close()


def test_what_a_killed_process_did_not_read_is_taken_for_changed(
    server: Postgres, shop: Shop
) -> None:
    """Nobody has asked for the value while no process read."""
    second = postgres.open(shop.url, name="second", workers=1, hosts=1)
    other = Shop(second, second.feed())
    assert other.title() == "old"
    (first,) = shop._opened._readers
    first._greenlet.kill()
    write(server.url, "alter table shelf disable trigger changed; update shelf set title = 'new'")
    first.feed.resign()  # as the kernel does at the end of a process
    killed_s = time.monotonic()
    wait_until(lambda: other.feed.pull() > killed_s, "the second reader")
    assert other.title() == "new"
    second.close()


def test_behind_a_pgbouncer_a_value_is_used_for_a_while_only(
    server: Postgres, pgbouncer: Pgbouncer, caplog: pytest.LogCaptureFixture
) -> None:
    """It may ask another server without a word; the log says so."""
    opened = postgres.open(pgbouncer.url, workers=1, hosts=1, pgbouncer_pool_size=4, prepare=False)
    shop = Shop(opened, opened.feed(max_stale_s=1.0))
    assert shop.title() == "old"
    wait_until(lambda: "behind a pgbouncer" in caplog.text, "the line")
    assert shop.feed.pull() == 0.0
    write(server.url, "update shelf set title = 'new'")
    wait_until(lambda: shop.title() == "new", "its time")
    assert not shop.is_confirmed()
    opened.close()
