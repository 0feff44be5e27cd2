"""
The host's connections to one server as slots that all processes of one user share.

1. Who wants to connect takes a slot first, and gives it back when the backend is gone. There are
   ``capacity`` slots; each is a byte that one process has locked. Whatever else is written is a
   hint: that never more are held than there are rests on the kernel's locks.
2. A slot that nobody has locked but that was never given back is an orphan: its holder was killed,
   and its backend may live on. Whoever comes by takes it into care, and gives it back when
   ``pg_stat_activity`` shows the backend no more. Nobody connects in its place before that. The
   locks of a stopped process are held, so its slots are no orphans.
3. The first ``reserved`` slots are kept for those who need them: each process has one of them for
   its control connection and ``floor`` for its pool, and nobody asks for these back. So with
   ``1 + floor`` for each process that may live, each has its own; where there are more processes
   than that, rule 5 lets the last one in.
4. One slot beside the capacity is for a control connection that finds no other while nobody else
   holds any: when all processes were killed at once all slots are orphans, and there must be one
   who can ask the server. (Or for one that finds none for ``RESCUE_S``: those who hold slots may
   all be stopped.) It moves to another slot as soon as one is free. So there are never more than
   ``capacity + BESIDE``, or, after a shrinking, ``BESIDE`` more than were held.
5. The other slots are shared. Who waits for one says so, anew every few ms, and then each gives the
   others their turn: ``turns`` has the rules.
6. After a shrinking nobody takes a shared slot as long as more are held than there are now.
7. When the file was removed by somebody (systemd's RemoveIPC does it at a logout), each process
   moves to the new one within ``FILE_CHECK_S``, and what finds no place there is over.

No method waits for anything, and none may be called from two threads at once. A forked child has no
part in the slot table of its parent, and holds nothing of it: it opens its own.
"""

import logging
from collections.abc import Callable
from math import inf
from pathlib import Path
from time import monotonic

from greenline.errors import ConfigError
from greenline.slots.file import CONNECTING, FREE, SLOTS, SPARE, SPARE_CELLS, SlotFile
from greenline.slots.sharers import Sharers
from greenline.slots.slot import Slot
from greenline.slots.turns import Turns

BESIDE, LAST_RESORT = 1, SLOTS - 1
FILE_CHECK_S, COMPLAIN_S = 1.0, 60.0
TOLD_CAPACITY = 0  # of the numbers that all see: the capacity that who begins goes by
# When its client was killed, the backend of a control connection is gone in this time: it is idle.
DEAD_S = 1.0
RESCUE_S = 10.0
# Slots that one look for orphans asks the kernel about: for 0.2 ms, or 2 ms where 4,000 are held.
MAX_ASKED = 128

log = logging.getLogger(__name__)


