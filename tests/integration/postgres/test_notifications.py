"""greenline.postgres.notifications: writes by anybody invalidate the caches of the host."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import gevent
import psycopg2
import pytest

from embedded.pgbouncer import Pgbouncer
from embedded.postgres import Postgres, temporary
from greenline import postgres
from greenline.cache import Cache
from greenline.cache.feed import WRITTEN, Feed
from greenline.errors import ConfigError, PoolClosed, StoreDown
from greenline.postgres import OpenPostgres, notifications
from greenline.postgres.clean import is_dead
from greenline.postgres.connection import Connection
from greenline.postgres.notifications import Listener
from tests.helpers.support import CHECKOUT, wait_until

MB = 1 << 20
# As docs/cache.md has it.
TABLE = """
create table shelf (id int primary key, title text not null);
create function shelf_changed() returns trigger language plpgsql as $$
begin
    perform pg_notify('greenline_cache', 'shelf');
    return null;
end
$$;
create trigger changed after insert or update or delete or truncate on shelf
for each statement execute function shelf_changed();
"""


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
        """Return whether a process listens."""
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
    wait_until(shop.is_confirmed, "the listener")
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
        ("begin; update shelf set title = 'new'; notify greenline_cache; commit", "new"),
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


def test_an_announcement_that_follows_another_one_is_not_the_end_of_the_connection(
    server: Postgres, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the connection is looked at, and the caches are not emptied for it."""
    backend, poll, sent = shop.backend(), Connection.poll, 0

    def followed(conn: Connection) -> int:
        nonlocal sent
        found = poll(conn)
        if sent < 3:
            sent += 1
            write(server.url, "notify greenline_cache, 'shelf'")
            assert wait_until(partial(is_dead, conn), "the announcement")
        return found

    monkeypatch.setattr(Connection, "poll", followed)
    write(server.url, "notify greenline_cache, 'shelf'")
    wait_until(lambda: sent == 3, "the announcements")
    assert shop.backend() == backend


