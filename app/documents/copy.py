"""
Copy a collection: one cursor reads, several threads write, and a checkpoint follows.

Memory is bounded by the batches on their way. A copy that is killed at any moment goes on from its
checkpoint, and writes again what was on its way: under the same ``_id``s, so that it is there once.
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
    Return what the new ids of a copy are made from, besides the old ones.

    :param source: server, database and collection, as the checkpoint has them.
    :param target: database and collection: the server may have another name tomorrow.
    """
    return blake2b(f"{source}\n{target}".encode(), digest_size=32).digest()


class Copy:
    """
    Copy all that *job* has left.

    :param on_progress: is given the documents done, int, about once a second.
    :param is_followed: the source's changes are applied afterwards, bool, default False.
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
        Copy until the end, or until ``stopping`` is set; the checkpoint says how far it is.

        :raises GreenlineError: a server is away for too long or refuses, too many documents fail,
            or another process has taken the copy over.
        """
        with Keeper(self._checkpoint, self._on_progress, self._stopping):
            batches = DocumentBatches(self._job.limits.batches_at_once, self._stopping, self._count)
            try:
                with self._job.source.errors():
                    self._read(batches)
            finally:
                batches.finish()

    def _read(self, batches: DocumentBatches) -> None:
        limits = self._job.limits
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
                    # One thread calls the user's function: it need not be made for several.
                    prepared = self._recipe.prepare(documents)
                    size_bytes += sum(map(len, prepared.documents))
                    work = partial(self._write, prepared)
                else:
                    # New ids are made while the source's next answer is on its way; both are held.
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
        Keep what failed in the file, before the checkpoint goes beyond it.

        :raises StoreError: it is more than may be.
        """
        self._job.failures.write(failures)
        with self._lock:
            self._failures += len(failures)
            count = self._failures
        self._job.require_few(count, failures[0])

    def _count(self, batch: Batch) -> None:
        self._checkpoint.progress = added(self._checkpoint.progress, batch)


class Keeper:
    """
    A thread that writes the checkpoint once a second, and shows the progress.

    Should that fail, the copy stops, and the block ends with the error.
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
    """Return *progress* with *batch*: all before it are done."""
    return replace(
        progress,
        copied=progress.copied + batch.copied,
        skipped=progress.skipped + batch.skipped,
        failed=progress.failed + batch.failed,
        after=batch.last or progress.after,
    )
