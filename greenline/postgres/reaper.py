"""
Look after slots whose holder is gone while its backend may live on, and after the budget itself.

1. A worker that was killed leaves its slots locked by nobody. Each stays closed until its backend
   has left ``pg_stat_activity``.
2. What was killed while it connected has no process id to ask for; its backend sees the end of its
   socket, and its slot is closed for ``UNKNOWN_S``.
3. Only who can ask the server takes such slots into care; who cannot any more leaves them.
4. A control connection that the server ended is made anew, and the budget read with it; what a
   sibling has read anew is followed.
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
ASK_TIMEOUT_S = 5.0
# The server asks every second whether a client is still there, and a connect takes five at most.
UNKNOWN_S = 6.0


class Reaper:
    """
    Looks after the slots of *slot_table*, asking over *control*.

    *follow* is called at each look, to follow what the siblings tell of the budget.
    """

    def __init__(
        self, slot_table: SlotTable, control: Control, follow: Callable[[], object] = bool
    ) -> None:
        self._slot_table = slot_table
        self._control = control
        self._follow = follow
        self._looking: gevent.Greenlet[..., None] | None = None

    def start(self) -> None:
        """Look every ``ORPHAN_CHECK_S``, in the background."""
        self._looking = keep_doing(self.look, lambda: ORPHAN_CHECK_S, "looking after the slots")

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.kill()

    def look(self) -> None:
        """
        Look once.

        Raises:
            StoreDown: the server cannot be asked.
        """
        try:
            with deadline.limit(ASK_TIMEOUT_S):
                self._control.renew()
                self._follow()
                self._settle()
        except BaseException:
            self._slot_table.abandon_orphans()
            raise

    def _settle(self) -> None:
        orphans = self._slot_table.orphans()
        pids = [orphan.pid for orphan in orphans if orphan.pid]
        alive = self._control.ask(partial(_alive, pids)) if pids else set()
        for orphan in orphans:
            if orphan.pid not in alive and (orphan.pid or _is_old(orphan)):
                self._slot_table.give(orphan)


def _is_old(orphan: Slot) -> bool:
    return orphan.since_s is not None and monotonic() - orphan.since_s > UNKNOWN_S


def _alive(pids: Iterable[int], conn: Connection) -> set[int]:
    with conn.cursor() as cursor:
        cursor.execute("select pid from pg_stat_activity where pid = any(%s)", (list(pids),))
        return {pid for (pid,) in cursor}
