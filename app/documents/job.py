"""What the parts of one copy have in common."""

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
    How much at a time.

    :param batch: documents in a batch, int.
    :param batches_at_once: how many are written at a time, int.
    :param max_rate: documents a second, int; None does not limit them.
    :param max_errors: documents that may fail before the copy stops, int.
    """

    batch: int
    batches_at_once: int
    max_rate: int | None
    max_errors: int


@dataclass(frozen=True)
class Job:
    """
    Copy *source* into *target*, from where *checkpoint* is.

    :param recipe: what becomes of a document.
    :param failures: the file of documents that fail.
    :param stopping: set it to stop after what is on its way.
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
        Refuse to go on after too many failures.

        :param count: documents that have failed so far, int.
        :param failure: the last one.
        :raises StoreError: they are more than may be.
        """
        if count > self.limits.max_errors:
            raise StoreError(
                f"{count:,} {plural(count)} failed, and --max-errors is "
                f"{self.limits.max_errors:,}: {failure.reason} (see {self.failures.path})"
            )
