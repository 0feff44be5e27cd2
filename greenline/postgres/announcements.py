"""
Read what Postgres announces, over the control connection, and write it for all processes of the
host into a :class:`~greenline.cache.feed.Feed`.

What was written is announced by rows of a table, which its transaction adds. ``NOTIFY`` would let
all transactions that use it commit one after the other, each with a flush of its own.

One process of the host reads: the first one that asks, and another within a tenth of a second of
its end. Each answer proves that all that was committed before the question has been read. Where the
table cannot be read, on a standby for instance, nothing is proved, and a value is used for
``max_stale_s``; so behind a pgbouncer, which may ask another server without a word.
"""

import logging
from collections import deque
from time import monotonic
from typing import Any

import gevent
import psycopg2

from greenline.cache.feed import Feed
from greenline.cache.leader import Leader
from greenline.hub import deadline
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control

log = logging.getLogger(__name__)

# The text of a row has one tag or more, or keys, a line each; without one everything is invalid.
# After a crash the server empties an unlogged table: all connections are lost then, and the caches
# empty. Any role that writes has to announce.
ANNOUNCEMENTS = """
create unlogged table if not exists greenline_announcements (
    xid xid8 not null default pg_current_xact_id(),
    tags text not null
);
create index if not exists greenline_announcements_xid on greenline_announcements (xid);
grant select, insert, delete on greenline_announcements to public;
"""
# What was committed since an earlier snapshot: by transactions that began after it, or that were in
# progress then.
READ = """
select pg_snapshot_xmin(snapshot)::text, pg_snapshot_xmax(snapshot)::text,
    array(select pg_snapshot_xip(snapshot)::text),
    array(
        select distinct tags from greenline_announcements
        where xid >= %s::xid8 or xid = any(%s::xid8[]) limit %s
    )
from pg_current_snapshot() as snapshot
"""
DELETE = "delete from greenline_announcements where xid < %s::xid8"
READ_S, RETRY_S, ANSWER_S = 0.04, 0.5, 2.0
MAX_ROWS = 1_000  # of one read; more are everything
# A row is deleted when every reader has read it that has not paused for MAX_PAUSE_S.
CLEAN_S, MAX_PAUSE_S, KEPT_S = 10.0, 30.0, 60.0


class Reader(Leader):
    """
    Read, once started, as long as no other process of the host does.

    :param control: the control connection of this worker.
    :param feed: of the database.
    :param why_not: why the announcements cannot be used, str. Default "": they can.
    """

    def __init__(self, control: Control, feed: Feed, why_not: str = "") -> None:
        super().__init__(feed)
        self._why_not = why_not
        self._control = control
        self._conn: Connection | None = None  # the one over which was read last
        self._read_s = 0.0  # when
        # Of the snapshot that was read last: the first transaction that had not begun, and those
        # that were in progress.
        self._next: str | None = None
        self._open: list[str] = []
        # When the oldest transaction was one in progress, every CLEAN_S.
        self._oldest: deque[tuple[float, str]] = deque()
        self._why_kept = ""  # why old rows are not deleted

    def step(self) -> None:
        """Read what was announced, and wait."""
        if self._why_not:
            self.go_without(self._why_not)
        else:
            with deadline.limit(ANSWER_S):
                self._control.ask(self._read)
        gevent.sleep(RETRY_S if self._conn is None else READ_S)

    def forget(self, *, is_lost: bool = True) -> None:
        """Leave the connection; what is announced until another process reads is lost."""
        if self._conn is None:
            return
        self._conn = None
        self.feed.interrupt()
        self.feed.publish_everything()
        if is_lost:
            log.warning(
                "the connection that read Postgres' announcements was lost: caches are emptied"
            )

    def _read(self, conn: Connection) -> None:
        asked_s = monotonic()
        if conn is not self._conn or asked_s - self._read_s > MAX_PAUSE_S:
            self.forget(is_lost=conn is not self._conn)
            if why_not := _misfit(conn):
                self.go_without(why_not)
                return
            self._next, self._open = None, []
            self._oldest.clear()
        try:
            with conn.cursor() as cursor:
                cursor.execute(READ, (self._next, self._open, MAX_ROWS + 1))
                found: Any = cursor.fetchone()
        except psycopg2.Error as error:
            if conn.closed:
                raise
            self.forget(is_lost=False)
            self.go_without(f"announcements cannot be read: {str(error).splitlines()[0]}")
            return
        oldest, following, in_progress, rows = found
        # What was announced before the first read is not known.
        if self._next is None or len(rows) > MAX_ROWS:
            self.feed.publish_everything()
        else:
            self.feed.publish(tag.strip("\r") for row in rows for tag in row.split("\n"))
        self._conn, self._read_s = conn, asked_s
        self._next, self._open = following, in_progress
        self.feed.confirm(asked_s)
        self.go_on()
        self._clean(conn, asked_s, oldest)

    def _clean(self, conn: Connection, now_s: float, oldest: str) -> None:
        """Delete the rows that were committed ``KEPT_S`` ago, every ``CLEAN_S``."""
        if self._oldest and now_s - self._oldest[-1][0] < CLEAN_S:
            return
        self._oldest.append((now_s, oldest))
        if now_s - self._oldest[0][0] >= KEPT_S:
            _, ended = self._oldest.popleft()
            try:
                with conn.cursor() as cursor:
                    cursor.execute(DELETE, (ended,))
            except psycopg2.Error as error:
                if conn.closed:
                    raise
                # They are read all the same; the table grows.
                if (why := str(error).splitlines()[0]) != self._why_kept:
                    self._why_kept = why
                    log.warning("old announcements cannot be deleted: %s", why)


def _misfit(conn: Connection) -> str:
    """Say why announcements cannot be read over a new connection; "" if they can."""
    # psycopg2 cannot decode all that such a database may have.
    if conn.info.parameter_status("server_encoding") == "SQL_ASCII":
        return "the database has the encoding SQL_ASCII, so no text can be read safely"
    conn.set_client_encoding("UTF8")
    with conn.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        is_direct = cursor.fetchone() == (conn.info.backend_pid,)
    return "" if is_direct else "behind a pgbouncer Postgres' announcements are not read"
