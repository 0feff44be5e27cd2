"""
Process batches in threads, with a bounded number of batches and of bytes at a time.

Batches finish in any order and are reported in their own order, so that everything up to a
reported batch is done.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Condition, Event

# The size of all batches in progress, whatever their number.
MAX_BYTES = 48 * 1024 * 1024


@dataclass
class Batch:
    """
    The state of one batch; the numbers are valid when it is done.

    :param last: element of its last ``_id`` that a query may contain, None if it has none.
    :param copied: documents that are written, int.
    :param skipped: documents that the transform left out, int.
    :param failed: documents that could not be written, int.
    :param is_done: its work ended without an error, bool.
    """

    last: bytes | None = None
    copied: int = 0
    skipped: int = 0
    failed: int = 0
    is_done: bool = False


class DocumentBatches:
    """
    Run the work of each batch in a thread.

    :param at_once: batches in progress at a time, int.
    :param stopping: set by the caller to end early, and by this class after an error.
    :param on_done: called with each batch in order, once all batches before it are done.
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
        """
        Call *work* with *batch* in a thread, after waiting until there is room for it.

        :param batch: the batch.
        :param size_bytes: memory that it takes, int.
        :param work: sets the numbers of the batch.
        """
        # The batch is counted before its thread starts: the next call sees the room that is left.
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
        Wait for the batches in progress.

        :raises BaseException: the first error of a batch's work.
        """
        self._pool.shutdown()
        if self.error is not None:
            raise self.error

    def _has_room(self, size_bytes: int) -> bool:
        # One batch may always run, even if it alone exceeds the limit of bytes.
        if self._stopping.is_set() or not self._running:
            return True
        return self._running < self._at_once and self._bytes + size_bytes <= MAX_BYTES

    def _run(self, batch: Batch, size_bytes: int, work: Callable[[Batch], None]) -> None:
        error: BaseException | None = None
        try:
            work(batch)
        except BaseException as raised:
            error = raised
        # Critical section: on_done is called for one batch at a time, in order.
        with self._changed:
            self._running -= 1
            self._bytes -= size_bytes
            batch.is_done = error is None
            if error is not None:
                self.error = self.error or error
                self._stopping.set()
            # A batch that failed stays at the front: no later one is reported.
            while self._open and self._open[0].is_done:
                self._on_done(self._open.popleft())
            self._changed.notify_all()
