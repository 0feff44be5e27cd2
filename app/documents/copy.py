"""
Copy a collection: one cursor reads, several threads write, and a checkpoint records the progress.

A copy that is killed at any moment continues from its checkpoint. It writes the batches that were
in progress again, with the same ``_id``s, so each document is stored once.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from threading import Event, Lock, Thread

from app.documents import ids
from app.documents.batches import Batch, DocumentBatches
from app.documents.checkpoint import BEAT_S, Checkpoint, Progress
from app.documents.failures import Failure
from app.documents.job import Job
from app.documents.reading import Reader
from app.documents.throttle import Throttle
from app.documents.transform import Prepared
from app.documents.writing import Writer
from greenline.errors import GreenlineError


def identity_of(source: str, target: str) -> bytes:
    """
    Return the key from which, with the old ids, the new ids of a copy are derived.

    :param source: server, database and collection, as in the checkpoint.
    :param target: database and collection.
    """
    # Without the target's server: a copy may continue under another name of it.
    return blake2b(f"{source}\n{target}".encode(), digest_size=32).digest()


class Copy:
    """
    Copy the documents that a job has left.

    :param job: the copy.
    :param on_progress: called with the number of documents done, int, about once a second.
    :param is_followed: the source's changes are applied afterwards, bool. Default False.
    """

    def __init__(
        self, job: Job, on_progress: Callable[[int], None], *, is_followed: bool = False
    ) -> None:
        self._job = job
        self._checkpoint = job.checkpoint
        self._recipe = job.recipe
        self._on_progress = on_progress
        self._stopping = job.stopping
        self._lock = Lock()
        self._failures = job.checkpoint.progress.failed
        self._throttle = Throttle(job.limits.max_rate, job.stopping)
        self._writer = Writer(job.target, self._throttle, job.stopping, is_followed=is_followed)

    def run(self) -> None:
        """
        Copy until the end, or until ``stopping`` is set.

        :raises GreenlineError: a server is unreachable for too long or refuses, too many documents
            fail, or another process has taken the copy over.
        """
        with CheckpointSaver(self._checkpoint, self._on_progress, self._stopping):
            batches = DocumentBatches(self._job.limits.batches_at_once, self._stopping, self._count)
            # The batches in progress are finished whatever ends the reading: the checkpoint then
            # covers them.
            try:
                with self._job.source.errors():
                    self._read(batches)
            finally:
                batches.finish()

    def _read(self, batches: DocumentBatches) -> None:
        limits = self._job.limits
        # No batch is larger than a second's worth of the rate.
        size = min(limits.batch, limits.max_rate or limits.batch)
        after = self._checkpoint.progress.after
        reader = Reader(self._job.source, batch=size, after=after, stopping=self._stopping)
        with closing(reader):
            for documents in reader:
                self._throttle.wait(len(documents))
                if self._stopping.is_set():
                    return
                size_bytes = sum(map(len, documents))
                if self._recipe.transform is not None:
                    # Called in this thread only: the user's function need not be thread-safe.
                    prepared = self._recipe.prepare(documents)
                    size_bytes += sum(map(len, prepared.documents))
                    work = partial(self._write, prepared)
                else:
                    # New ids are made in the writing thread while the next batch is read. Both
                    # forms of the batch are in memory then.
                    size_bytes *= 1 if self._recipe.is_plain else 2
                    work = partial(self._prepare_and_write, documents)
                batches.submit(Batch(ids.last_readable(documents)), size_bytes, work)

    def _prepare_and_write(self, documents: list[bytes], batch: Batch) -> None:
        self._write(self._recipe.prepare(documents), batch)

    def _write(self, prepared: Prepared, batch: Batch) -> None:
        refused = self._writer.write(prepared)
        batch.copied = len(prepared.documents) - len(refused)
        batch.skipped = prepared.skipped
        failures = [*prepared.failures, *refused]
        batch.failed = len(failures)
        if failures:
            self._fail(failures)

    def _fail(self, failures: list[Failure]) -> None:
        """
        Write failed documents to the file of failures.

        :raises StoreError: there are more than allowed.
        """
        # Before the batch is done, and so before the checkpoint covers it: a killed copy may write
        # a failure twice, but never loses one.
        self._job.failures.write(failures)
        # Several writing threads may fail at the same time.
        with self._lock:
            self._failures += len(failures)
            count = self._failures
        self._job.require_few(count, failures[0])

    def _count(self, batch: Batch) -> None:
        # Called for one batch at a time, in order: see DocumentBatches.
        self._checkpoint.progress = added(self._checkpoint.progress, batch)


class CheckpointSaver:
    """
    A thread that saves the checkpoint and shows the progress once a second, for a ``with`` block.

    If saving fails, the copy is stopped and the block ends with the error.

    :param checkpoint: it is saved.
    :param on_progress: called with the number of documents done, int.
    :param stopping: set after an error.
    """

    def __init__(
        self, checkpoint: Checkpoint, on_progress: Callable[[int], None], stopping: Event
    ) -> None:
        self._checkpoint = checkpoint
        self._on_progress = on_progress
        self._stopping = stopping
        self._ending = Event()
        self._error: GreenlineError | None = None
        self._thread = Thread(target=self._run, name="checkpoint", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *raised: object) -> None:
        self._ending.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        # The thread has ended: the last progress is saved here, also after an error of the block.
        self._checkpoint.save()
        self._show()

    def _run(self) -> None:
        try:
            while not self._ending.wait(BEAT_S):
                self._checkpoint.save()
                self._show()
        except GreenlineError as error:
            self._error = error
            self._stopping.set()

    def _show(self) -> None:
        done = self._checkpoint.progress
        self._on_progress(done.copied + done.skipped + done.failed)


def added(progress: Progress, batch: Batch) -> Progress:
    """
    Return the progress after a batch.

    :param progress: the progress after all batches before it.
    :param batch: the batch, which is done.
    """
    # A batch without a usable _id does not move the position; the next one covers it.
    return replace(
        progress,
        copied=progress.copied + batch.copied,
        skipped=progress.skipped + batch.skipped,
        failed=progress.failed + batch.failed,
        after=batch.last or progress.after,
    )
