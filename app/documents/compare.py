"""
Compare two collections by count and by a hash of each range of ``_id``.

The source is read once, and the target by the ranges that result. With new ids the two sides have
different orders: the ranges are then those of the new ids' first byte.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from threading import Event

from bson.errors import BSONError

from app.documents import ids
from app.documents.endpoint import CollectionEndpoint
from app.documents.reading import BATCH, Reader
from app.documents.transform import Recipe, TransformRefused

RANGE_DOCUMENTS = 50_000  # documents in a range
MAX_NAMED = 100_000  # in a larger range of the target the differing documents are not searched for
MAX_EXAMPLES = 5  # differing documents that are named
HASH_BYTES = 16
# Types whose values look the same in a message.
TYPES = {0x02: "string", 0x0E: "symbol", 0x10: "int32", 0x12: "int64"}
MODULUS = 1 << (8 * HASH_BYTES)


@dataclass
class Side:
    """
    The documents of a range on one side.

    :param count: their number, int. Default 0.
    :param hash: the sum of their hashes, int, which does not depend on their order. Default 0.
    """

    count: int = 0
    hash: int = 0

    @classmethod
    def of(cls, document: bytes) -> "Side":
        """Return a side that has only *document*."""
        side = cls()
        side.add(document)
        return side

    def add(self, document: bytes) -> None:
        """Count *document*."""
        digest = blake2b(document, digest_size=HASH_BYTES).digest()
        self.hash = (self.hash + int.from_bytes(digest, "little")) % MODULUS
        self.count += 1


@dataclass
class Result:
    """
    The result of a comparison.

    :param source: documents that should be in the target, int.
    :param refused: documents of the source for which the transform fails, int.
    :param target: documents in the target, int.
    :param ranges: ranges that were compared, int.
    :param differing: ranges that differ, int.
    :param examples: descriptions of some documents that differ.
    """

    source: int = 0
    refused: int = 0
    target: int = 0
    ranges: int = 0
    differing: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether both sides have the same documents."""
        return not self.differing and not self.refused

    def add(self, source: Side, target: Side) -> bool:
        """
        Count a range.

        :param source: the range in the source.
        :param target: the same range in the target.
        :returns: whether they are equal.
        """
        self.source += source.count
        self.target += target.count
        self.ranges += 1
        is_equal = source == target
        self.differing += not is_equal
        return is_equal

    def __str__(self) -> str:
        ranges = f"{self.ranges:,} {'range' if self.ranges == 1 else 'ranges'}"
        if self.is_equal:
            return f"equal: {self.source:,} documents on both sides, the same hash in {ranges}"
        shown = "".join(f"; {example}" for example in self.examples)
        refused = f" and {self.refused:,} that the transform refuses" if self.refused else ""
        return (
            f"different: {self.source:,} documents in the source{refused}, {self.target:,} in the "
            f"target, {self.differing:,} of {ranges} with another hash{shown}"
        )


