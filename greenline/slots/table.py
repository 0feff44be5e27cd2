"""
Share a host's connections to one server, as slots, among all processes of one user.

A process acquires a slot before it connects, and releases it when the backend has ended. Each slot
is a byte that one process has locked; the kernel's locks alone guarantee that no slot is held
twice, and everything else in the file is a hint. A slot that was neither released nor is locked is
an orphan: its holder was killed, and its backend may live on.

No method waits, and none may be called from two threads at once. A forked child does not use the
slot table of its parent, but opens its own.
"""

import logging
from collections.abc import Callable
from math import inf
from pathlib import Path
from time import monotonic

from greenline.errors import ConfigError
from greenline.slots.file import CONNECTING, FREE, PUBLISHED_CAPACITY, SLOTS, SlotFile
from greenline.slots.pool_share import PoolShares
from greenline.slots.process_share import ProcessShare
from greenline.slots.slot import Slot

# One slot beyond the capacity, for a control connection that finds no other one. So at most
# ``capacity + MAX_OVERFLOW`` slots are held; after a decrease of the capacity, at most
# ``MAX_OVERFLOW`` more than were held before it.
MAX_OVERFLOW, LAST_RESORT = 1, SLOTS - 1
FILE_CHECK_S, COMPLAIN_S = 1.0, 60.0
# The backend of a control connection is idle, so it ends within this time after its client.
DEAD_S = 1.0
RESCUE_S = 10.0
# Questions to the kernel in one search for orphans: 0.2 ms, or 2 ms where 4,000 slots are held.
MAX_ASKED = 128

log = logging.getLogger(__name__)


