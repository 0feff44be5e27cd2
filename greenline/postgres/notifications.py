"""
Listen to what Postgres announces, over the control connection, and write it for all processes of
the host into a :class:`~greenline.cache.feed.Feed`.

One process of the host listens: the first one that asks, and another within a tenth of a second of
its end. Each answer of the server, at least every ``HEARTBEAT_S``, proves that all that was
announced before has been read. Behind a pgbouncer that pools transactions no announcement arrives,
and a standby refuses to let a connection listen: nothing is proved, and a value is used for
``max_stale_s``.
"""

import logging
import os
import socket
from contextlib import suppress
from time import monotonic
from typing import Any

import gevent
import psycopg2
from gevent.socket import wait_read
from psycopg2 import sql

from greenline.cache.feed import Feed
from greenline.cache.leader import Leader
from greenline.hub import deadline
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control

log = logging.getLogger(__name__)

# A payload has one tag or more, or keys, a line each; without one everything is invalid.
CHANNEL = "greenline_cache"
HEARTBEAT_S, ANSWER_S = 0.5, 2.0
GATHER_S = 0.02  # between two reads: announcements of many writers at once are read together


class Listener(Leader):
    """
    Listen, once started, as long as no other process of the host does.

    :param control: the control connection of this worker.
    :param feed: of the database.
    :param why_not: why the announcements cannot be used, str. Default "": they can.
    """

    def __init__(self, control: Control, feed: Feed, why_not: str = "") -> None:
        super().__init__(feed)
        self._why_not = why_not
        self._control = control
        self._announcements: _Announcements | None = None
        self._conn: Connection | None = None  # the one that listens
        self._socket: socket.socket | None = None
        self._asked_s = self._read_s = 0.0

    def step(self) -> None:
        """Read what was announced, and wait for more."""
        if self._why_not:
            self.go_without(self._why_not)
            gevent.sleep(HEARTBEAT_S)
            return
        with deadline.limit(ANSWER_S):
            self._control.ask(self._read)
        self._wait()

    def forget(self, *, is_lost: bool = True) -> None:
        """Leave the connection; what is announced until another one listens is lost."""
        if self._conn is not None:
            self._conn.notifies = []  # another process may be the one that publishes
            self.feed.interrupt()
            self.feed.publish_everything()
            if is_lost:
                log.warning("the connection that listened to Postgres was lost: caches are emptied")
        self._conn = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _wait(self) -> None:
        """Wait until there is something to read, or for the next heartbeat."""
        left_s = self._asked_s + HEARTBEAT_S - monotonic()
        if self._socket is None:
            gevent.sleep(HEARTBEAT_S)
        elif left_s > 0:
            with suppress(TimeoutError):
                wait_read(self._socket.fileno(), timeout=left_s, timeout_exc=TimeoutError())
                gevent.sleep(max(self._read_s + GATHER_S - monotonic(), 0))

    def _read(self, conn: Connection) -> None:
        if conn is not self._conn or monotonic() - self._asked_s >= HEARTBEAT_S:
            self._heartbeat(conn)
        else:
            conn.poll()
        self._read_s = monotonic()

    def _heartbeat(self, conn: Connection) -> None:
        self._asked_s = asked_s = monotonic()
        with conn.cursor() as cursor:
            if conn is not self._conn and not self._begin(conn, cursor):
                return
            # The answer comes behind all that was announced before.
            cursor.execute("select %s in (select pg_listening_channels())", (CHANNEL,))
            listens = cursor.fetchone() == (True,)
        if listens and self._announcements is not None and not self._announcements.has_failed:
            self.feed.confirm(asked_s)
        else:
            self.forget()

    def _begin(self, conn: Connection, cursor: Any) -> bool:
        """Listen on a new connection; return whether announcements arrive on it."""
        self.forget()
        # psycopg2 drops an announcement that it cannot decode, and says nothing.
        if conn.info.parameter_status("server_encoding") == "SQL_ASCII":
            self.go_without(
                "the database has the encoding SQL_ASCII, so no text can be read safely"
            )
            return False
        conn.set_client_encoding("UTF8")
        cursor.execute("select pg_backend_pid()")
        if cursor.fetchone() != (conn.info.backend_pid,):
            self.go_without("behind a pgbouncer Postgres' announcements do not arrive")
            return False
        try:
            cursor.execute(sql.SQL("listen {}").format(sql.Identifier(CHANNEL)))
        except psycopg2.Error as error:
            if conn.closed:
                raise
            # A standby does, and some proxies.
            self.go_without(f"Postgres refuses to let us listen ({str(error).splitlines()[0]})")
            return False
        # What was announced before is lost.
        self.feed.publish_everything()
        # A descriptor of our own: the driver may close its one while we wait.
        self._socket = socket.socket(fileno=os.dup(conn.fileno()))
        conn.notifies = self._announcements = _Announcements(self.feed)
        self._conn = conn
        return True


class _Announcements(list[Any]):
    """
    In place of a connection's list of notifications: publish each in *feed* when it is received.

    Any question over the connection may receive it, and the listener would not be woken.
    """

    has_failed = False

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed = feed

    def append(self, received: Any) -> None:
        """Publish what psycopg2 has received."""
        if received.channel != CHANNEL:
            return
        try:
            self._feed.publish(line.strip("\r") for line in received.payload.split("\n"))
        except BaseException:
            self.has_failed = True  # psycopg2 swallows the error
            raise
