"""The objects and limits that the parts of one copy share."""

from dataclasses import dataclass
from threading import Event

from app.documents.checkpoint import Checkpoint
from app.documents.endpoint import CollectionEndpoint
from app.documents.failures import Failure, FailureFile
from app.documents.progress import plural
from app.documents.transform import Recipe
from greenline.errors import StoreError


@dataclass(frozen=True)
class JobLimits:
    """
    The limits of a copy.

    :param batch: documents in a batch, int.
    :param batches_at_once: batches that are written at a time, int.
    :param max_rate: documents per second, int; None for no limit.
    :param max_errors: documents that may fail before the copy stops, int.
    """

    batch: int
    batches_at_once: int
    max_rate: int | None
    max_errors: int


@dataclass(frozen=True)
class Job:
    """
    A copy.

    :param source: the collection that is read.
    :param target: the collection that is written.
    :param checkpoint: the progress, from which the copy continues.
    :param recipe: the changes to documents.
    :param failures: the file of documents that fail.
    :param limits: the limits.
    :param stopping: set it to stop after the batches in progress.
    """

    source: CollectionEndpoint
    target: CollectionEndpoint
    checkpoint: Checkpoint
    recipe: Recipe
    failures: FailureFile
    limits: JobLimits
    stopping: Event

    def require_few(self, count: int, failure: Failure) -> None:
        """
        Refuse to continue after too many failures.

        :param count: documents that have failed so far, int.
        :param failure: one of them, for the message.
        :raises StoreError: there are more than ``max_errors``.
        """
        if count > self.limits.max_errors:
            raise StoreError(
                f"{count:,} {plural(count)} failed, and --max-errors is "
                f"{self.limits.max_errors:,}: {failure.reason} (see {self.failures.path})"
            )
