"""
Let one process of a host, the leader, write a feed, and another one when it ends.

What the leader reads, and how, is the database's: :mod:`greenline.postgres.announcements` and
:mod:`greenline.mongo.changes`.
"""

import logging
import os

import gevent

from greenline.cache.feed import Feed
from greenline.errors import GreenlineError

log = logging.getLogger(__name__)

ELECTION_S = 0.05  # between two attempts to become the leader
RETRY_S = 0.5  # after an error


class Leader:
    """
    Write *feed*, once started, as long as no other process of the host does.

    :param feed: of the database.
    """

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._pid = os.getpid()
        self._why = ""  # why it goes without announcements
        self._greenlet = gevent.Greenlet(self._run)

    def start(self) -> None:
        """Begin; once."""
        self._greenlet.start()

    def close(self) -> None:
        """End, and let another process lead."""
        if os.getpid() != self._pid:
            return
        self._greenlet.kill()
        try:
            self.forget(is_lost=False)
        finally:
            self.feed.close()

    def step(self) -> None:
        """
        Read what the database announces and write it, for at most a second; called repeatedly.

        :raises GreenlineError: the database cannot be asked; the readiness check reports it.
        """
        raise NotImplementedError

    def forget(self, *, is_lost: bool = True) -> None:
        """
        Close what :meth:`step` has opened, and publish that announcements may be lost from now on.

        :param is_lost: whether it is an error, which is logged. Default True.
        """
        raise NotImplementedError

    def go_without(self, why: str) -> None:
        """Let time alone invalidate, because no announcement arrives; a new *why* is logged."""
        if why != self._why:
            self._why = why
            log.warning("%s: a value of a cache is used for %g s", why, self.feed.max_stale_s)
        self.feed.resume()

    def go_on(self) -> None:
        """Note that announcements are read; it is logged where they were not."""
        if self._why:
            self._why = ""
            log.warning("announcements are read again")

    def _run(self) -> None:
        # A forked child has the greenlet as well, and the parent's connection.
        while os.getpid() == self._pid:
            if not self.feed.lead():
                gevent.sleep(ELECTION_S)
                continue
            try:
                while os.getpid() == self._pid:
                    self.step()
            except GreenlineError:
                pass  # the readiness check reports it
            except Exception:
                log.exception("reading announcements failed; it is tried again")
            if os.getpid() != self._pid:
                return
            try:
                self.forget()
            except Exception:
                log.exception("what read announcements was not closed")
            # Another process may be able to.
            self.feed.resign()
            gevent.sleep(RETRY_S)
