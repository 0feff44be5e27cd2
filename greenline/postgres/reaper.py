"""
Free the slots of killed processes once their backends have ended, and keep the budget up to date.
"""

from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic

import gevent

from greenline.hub import deadline
from greenline.hub.periodic import keep_doing
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.slots import Slot, SlotTable

ORPHAN_CHECK_S = 0.5
REAP_TIMEOUT_S = 5.0
# Seconds after which a backend without a known pid has ended: the server checks every second
# whether its client is there, and a connect takes at most five.
UNKNOWN_S = 6.0


class Reaper:
    """
    The background task of one worker that frees orphaned slots.

    :param slot_table: the host's slot table.
    :param control: the control connection over which the server is asked.
    :param follow: is called at each look, to follow a budget read by another worker. Default: does
        nothing.
    """

    def __init__(
        self, slot_table: SlotTable, control: Control, follow: Callable[[], object] = bool
    ) -> None:
        self._slot_table = slot_table
        self._control = control
        self._follow = follow
        self._looking: gevent.Greenlet[..., None] | None = None

    def start(self) -> None:
        """Call :meth:`look` every ``ORPHAN_CHECK_S`` in the background."""
        self._looking = keep_doing(self.look, lambda: ORPHAN_CHECK_S, "reaping orphaned slots")

    def close(self) -> None:
        """Stop looking."""
        if self._looking is not None:
            self._looking.kill()

    def look(self) -> None:
        """
        Look once.

        :raises StoreDown: the server cannot be asked.
        """
        try:
            with deadline.limit(REAP_TIMEOUT_S):
                # A new control connection reads the budget as well.
                self._control.renew()
                self._follow()
                self._settle()
        except BaseException:
            # Only a process that can ask the server keeps orphans: another one may be able to.
            self._slot_table.abandon_orphans()
            raise

    def _settle(self) -> None:
        orphans = self._slot_table.orphans()
        pids = [orphan.pid for orphan in orphans if orphan.pid]
        alive = self._control.ask(partial(_alive, pids)) if pids else set()
        for orphan in orphans:
            # A process killed while it connected left no pid to ask for: its backend notices the
            # end of the socket, and the slot stays closed for UNKNOWN_S.
            if orphan.pid not in alive and (orphan.pid or _is_old(orphan)):
                self._slot_table.give(orphan)


def _is_old(orphan: Slot) -> bool:
    return orphan.since_s is not None and monotonic() - orphan.since_s > UNKNOWN_S


def _alive(pids: Iterable[int], conn: Connection) -> set[int]:
    with conn.cursor() as cursor:
        cursor.execute("select pid from pg_stat_activity where pid = any(%s)", (list(pids),))
        return {pid for (pid,) in cursor}