class SlotTable:
    """
    This process's part in a slot table; open it after the fork.

    No slot can be acquired before ``resize()`` sets the capacity.

    :param path: the location of the file, Path, as from :func:`path`.
    :param floor: slots that each process keeps for its pools, besides one for its control
        connection, int. Default 1.
    :param clock: returns the time in seconds, the same in all processes. Default
        ``time.monotonic``.
    :raises ConfigError: the file cannot be used; the text names it.
    """

    def __init__(
        self, path: Path, *, floor: int = 1, clock: Callable[[], float] = monotonic
    ) -> None:
        self.capacity = self.reserved = 0
        self._path = path
        self._clock = clock
        self._max_kept = (floor, 1)  # for the pool, for control
        self._kept = [0, 0]
        self._slots: set[Slot] = set()
        self._orphans: set[Slot] = set()
        self._asked = 0  # where the last search for orphans ended
        self._none_beyond = b""  # the states of the slots beyond the capacity, when none is held
        self._paused_until = 0.0
        self._without_control_since: float | None = None
        # Since when the last resort is an orphan, however often it was abandoned, and when it was
        # last seen.
        self._last_resort_since, self._last_resort_seen = 0.0, -inf
        self._look_at = clock() + FILE_CHECK_S
        self._left: list[SlotFile] = []  # removed files with slots that could not be moved
        self._file = SlotFile(path)
        self._share = ProcessShare(self._file)
        self.shares = PoolShares(clock)
        self.resize(0)

    def __repr__(self) -> str:
        stats = " ".join(f"{name}={value}" for name, value in self.stats().items())
        return f"<SlotTable {self._path.name} row={self._file.row} {stats}>"

    def stats(self) -> dict[str, int]:
        """
        Return counts of slots: ``capacity``; ``held`` by this process; ``held_by_all``; ``free``;
        ``orphans`` in this process's care; ``waiting``, 1 if this process waits for one; and
        ``wanting``, the number of all processes that wait. Counts of other processes are hints.
        """
        now = self._clock()
        is_waiting = self._share.is_requesting(now)
        return {
            "capacity": self.capacity,
            "held": len(self._slots),
            "held_by_all": SLOTS - self._file.states(0, SLOTS).count(FREE),
            "free": self._file.states(0, self.capacity).count(FREE),
            "orphans": len(self._orphans),
            "waiting": int(is_waiting),
            "wanting": is_waiting + len(list(self._share.requests(now))),
        }

    def pids(self) -> list[int]:
        """Return the process ids of the backends in the slots of all processes; a hint."""
        states = self._file.states(0, SLOTS)
        found = (self._file.pid(number) for number, state in enumerate(states) if state != FREE)
        return [pid for pid in found if pid]

    @property
    def published(self) -> int:
        """The capacity that a process has read from the server; 0 if none has."""
        return self._file.cells[PUBLISHED_CAPACITY]

    def publish(self, capacity: int) -> None:
        """Record the *capacity* that was read from the server, for all processes."""
        # A starting process begins with it; each one resizes its own part.
        self._file.cells[PUBLISHED_CAPACITY] = capacity

    def resize(self, capacity: int, reserved: int = 0) -> None:
        """
        Set the capacity. Call ``is_over()`` for each held slot afterwards.

        With ``reserved`` at ``1 + floor`` for each process that may live, each process has slots of
        its own; a further process depends on the shared slots.

        :param capacity: the number of slots, int.
        :param reserved: how many of them, from the first on, are kept for control connections and
            for the *floor* of each process, int. Default 0.
        """
        self.capacity = min(max(capacity, 0), LAST_RESORT)
        self.reserved = min(max(reserved, 0), self.capacity)
        self._none_beyond = bytes(LAST_RESORT - self.capacity)
        self._kept = [0, 0]
        for slot in sorted(self._slots, key=lambda slot: slot.number):
            self._keep(slot)

    def take(self, *, for_control: bool = False) -> Slot | None:
        """
        Acquire a slot to connect in.

        :param for_control: whether it is for a control connection, which does not wait for its
            turn, bool. Default False.
        :returns: the slot, or None if this process may have none now; then call ``request()``
            and try again after some milliseconds.
        :raises RuntimeError: the table was opened by the parent of this process, or is closed.
        """
        self._file.require_open()
        now = self._clock()
        self._look(now)
        if now < self._paused_until:
            return None
        number = -1
        # Reserved slots first: they are not asked back, and the shared ones stay free for others.
        if self._kept[for_control] < self._max_kept[for_control]:
            number = self._lock_free(0, self.reserved)
        if number < 0 and not self._is_full() and (for_control or not self._share.is_anothers(now)):
            number = self._lock_free(self.reserved, self.capacity)
        # When all processes were killed at once all slots are orphans, and one control connection
        # must be able to ask the server for their backends.
        if number < 0 and for_control and self._is_alone(now) and self._lock_last_resort(now):
            number = LAST_RESORT
        if number < 0:
            return None
        if for_control:
            self._without_control_since = None
        # Written before the connect: if this process is killed meanwhile, the slot is an orphan and
        # not free.
        self._file.write(number, CONNECTING)
        slot = Slot(self._file, number, for_control)
        self._slots.add(slot)
        self._keep(slot)
        self._share.end_request()
        self._share.count(not for_control)
        return slot

    def give(self, slot: Slot) -> None:
        """Release *slot*, or an orphan, whose backend has ended or was never requested."""
        self._drop(slot, FREE)

    def abandon(self, slot: Slot) -> None:
        """Leave *slot*, or an orphan, whose backend may still live, to another process's care."""
        self._drop(slot, None)

    def is_over(self, slot: Slot) -> bool:
        """
        Return whether *slot* is beyond the capacity now, so that its connection must be closed.
        """
        return self.capacity <= slot.number < LAST_RESORT or slot.file is not self._file

    def orphans(self) -> list[Slot]:
        """
        Search for orphans and return those in this process's care. Call it about once a second.

        Each has its backend's ``pid``, if known, and ``since_s``. The search takes microseconds for
        each slot held. Call it only if this process can ask the server, since no other process sees
        the orphans in its care; call :meth:`abandon_orphans` when it no longer can.
        """
        now = self._clock()
        self._look(now)
        self._find_orphans(now, MAX_ASKED)
        for slot in [slot for slot in self._slots if slot.for_control and not slot.is_kept]:
            # Into a reserved one, so that the pools may have this one.
            self._move(slot, self.reserved if slot.number < self.capacity else self.capacity)
            self._keep(slot)
        return sorted(self._orphans, key=lambda slot: slot.number)

    def abandon_orphans(self) -> None:
        """Leave all orphans in this process's care to another process."""
        for orphan in tuple(self._orphans):
            self.abandon(orphan)

    def request(self) -> None:
        """Record that this process waits for a slot; the record lasts for a tenth of a second."""
        self._file.require_open()
        self._share.request(self._clock())

    def should_give(self, slot: Slot) -> bool:
        """
        Return whether *slot*, which was just returned, is for a process that waits and holds fewer.

        If it returns True, the slot is reserved for that process: close its connection at once,
        because no other process gives up a slot for the same request.
        """
        now = self._clock()
        return self._share.has_requests(now) and not slot.is_kept and self._share.reserve(now)

    def is_wanted(self, slot: Slot) -> bool:
        """
        Return whether a process waits that could use *slot*, which is idle here and not the last
        one.
        """
        now = self._clock()
        if not self._share.has_requests(now) or slot.is_kept or self._share.holds < 2:
            return False
        return any(True for _ in self._share.requests(now))

    def fewest_waiting(self) -> float:
        """Return the fewest slots of another process that waits for one; infinite: none waits."""
        return min((one.holds for one in self._share.requests(self._clock())), default=inf)

    def close(self) -> None:
        """
        End this process's part; slots that it still holds become orphans.

        The last process removes the file, if no slot is held.
        """
        # A slot without a file: a connection that is closed later does not release it again.
        for slot in self._slots | self._orphans:
            slot.file = None
        self._slots.clear()
        self._orphans.clear()
        self._file.remove_unused()
        for file in (self._file, *self._left):
            file.close()

    def _is_full(self) -> bool:
        """Return whether, after a decrease, at least as many are held as the capacity allows."""
        # Slots beyond the capacity are held until their connections are closed. Each counts against
        # a free slot within the capacity. The usual case, none beyond, is one comparison of bytes.
        beyond = self._file.states(self.capacity, LAST_RESORT)
        if beyond == self._none_beyond:
            return False
        return len(beyond) - beyond.count(FREE) >= self._file.states(0, self.capacity).count(FREE)

    def _lock_free(self, first: int, behind: int) -> int:
        """Lock a free slot of a range and return its number, -1 if there is none."""
        file = self._file
        number = file.find_free(first, behind)
        while number >= 0:
            if file.lock(number):
                # The state was a hint before the lock: another process may have taken the slot and
                # died since.
                if file.state(number) == FREE:
                    return number
                self._adopt(number)
            number = file.find_free(number + 1, behind)
        return -1

    def _is_alone(self, now: float) -> bool:
        """
        Return whether, as far as this process knows, no other process can look after the orphans.
        """
        if self._without_control_since is None:
            self._without_control_since = now
        # After RESCUE_S without a control slot, locks of other processes do not count: all of them
        # may be stopped processes, which hold their locks and ask nothing.
        is_patient = now < self._without_control_since + RESCUE_S
        return not (is_patient and self._file.is_held_by_others(LAST_RESORT))

    def _lock_last_resort(self, now: float) -> bool:
        """Lock the last resort, also as an orphan that is old enough."""
        if not any(self._is_last_resort(slot) for slot in self._slots | self._orphans):
            if not self._file.lock(LAST_RESORT):
                return False
            if self._file.state(LAST_RESORT) == FREE:
                return True
            self._adopt(LAST_RESORT, now)
        # Other orphans are looked up in pg_stat_activity; here there may be no process left that
        # can ask the server. The backend of this orphan was idle, so it has ended after DEAD_S.
        for slot in filter(self._is_last_resort, self._orphans):
            if slot.since_s is not None and now >= slot.since_s + DEAD_S:
                self._orphans.discard(slot)
                slot.file = None
                self._last_resort_seen = -inf
                return True
        return False

    def _is_last_resort(self, slot: Slot) -> bool:
        return slot.number == LAST_RESORT and slot.file is self._file

    def _find_orphans(self, now: float, max_asked: int) -> None:
        # The slots of a removed file have numbers of their own.
        mine = {slot.number for slot in self._slots | self._orphans if slot.file is self._file}
        for behind, is_found in self._file.unlocked(self._asked, mine, max_asked):
            self._asked = behind
            if is_found:
                self._adopt(behind - 1, now)

    def _adopt(self, number: int, now: float | None = None) -> None:
        """
        Take a slot that this process has just locked into its care, unless it is free after all.
        """
        if self._file.state(number) == FREE:
            self._file.unlock(number)
            return
        since_s = self._clock() if now is None else now
        # While no process can connect, the last resort is adopted and abandoned repeatedly: its age
        # counts from the first time.
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
            # An abandoned slot keeps its state: a slot that is unlocked and not FREE is an orphan,
            # and no process connects in it. The state is written while the lock is held.
            slot.file.write(slot.number, state)
        slot.file.unlock(slot.number)
        slot.file = None
        if is_orphan:
            self._orphans.discard(slot)
            return
        self._slots.discard(slot)
        self._kept[slot.for_control] -= slot.is_kept
        self._share.count(-(not slot.for_control))

    def _keep(self, slot: Slot) -> None:
        kind = slot.for_control
        # Each process keeps a reserved slot for its control connection, and *floor* for its pools.
        slot.is_kept = slot.number < self.reserved and self._kept[kind] < self._max_kept[kind]
        self._kept[kind] += slot.is_kept

    def _look(self, now: float) -> None:
        """Check whether the path still names the file, and move to the new one if not."""
        if now < self._look_at:
            return
        self._look_at = now + FILE_CHECK_S
        # systemd's RemoveIPC, for instance, removes the files of a user at the logout.
        if self._file.is_in_place():
            return
        try:
            new = SlotFile(self._path, patience_s=0)
        except ConfigError as error:
            log.error(
                "the slot table's file was replaced and cannot be used, so new processes do not "
                "share its slots: %s",
                error,
            )
            self._look_at = now + COMPLAIN_S
            return
        log.error("%s was removed while in use: moving to a new one", self._path)
        self._asked = 0
        # New processes do not open the old file: one search adopts all of its orphans.
        self._find_orphans(now, SLOTS)
        self._left.append(self._file)
        self._file, self._share = new, ProcessShare(new, self._share.holds)
        # The other processes move within FILE_CHECK_S: until then a slot that is free in the new
        # file may be held in the old one.
        self._paused_until = now + 2 * FILE_CHECK_S
        for slot in tuple(self._slots | self._orphans):
            self._move(slot, self.capacity)
        self.resize(self.capacity, self.reserved)

    def _move(self, slot: Slot, behind: int) -> None:
        """
        Exchange *slot* for a free one before *behind*, in a new file for the same number if
        possible.
        """
        old, number = slot.file, -1
        if old is not self._file:
            number = self._lock_free(slot.number, slot.number + 1)
        if number < 0:
            number = self._lock_free(0, behind)
        # Without a free slot it stays; in a removed file is_over() is true for it.
        if number < 0 or old is None:
            return
        # The new slot is written before the old one is freed: a process that is killed in between
        # leaves its backend in two slots, not in none.
        self._file.write(number, old.state(slot.number), old.pid(slot.number))
        old.write(slot.number, FREE)
        old.unlock(slot.number)
        slot.file, slot.number = self._file, number
