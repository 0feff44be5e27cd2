"""Write batches to the target: transient errors are retried, others are failures."""

from collections.abc import Mapping, Sequence
from threading import Event

from bson.raw_bson import RawBSONDocument

from app.documents import ids
from app.documents.endpoint import CollectionEndpoint
from app.documents.failures import Failure
from app.documents.refused import RefusedElement, refused_elements, target_errors
from app.documents.retry import NotYet, retrying
from app.documents.throttle import Throttle
from app.documents.transform import Prepared
from greenline.mongo.errors import DUPLICATE_KEY

OTHER_DOCUMENT = "the target has another document of this _id"


class Writer:
    """
    Write batches to a collection, from several threads.

    :param target: the collection.
    :param throttle: receives the pauses after errors of the target.
    :param stopping: once set, a failing target is not waited for.
    :param is_followed: changes follow, so a document that exists already is left unchanged, bool.
        Otherwise one that differs is a failure. Default False.
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
        Write a batch; return the documents that the target refuses.

        An equal document in the target counts as written, by an earlier attempt.

        :raises GreenlineError: the target is unreachable for too long, or refuses everything.
        """
        pending = list(range(len(prepared.documents)))
        failures: list[Failure] = []

        def attempt() -> None:
            nonlocal pending
            documents = [prepared.documents[index] for index in pending]
            refused = refused_elements(self._target, self._insert, documents)
            failed = self._failed([one for one in refused if not one.passes], documents)
            failures.extend(
                Failure(prepared.read[pending[index]], reason) for index, reason in failed.items()
            )
            # Only these are left for the next attempt: the other documents are decided.
            again = [one for one in refused if one.passes]
            pending = [pending[one.index] for one in again]
            if again:
                raise NotYet(again[0].reason)

        with target_errors(self._target):
            if pending:
                self._retry(attempt)
        return failures

    def _insert(self, documents: Sequence[bytes]) -> None:
        # Unordered: one refused document does not stop the others.
        raw = [RawBSONDocument(document) for document in documents]
        self._target.collection.insert_many(raw, ordered=False)

    def _failed(
        self, refused: Sequence[RefusedElement], documents: Sequence[bytes]
    ) -> dict[int, str]:
        """Return reasons by index, without documents that the target has already."""
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
        """Return by index whether the target's document with this ``_id``, if any, is equal."""
        if not duplicates:
            return {}
        elements = {index: ids.id_of(document) or b"" for index, document in duplicates.items()}
        readable = {element for element in elements.values() if ids.is_readable(element)}
        asked = {"_id": {"$in": [ids.value_of(element) for element in readable]}}
        # On the primary: a secondary may not have the document yet.
        found = self._target.on_primary().collection.find(asked)
        stored = {ids.id_of(raw): raw for raw in (bytes(one.raw) for one in found)}
        # An _id that cannot be decoded cannot be queried: its document counts as equal. A duplicate
        # that is absent violates another unique index.
        return {
            index: element not in readable or stored[element] == duplicates[index]
            for index, element in elements.items()
            if element not in readable or element in stored
        }