class Comparison:
    """
    Compare two collections.

    :param source: the source of the copy.
    :param target: its target.
    :param recipe: the copy's changes to documents; its transform is called again.
    :param on_progress: called with the number of documents read from the source, int.
    :param stopping: set it to end early; the result then covers the ranges compared so far.
    """

    def __init__(
        self,
        source: CollectionEndpoint,
        target: CollectionEndpoint,
        recipe: Recipe,
        on_progress: Callable[[int], None],
        stopping: Event,
    ) -> None:
        self._source = source
        # A secondary may not have the last documents of the copy yet.
        self._target = target.on_primary()
        self._recipe = recipe
        self._on_progress = on_progress
        self._stopping = stopping
        self._result = Result()

    def run(self) -> Result:
        """
        Compare all documents.

        :raises GreenlineError: a server is unreachable for too long, or refuses.
        """
        if self._recipe.identity is None:
            self._by_ranges()
        else:
            self._by_first_byte()
        return self._result

    def _by_ranges(self) -> None:
        # The first range has no lower end and the last no upper one, so that documents which only
        # the target has are counted wherever they are.
        first: bytes | None = None
        side, size = Side(), 0
        for document in self._counted(self._documents(self._source)):
            if size >= RANGE_DOCUMENTS:
                # A range ends only at an _id that a query may contain.
                end = ids.id_of(document)
                if end is not None and ids.is_readable(end):
                    self._compare_range(side, first, end)
                    first, side, size = end, Side(), 0
            size += 1
            for made in self._expected([document], counts_refused=True):
                side.add(made)
        self._compare_range(side, first, None)

    def _compare_range(self, source: Side, first: bytes | None, end: bytes | None) -> None:
        target = Side()
        for document in self._documents(self._target, first, end):
            target.add(document)
        if self._stopping.is_set() or self._result.add(source, target):
            return
        # All ids of the target's range are held in memory to find the differing documents.
        if target.count > MAX_NAMED:
            return
        self._name(
            self._expected(self._documents(self._source, first, end)),
            self._documents(self._target, first, end),
        )

    def _by_first_byte(self) -> None:
        sources = [Side() for _ in range(256)]
        targets = [Side() for _ in range(256)]
        documents = self._counted(self._documents(self._source))
        for document in self._expected(documents, counts_refused=True):
            sources[_first_byte(document)].add(document)
        for document in self._documents(self._target):
            targets[_first_byte(document)].add(document)
        if self._stopping.is_set():
            return
        pairs = enumerate(zip(sources, targets, strict=True))
        differing = {byte for byte, pair in pairs if not self._result.add(*pair)}
        named = [byte for byte in sorted(differing) if targets[byte].count <= MAX_NAMED]
        for byte in named[:1]:  # each takes another pass over both collections
            self._name(
                _of_byte(byte, self._expected(self._documents(self._source))),
                _of_byte(byte, self._documents(self._target)),
            )

    def _expected(
        self, documents: Iterable[bytes], *, counts_refused: bool = False
    ) -> Iterator[bytes]:
        """Yield the documents that the target should have."""
        for document in documents:
            if self._recipe.is_plain:
                yield document
                continue
            try:
                made = self._recipe.one(document)
            except TransformRefused:  # the copy has written it to the file of failures
                self._result.refused += counts_refused
                continue
            if made is not None:
                yield made

    def _name(self, source: Iterable[bytes], target: Iterable[bytes]) -> None:
        """Add the documents that differ in a range to the examples."""
        free = MAX_EXAMPLES - len(self._result.examples)
        if free <= 0:
            return
        # By element, not by value: values that Python takes for equal may be two documents.
        theirs = {ids.id_of(one): Side.of(one).hash for one in target}
        found: list[tuple[bytes | None, str]] = []
        for document in source:
            element = ids.id_of(document)
            there = theirs.pop(element, None)
            if there is None:
                found.append((element, "is missing in the target"))
            elif there != Side.of(document).hash:
                found.append((element, "has another content"))
        found += [(element, "is in the target alone") for element in theirs]
        texts = Counter(_shown(element) for element, _ in found)
        for element, what in found[:free]:
            shown = _shown(element)
            kind = _kind(element) if texts[shown] > 1 else ""
            self._result.examples.append(f"_id {shown}{kind} {what}")

    def _documents(
        self, side: CollectionEndpoint, first: bytes | None = None, end: bytes | None = None
    ) -> Iterator[bytes]:
        reader = Reader(side, first=first, end=end, stopping=self._stopping)
        with side.errors():
            for documents in reader:
                if self._stopping.is_set():
                    return
                yield from documents

    def _counted(self, documents: Iterable[bytes]) -> Iterator[bytes]:
        for number, document in enumerate(documents, start=1):
            if number % BATCH == 0:
                self._on_progress(number)
            yield document


def _first_byte(document: bytes) -> int:
    """Return the first byte of an ObjectId, and some byte for any other ``_id``."""
    # All new ids are ObjectIds; a document with another _id did not come from the copy.
    element = ids.id_of(document) or b""
    return element[len(ids.OBJECT_ID)] if len(element) > len(ids.OBJECT_ID) else 0


def _of_byte(byte: int, documents: Iterable[bytes]) -> Iterator[bytes]:
    return (document for document in documents if _first_byte(document) == byte)


def _shown(element: bytes | None) -> str:
    try:
        return repr(ids.value_of(element or b""))
    except BSONError:
        return repr(element)


def _kind(element: bytes | None) -> str:
    """Return the type of an ``_id``, or its bytes, which differ from one that looks the same."""
    return f" ({TYPES.get(element[0], element.hex())})" if element else ""