class SlotTable:
    """
    This process's part in the slot table at *path*; open it after the fork.

    Nothing can be taken before ``resize()`` says what there is. *floor* slots are kept for the
    pool beside the one for the control connection. *clock* is one for all processes.

    Raises:
        ConfigError: the file cannot be used; names it.
    """

    def __init__(
        self, path: Path, *, floor: int = 1, clock: Callable[[], float] = monotonic
    ) -> None:
        self.capacity = self.reserved = 0
        self._path = path
        self._clock = clock
        self._most_kept = (floor, 1)  # for the pool, for control
        self._kept = [0, 0]
        self._slots: set[Slot] = set()
        self._orphans: set[Slot] = set()
        self._asked = 0  # where the last look for orphans ended
        self._none_beyond = b""  # the states of the slots beyond the capacity, when none is held
        self._paused_until = 0.0
        self._without_control_since: float | None = None
        # The last resort as an orphan, however often it was abandoned: since when, and last seen.
        self._last_resort_since, self._last_resort_seen = 0.0, -inf
        self._look_at = clock() + FILE_CHECK_S
        self._left: list[SlotFile] = []  # files that were removed and hold what is over
        self._file = SlotFile(path)
        self._turns = Turns(self._file)
        self.sharers = Sharers(clock)
        self.resize(0)

    def __repr__(self) -> str:
        stats = " ".join(f"{name}={value}" for name, value in self.stats().items())
        return f"<SlotTable {self._path.name} seat={self._file.seat} {stats}>"

    def stats(self) -> dict[str, int]:
        """
        Return capacity; held by this process and by all; free; orphans in this process's care;
        wanting (other processes). What others do are hints.
        """
        return {
            "capacity": self.capacity,
            "held": len(self._slots),
            "held_by_all": SLOTS - self._file.states(0, SLOTS).count(FREE),
            "free": self._file.states(0, self.capacity).count(FREE),
            "orphans": len(self._orphans),
            "wanting": len(list(self._turns.wanting(self._clock()))),
        }

    @property
    def spare(self) -> memoryview:
        """Eight numbers of 64 bits that all processes see, for whoever has something to tell."""
        return self._file.cells[SPARE : SPARE + SPARE_CELLS]

    def resize(self, capacity: int, reserved: int = 0) -> None:
        """Let there be *capacity* slots, the first *reserved* of them kept; ask ``is_over()``."""
        self.capacity = min(max(capacity, 0), LAST_RESORT)
        self.reserved = min(max(reserved, 0), self.capacity)
        self._none_beyond = bytes(LAST_RESORT - self.capacity)
        self._kept = [0, 0]
        for slot in sorted(self._slots, key=lambda slot: slot.number):
            self._keep(slot)

    def take(self, *, for_control: bool = False) -> Slot | None:
        """
        Take a slot to connect in, None when there is none for this process now.

        One *for_control* waits for nobody's turn. With None, ``want()`` and ask again in some ms.
        """
        self._file.require_open()
        now = self._clock()
        self._look(now)
        if now < self._paused_until:
            return None
        number = -1
        if self._kept[for_control] < self._most_kept[for_control]:
            number = self._lock_free(0, self.reserved)
        if number < 0 and not self._is_full() and (for_control or not self._turns.is_anothers(now)):
            number = self._lock_free(self.reserved, self.capacity)
        if number < 0 and for_control and self._is_alone(now) and self._lock_last_resort(now):
            number = LAST_RESORT
        if number < 0:
            return None
        if for_control:
            self._without_control_since = None
        self._file.write(number, CONNECTING)
        slot = Slot(self._file, number, for_control)
        self._slots.add(slot)
        self._keep(slot)
        self._turns.end_want()
        self._turns.count(not for_control)
        return slot

    def give(self, slot: Slot) -> None:
        """Give back *slot*, or an orphan, whose backend is gone, or was never asked for."""
        self._drop(slot, FREE)

    def abandon(self, slot: Slot) -> None:
        """Leave *slot*, or an orphan, whose backend may still be there, to whoever comes by."""
        self._drop(slot, None)

    def is_over(self, slot: Slot) -> bool:
        """Return whether there are fewer slots by now, so that *slot*'s connection has to go."""
        return self.capacity <= slot.number < LAST_RESORT or slot.file is not self._file

    def orphans(self) -> list[Slot]:
        """
        Look for orphans and return those in this process's care: each with its pid, if known, and
        ``since_s``. Call it about once a second; it takes microseconds for each slot held.

        Only for whoever can ask the server: nobody else sees what is in its care. Who cannot any
        more abandons them.
        """
        now = self._clock()
        self._look(now)
        self._find_orphans(now, MAX_ASKED)
        for slot in [slot for slot in self._slots if slot.for_control and not slot.is_kept]:
            # Into one that is kept for it, so that the pools may have its place.
            self._move(slot, self.reserved if slot.number < self.capacity else self.capacity)
            self._keep(slot)
        return sorted(self._orphans, key=lambda slot: slot.number)

    def abandon_orphans(self) -> None:
        """Leave all orphans in this process's care to whoever comes by."""
        for orphan in tuple(self._orphans):
            self.abandon(orphan)

    def want(self) -> None:
        """Say that this process waits for a slot; it counts for a tenth of a second."""
        self._file.require_open()
        self._turns.want(self._clock())

    def should_give(self, slot: Slot) -> bool:
        """
        Return whether *slot*, which comes back, is for a process that waits and holds fewer.

        True is a promise to close its connection now: nobody else gives one for that need.
        """
        now = self._clock()
        return not (self._turns.is_calm(now) or slot.is_kept) and self._turns.promise(now)

    def is_wanted(self, slot: Slot) -> bool:
        """Return whether anybody waits who could use *slot*, idle here and not the last one."""
        now = self._clock()
        if self._turns.is_calm(now) or slot.is_kept or self._turns.holds < 2:
            return False
        return any(True for _ in self._turns.wanting(now))

    def close(self) -> None:
        """
        End this process's part; what it holds is left to whoever comes by.

        The last one removes the file, if nothing is held.
        """
        for slot in self._slots | self._orphans:
            slot.file = None
        self._slots.clear()
        self._orphans.clear()
        self._file.remove_unused()
        for file in (self._file, *self._left):
            file.close()

    def _is_full(self) -> bool:
        """Return whether, since slots beyond the capacity are held, no more may be."""
        beyond = self._file.states(self.capacity, LAST_RESORT)
        if beyond == self._none_beyond:
            return False
        return len(beyond) - beyond.count(FREE) >= self._file.states(0, self.capacity).count(FREE)

    def _lock_free(self, first: int, behind: int) -> int:
        """Lock a free slot and return its number, -1 when there is none."""
        file = self._file
        number = file.find_free(first, behind)
        while number >= 0:
            if file.lock(number):
                if file.state(number) == FREE:
                    return number
                self._adopt(number)
            number = file.find_free(number + 1, behind)
        return -1

    def _is_alone(self, now: float) -> bool:
        """Return whether nobody else may look after orphans, as far as this process knows."""
        if self._without_control_since is None:
            self._without_control_since = now
        is_patient = now < self._without_control_since + RESCUE_S
        return not (is_patient and self._file.is_held_by_others(LAST_RESORT))

    def _lock_last_resort(self, now: float) -> bool:
        """Lock it, an old orphan too: there may be nobody left who could look after it."""
        if not any(self._is_last_resort(slot) for slot in self._slots | self._orphans):
            if not self._file.lock(LAST_RESORT):
                return False
            if self._file.state(LAST_RESORT) == FREE:
                return True
            self._adopt(LAST_RESORT, now)
        for slot in filter(self._is_last_resort, self._orphans):
            if slot.since_s is not None and now >= slot.since_s + DEAD_S:
                self._orphans.discard(slot)
                slot.file = None
                self._last_resort_seen = -inf
                return True
        return False

    def _is_last_resort(self, slot: Slot) -> bool:
        return slot.number == LAST_RESORT and slot.file is self._file

    def _find_orphans(self, now: float, most: int) -> None:
        mine = {slot.number for slot in self._slots | self._orphans if slot.file is self._file}
        for behind, is_found in self._file.unlocked(self._asked, mine, most):
            self._asked = behind
            if is_found:
                self._adopt(behind - 1, now)

    def _adopt(self, number: int, now: float | None = None) -> None:
        """Take a slot that this process has just locked into care, unless it is free after all."""
        if self._file.state(number) == FREE:
            self._file.unlock(number)
            return
        since_s = self._clock() if now is None else now
        if number == LAST_RESORT:
            if self._last_resort_seen < since_s - 2 * DEAD_S:
                self._last_resort_since = since_s
            self._last_resort_seen, since_s = since_s, self._last_resort_since
        self._orphans.add(Slot(self._file, number, since_s=since_s))

    def _drop(self, slot: Slot, state: int | None) -> None:
        is_orphan = slot in self._orphans
        if slot.file is None or not (is_orphan or slot in self._slots):
            raise ValueError(f"slot {slot.number} is not held here")
        if state is not None:
            slot.file.write(slot.number, state)
        slot.file.unlock(slot.number)
        slot.file = None
        if is_orphan:
            self._orphans.discard(slot)
            return
        self._slots.discard(slot)
        self._kept[slot.for_control] -= slot.is_kept
        self._turns.count(-(not slot.for_control))

    def _keep(self, slot: Slot) -> None:
        kind = slot.for_control
        slot.is_kept = slot.number < self.reserved and self._kept[kind] < self._most_kept[kind]
        self._kept[kind] += slot.is_kept

    def _look(self, now: float) -> None:
        """See whether the path still names our file, and move when it does not."""
        if now < self._look_at:
            return
        self._look_at = now + FILE_CHECK_S
        if self._file.is_in_place():
            return
        try:
            new = SlotFile(self._path, patience_s=0)
        except ConfigError as error:
            log.error("the slot table was replaced, so who starts now cannot share it: %s", error)
            self._look_at = now + COMPLAIN_S
            return
        log.error("%s was removed while in use: moving to a new one", self._path)
        self._asked = 0
        self._find_orphans(now, SLOTS)
        self._left.append(self._file)
        self._file, self._turns = new, Turns(new, self._turns.holds)
        # Others move within a second, too: what is free until then may be theirs.
        self._paused_until = now + 2 * FILE_CHECK_S
        for slot in tuple(self._slots | self._orphans):
            self._move(slot, self.capacity)
        self.resize(self.capacity, self.reserved)

    def _move(self, slot: Slot, behind: int) -> None:
        """
        Take another place for *slot*, before the one *behind*; in a new file the same if it can.

        Without one it stays.
        """
        old, number = slot.file, -1
        if old is not self._file:
            number = self._lock_free(slot.number, slot.number + 1)
        if number < 0:
            number = self._lock_free(0, behind)
        if number < 0 or old is None:
            return
        self._file.write(number, old.state(slot.number), old.pid(slot.number))
        old.write(slot.number, FREE)
        old.unlock(slot.number)
        slot.file, slot.number = self._file, number
