"""Batches into the target, unordered: what passes is repeated, what does not is a failure."""

from collections.abc import Mapping, Sequence
from threading import Event

from bson.raw_bson import RawBSONDocument

from app.documents import ids
from app.documents.endpoint import CollectionEndpoint
from app.documents.failures import Failure
from app.documents.refusals import Refusal, refusals, target_errors
from app.documents.retry import NotYet, retrying
from app.documents.throttle import Throttle
from app.documents.transform import Prepared
from greenline.mongo.errors import DUPLICATE_KEY

OTHER_DOCUMENT = "the target has another document of this _id"


class Writer:
    """
    Write batches into *target*; one for all threads.

    :param throttle: receives the pauses that the target's errors make.
    :param is_followed: a document that is there already is left alone, because changes follow,
        bool; else one that differs is a failure.
    """

    def __init__(
        self,
        target: CollectionEndpoint,
        throttle: Throttle,
        stopping: Event,
        *,
        is_followed: bool = False,
    ) -> None:
        self._target = target
        self._is_followed = is_followed
        self._retry = retrying(stopping, throttle.pause)

    def write(self, prepared: Prepared) -> list[Failure]:
        """
        Write the documents; return those that the target refuses.

        A document that is there already counts as written: an earlier attempt did it.

        :raises GreenlineError: the target is away for too long, or refuses all.
        """
        pending = list(range(len(prepared.documents)))
        failures: list[Failure] = []

        def attempt() -> None:
            nonlocal pending
            documents = [prepared.documents[index] for index in pending]
            refused = refusals(self._target, self._insert, documents)
            failed = self._failed([one for one in refused if not one.passes], documents)
            failures.extend(
                Failure(prepared.read[pending[index]], reason) for index, reason in failed.items()
            )
            again = [one for one in refused if one.passes]
            pending = [pending[one.index] for one in again]
            if again:
                raise NotYet(again[0].reason)

        with target_errors(self._target):
            if pending:
                self._retry(attempt)
        return failures

    def _insert(self, documents: Sequence[bytes]) -> None:
        raw = [RawBSONDocument(document) for document in documents]
        self._target.collection.insert_many(raw, ordered=False)

    def _failed(self, refused: Sequence[Refusal], documents: Sequence[bytes]) -> dict[int, str]:
        """Return by index why a document has failed; one that is there already has not."""
        failed = {one.index: one.reason for one in refused}
        duplicates = {
            one.index: documents[one.index] for one in refused if one.code == DUPLICATE_KEY
        }
        for index, is_there in self._there(duplicates).items():
            if is_there or self._is_followed:
                del failed[index]
            else:
                failed[index] = OTHER_DOCUMENT
        return failed

    def _there(self, duplicates: Mapping[int, bytes]) -> dict[int, bool]:
        """Return by index, where the target has the ``_id``, whether it has the same document."""
        if not duplicates:
            return {}
        elements = {index: ids.id_of(document) or b"" for index, document in duplicates.items()}
        readable = {element for element in elements.values() if ids.is_readable(element)}
        asked = {"_id": {"$in": [ids.value_of(element) for element in readable]}}
        found = self._target.on_primary().collection.find(asked)
        stored = {ids.id_of(raw): raw for raw in (bytes(one.raw) for one in found)}
        # An _id that cannot be decoded cannot be asked for: the document counts as there.
        return {
            index: element not in readable or stored[element] == duplicates[index]
            for index, element in elements.items()
            if element not in readable or element in stored
        }
