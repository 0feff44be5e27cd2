"""
Represent a slot for its holder, and record in the slot table how far its connect has come.

The record outlives the holder: the process that finds the slot of a killed one must know whether
there may be a backend, and its pid.
"""

from greenline.slots.file import HELD, SlotFile


class Slot:
    """
    Room for one backend.

    :param file: the file of the slot table, in which the slot is locked.
    :param number: the number of the slot, int; used by the slot table and the log only.
    :param for_control: whether it is for a control connection, bool. Default False.
    :param since_s: for an orphan, the time at which it was found, in seconds, float. Default None.
    """

    __slots__ = ("file", "for_control", "is_kept", "number", "since_s")

    def __init__(
        self, file: SlotFile, number: int, for_control: bool = False, since_s: float | None = None
    ) -> None:
        self.file: SlotFile | None = file  # None after its release
        self.number = number
        self.for_control = for_control
        self.is_kept = False  # reserved for this process: not given to others
        self.since_s = since_s  # set for an orphan only

    def __repr__(self) -> str:
        kind = "orphan" if self.since_s is not None else "control" if self.for_control else "pool"
        return f"<Slot {self.number} {kind} pid={self.pid}>"

    @property
    def pid(self) -> int:
        """The backend's pid; 0 while it connects, and in an orphan that died at that time."""
        return self.file.pid(self.number) if self.file else 0

    def hold(self, pid: int) -> None:
        """Record that the connect succeeded, with the backend's *pid*, 0 if it has none."""
        if self.file is None:
            raise ValueError(f"slot {self.number} was given back")
        self.file.write(self.number, HELD, pid)
