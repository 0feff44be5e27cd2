"""
A slot as its holder sees it: how far its connect has come is written in the slot table.

What is written outlives the holder: whoever finds the slot of a killed one must know whether there
may be a backend, and which.
"""

from greenline.slots.file import HELD, SlotFile


class Slot:
    """Room for one backend; its *number* is used by the slot table and the log alone."""

    __slots__ = ("file", "for_control", "is_kept", "number", "since_s")

    def __init__(
        self, file: SlotFile, number: int, for_control: bool = False, since_s: float | None = None
    ) -> None:
        self.file: SlotFile | None = file  # None once it was given back
        self.number = number
        self.for_control = for_control
        self.is_kept = False  # one of those that nobody asks for
        self.since_s = since_s  # when it was found, an orphan

    def __repr__(self) -> str:
        kind = "orphan" if self.since_s is not None else "control" if self.for_control else "pool"
        return f"<Slot {self.number} {kind} pid={self.pid}>"

    @property
    def pid(self) -> int:
        """The backend's pid; 0 while it connects, and in an orphan that died then."""
        return self.file.pid(self.number) if self.file else 0

    def hold(self, pid: int) -> None:
        """Say that the connect ended well, with this backend, 0 where there is no pid to tell."""
        if self.file is None:
            raise ValueError(f"slot {self.number} was given back")
        self.file.write(self.number, HELD, pid)
