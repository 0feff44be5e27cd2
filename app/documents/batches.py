"""
Several batches at once, and no more: a bounded number of them, and of their bytes.

A thread each writes them, and they end in any order. What is done is counted up to the first batch
that is not: everything before it is written, which is what a checkpoint may say.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Condition, Event

# However large the documents are, and however many batches there may be at once.
MAX_BYTES = 48 * 1024 * 1024


@dataclass
class Batch:
    """
    One batch on its way.

    :param last: element of its last ``_id``, None where it has none that may be asked for.
    :param copied: documents that are written, int; known at its end, as the others.
    """

    last: bytes | None = None
    copied: int = 0
    skipped: int = 0
    failed: int = 0
    is_done: bool = False


class DocumentBatches:
    """
    Run work for each batch in threads.

    :param at_once: how many run at a time, int.
    :param stopping: set by the caller to end early, and here when work fails.
    :param on_done: is given each batch when all before it are done, in their order.
    """

    def __init__(self, at_once: int, stopping: Event, on_done: Callable[[Batch], None]) -> None:
        self._at_once = at_once
        self._stopping = stopping
        self._on_done = on_done
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="batch")
        self._changed = Condition()
        self._open: deque[Batch] = deque()
        self._running = 0
        self._bytes = 0
        self.error: BaseException | None = None

    def submit(self, batch: Batch, size_bytes: int, work: Callable[[Batch], None]) -> None:
        """Call *work* with *batch* in a thread; wait while as many run as may."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(size_bytes))
            if self._stopping.is_set():
                return
            self._running += 1
            self._bytes += size_bytes
            self._open.append(batch)
        self._pool.submit(self._run, batch, size_bytes, work)

    def finish(self) -> None:
        """
        Wait for the batches that run.

        :raises BaseException: what the first piece of work that failed raised.
        """
        self._pool.shutdown()
        if self.error is not None:
            raise self.error

    def _has_room(self, size_bytes: int) -> bool:
        if self._stopping.is_set() or not self._running:
            return True
        return self._running < self._at_once and self._bytes + size_bytes <= MAX_BYTES

    def _run(self, batch: Batch, size_bytes: int, work: Callable[[Batch], None]) -> None:
        error: BaseException | None = None
        try:
            work(batch)
        except BaseException as raised:
            error = raised
        with self._changed:
            self._running -= 1
            self._bytes -= size_bytes
            batch.is_done = error is None
            if error is not None:
                self.error = self.error or error
                self._stopping.set()
            while self._open and self._open[0].is_done:
                self._on_done(self._open.popleft())
            self._changed.notify_all()
