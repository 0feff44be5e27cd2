"""What ``tests.deploy.noted`` notes: which worker began with which request."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Begun(NamedTuple):
    """A request, and the worker that began with it."""

    method: str
    number: int
    pid: int


class Notes:
    """What is noted in *folder*; ``environ`` tells the service to do it there."""

    def __init__(self, folder: Path, sleep_s: float = 0.0) -> None:
        self._file = folder / "noted"
        self._hold = folder / "hold"
        self._file.touch()
        self.environ = {
            "NOTED": str(self._file), "HOLD": str(self._hold), "NOTED_SLEEP": str(sleep_s),
        }  # fmt: skip

    def begun(self) -> list[Begun]:
        """Return all requests, in the order of their beginning."""
        lines = [line.split() for line in self._file.read_text().splitlines()]
        return [Begun(method, int(number), int(pid)) for method, number, pid in lines]

    def forget(self) -> None:
        """Forget what was noted so far."""
        os.truncate(self._file, 0)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let no request be worked on in the block."""
        self._hold.touch()
        try:
            yield
        finally:
            self._hold.unlink()
