"""
Listen to what Postgres announces, over the control connection, and write it for all processes of
the host into a :class:`~greenline.cache.feed.Feed`.

One process of the host listens: the first one that asks, and another within a second of its end.
Each answer of the server, at least every ``BEAT_S``, proves that it hears. Behind a pgbouncer,
whose server connections are not the client's own, it does not: no value is used for longer than
without a listener.
"""

import logging
import os
import socket
from contextlib import suppress
from time import monotonic

import gevent
from gevent.socket import wait_read
from psycopg2 import sql

from greenline.cache.feed import Feed
from greenline.errors import GreenlineError
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control

log = logging.getLogger(__name__)

CHANNEL = "greenline_cache"
BEAT_S = 0.5
LEAD_S = 0.25  # between two attempts to lead


class Listener:
    """
    Listen as long as no other process of the host does.

    :param control: the control connection of this worker.
    :param feed: of the database.
    :param channel: of the announcements, str. Default ``greenline_cache``. A payload has one tag or
        more, a line each; without one everything is invalid.
    """

    def __init__(self, control: Control, feed: Feed, channel: str = CHANNEL) -> None:
        self._control = control
        self._feed = feed
        self._channel = channel
        self._conn: Connection | None = None  # the one that listens
        self._socket: socket.socket | None = None
        self._is_deaf = False  # reported
        self._greenlet = gevent.spawn(self._run)

    def close(self) -> None:
        """Stop to listen, and let another process do it."""
        self._greenlet.kill()
        self._forget()
        self._feed.close()

    def _run(self) -> None:
        while not self._feed.lead():
            gevent.sleep(LEAD_S)
        while True:
            try:
                self._control.ask(self._beat)
            except GreenlineError:  # the readiness check reports it
                self._lose()
                gevent.sleep(BEAT_S)
                continue
            if self._socket is not None:
                with suppress(TimeoutError):
                    wait_read(self._socket.fileno(), timeout=BEAT_S, timeout_exc=TimeoutError())

    def _beat(self, conn: Connection) -> None:
        asked_s = monotonic()
        with conn.cursor() as cursor:
            if conn is not self._conn:
                self._lose()
                cursor.execute(sql.SQL("listen {}").format(sql.Identifier(self._channel)))
                # What was announced while none listened is lost.
                self._feed.publish_everything()
                self._conn = conn
                # A descriptor of our own: the driver may close its one while we wait.
                self._socket = socket.socket(fileno=os.dup(conn.fileno()))
            # The answer comes behind all that was announced before.
            cursor.execute("select pg_backend_pid()")
            is_direct = cursor.fetchone() == (conn.info.backend_pid,)
        texts = [each.payload for each in conn.notifies if each.channel == self._channel]
        conn.notifies.clear()
        self._feed.publish(tag for text in texts for tag in text.split("\n"))
        if is_direct:
            self._feed.confirm(asked_s)
        elif not self._is_deaf:
            self._is_deaf = True
            log.warning(
                "behind a pgbouncer Postgres' announcements do not come: a value of a cache is "
                "used for %g s",
                self._feed.max_stale_s,
            )

    def _lose(self) -> None:
        if self._conn is not None:
            log.warning("the connection that listened to Postgres was lost: caches are emptied")
            self._forget()

    def _forget(self) -> None:
        if self._conn is not None:
            # What is announced until another one listens is lost.
            self._feed.publish_everything()
        self._conn = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