def test_announcements_of_many_writers_are_read_together(
    server: Postgres, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the worker that listens is woken by each of a thousand commits a second."""
    reads = 0
    step = Listener.step

    def counted(listener: Listener) -> None:
        nonlocal reads
        reads += 1
        step(listener)

    monkeypatch.setattr(Listener, "step", counted)
    backend, before, began_s = shop.backend(), shop.feed._cells[WRITTEN], time.monotonic()
    with closing(psycopg2.connect(server.url)) as conn, conn.cursor() as cursor:
        conn.autocommit = True
        for _ in range(500):
            cursor.execute("notify greenline_cache, 'shelf'")
    wait_until(lambda: shop.feed._cells[WRITTEN] >= before + 500, "all of them")
    took_s = time.monotonic() - began_s
    assert 0 < reads <= took_s / notifications.GATHER_S + took_s / notifications.HEARTBEAT_S + 2
    assert shop.backend() == backend


def test_what_was_not_committed_or_has_another_tag_changes_nothing(
    server: Postgres, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """The value stays, and so does the connection, which has something to read."""
    shop.title()
    backend, written = shop.backend(), shop.feed._cells[WRITTEN]
    write(server.url, "begin; update shelf set title = 'new'; rollback")
    for number in range(5):
        write(server.url, f"select pg_notify('greenline_cache', 'another {number}')")
        wait_until(
            lambda number=number: shop.feed._cells[WRITTEN] > written + number, "the other tag"
        )
    assert shop.title() == "old"
    assert shop.cache.stats()["loads"] == 1
    assert shop.backend() == backend
    assert caplog.text == ""


def test_a_connection_that_listens_no_more_confirms_nothing(server: Postgres, shop: Shop) -> None:
    """A question over it may have said so; it listens again then, and the caches begin empty."""
    shop.title()

    def unlisten(conn: Connection) -> None:
        with conn.cursor() as cursor:
            cursor.execute("unlisten *; update shelf set title = 'unheard'")

    shop._opened._share.control.ask(unlisten)
    wait_until(lambda: shop.title() == "unheard", "the caches to be emptied")
    wait_until(shop.is_confirmed, "the listener")


def test_an_announcement_is_published_whoever_receives_it(server: Postgres, shop: Shop) -> None:
    """Any question over the control connection may; it wakes no listener."""
    (listener,) = shop._opened._listeners
    gevent.kill(listener._greenlet)
    assert shop.title() == "old"
    write(server.url, "update shelf set title = 'new'")
    ask, written = shop._opened._share.control.ask, shop.feed._cells[WRITTEN]
    wait_until(lambda: ask(_ask_postgres) and shop.feed._cells[WRITTEN] > written, "it")
    assert shop.title() == "new"
    # From now on another process may listen.
    listener.forget(is_lost=False)
    written = shop.feed._cells[WRITTEN]
    write(server.url, "update shelf set title = 'newer'")
    assert ask(_ask_postgres)
    assert shop.feed._cells[WRITTEN] == written


def test_a_server_that_refuses_listen_leaves_it_to_time(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby does, and some proxies: it is said once, and values are used for their time."""
    monkeypatch.setattr(notifications, "CHANNEL", "")  # which no server accepts
    feed = Feed("another", 2.0, tmp_path)
    listener = Listener(shop._opened._share.control, feed)
    listener.start()
    wait_until(lambda: "refuses to let us listen (zero-length" in caplog.text, "the refusal")
    wait_until(lambda: feed.pull() == 0.0, "time alone")
    listener.close()


def test_an_announcement_that_cannot_be_published_empties_the_caches(
    server: Postgres, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psycopg2 swallows the error; the next heartbeat finds it."""
    assert shop.title() == "old"

    def fail(_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(shop.feed, "publish", fail)
        write(server.url, "update shelf set title = 'new'")
        wait_until(lambda: shop.title() == "new", "the caches to be emptied")
    wait_until(shop.is_confirmed, "the listener")


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
        wait_until(shop.is_confirmed, "the listener")
    assert cache.get_or_load("title", lambda: next(loads), tags=["Bücher"]) == 0
    write(url.replace("SQL_ASCII", "UTF8"), "notify greenline_cache, 'Bücher'")
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
    wait_until(Shop(opened, opened.feed()).is_confirmed, "the listener")
    opened.close()


def _ask_postgres(conn: Connection) -> bool:
    with conn.cursor() as cursor:
        cursor.execute("select true")
        return bool(cursor.fetchone()[0])


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
    """And says so; what was written meanwhile is seen, and then another connection listens."""
    shop.title()
    write(
        server.superuser_url,
        "alter table shelf disable trigger changed; update shelf set title = 'unannounced';"
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where query like '%listening%' and pid <> pg_backend_pid()",
    )
    wait_until(lambda: shop.title() == "unannounced", "the emptied cache")
    assert "the connection that listened to Postgres was lost" in caplog.text
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
    wait_until(shop.is_confirmed, "the listener")
    write(server.url, "update shelf set title = 'new'")
    wait_until(lambda: shop.title() == "new", "the write")


def test_another_process_listens_when_the_first_has_ended(server: Postgres, shop: Shop) -> None:
    """One of the host at a time; what it misses in between it takes for changed."""
    second = postgres.open(shop.url, name="second", workers=1, hosts=1)
    other = Shop(second, second.feed())
    assert other.title() == "old"
    (first,) = shop._opened._listeners
    first.close()
    write(server.url, "alter table shelf disable trigger changed; update shelf set title = 'new'")
    wait_until(lambda: other.title() == "new", "the second listener")
    wait_until(other.is_confirmed, "its proof")
    second.close()


def test_behind_a_pgbouncer_a_value_is_used_for_a_while_only(
    server: Postgres, pgbouncer: Pgbouncer, caplog: pytest.LogCaptureFixture
) -> None:
    """Where transactions are pooled the announcements do not come, and the log says so."""
    opened = postgres.open(pgbouncer.url, workers=1, hosts=1, pgbouncer_pool_size=4, prepare=False)
    shop = Shop(opened, opened.feed(max_stale_s=1.0))
    assert shop.title() == "old"
    wait_until(lambda: "behind a pgbouncer" in caplog.text, "the line")
    assert shop.feed.pull() == 0.0
    write(server.url, "update shelf set title = 'new'")
    wait_until(lambda: shop.title() == "new", "its time")
    assert not shop.is_confirmed()
    opened.close()
