"""
Compare two collections: counts, and a hash of each range of ``_id``.

The source is read once, the target by the ranges that come out. With new ids both are in different
orders: the ranges are then those of the new ids' first byte, and the hash is a sum.
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

RANGE = 50_000  # documents of a range
MAX_NAMED = 100_000  # documents of a range, in the target, of which those that differ are found
SHOWN = 5  # documents that are named, of all that differ
HASH_BYTES = 16
# Types whose values look the same.
TYPES = {0x02: "string", 0x0E: "symbol", 0x10: "int32", 0x12: "int64"}
MODULUS = 1 << (8 * HASH_BYTES)


@dataclass
class Side:
    """The documents of a range on one side: their number, and a sum of their hashes."""

    count: int = 0
    hash: int = 0

    @classmethod
    def of(cls, document: bytes) -> "Side":
        """Return a side of this one document."""
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
    What a comparison found.

    :param source: documents that should be in the target, int.
    :param refused: documents of the source for which the transform fails, int.
    :param target: documents that are there, int.
    :param ranges: how many were compared, int.
    :param differing: of which so many differ, int.
    :param examples: some of the documents that differ, in words.
    """

    source: int = 0
    refused: int = 0
    target: int = 0
    ranges: int = 0
    differing: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Return whether both sides have the same documents."""
        return not self.differing and not self.refused

    def add(self, source: Side, target: Side) -> bool:
        """Count a range; return whether both sides of it are equal."""
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
    Compare *source* with *target*.

    :param recipe: what became of the documents on their way; its transform is called again.
    :param on_progress: is given the documents of the source that were read, int.
    :param stopping: set it to end early: the result is then of what was compared.
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
        self._target = target.on_primary()
        self._recipe = recipe
        self._on_progress = on_progress
        self._stopping = stopping
        self._result = Result()

    def run(self) -> Result:
        """
        Return what is different.

        :raises GreenlineError: a server is away for too long, or refuses.
        """
        if self._recipe.identity is None:
            self._by_ranges()
        else:
            self._by_first_byte()
        return self._result

    def _by_ranges(self) -> None:
        first: bytes | None = None  # the first range has no lower end, and the last no upper one
        side, size = Side(), 0
        for document in self._counted(self._documents(self._source)):
            if size >= RANGE:
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
        for byte in named[:1]:  # each would take a pass
            self._name(
                _of_byte(byte, self._expected(self._documents(self._source))),
                _of_byte(byte, self._documents(self._target)),
            )

    def _expected(
        self, documents: Iterable[bytes], *, counts_refused: bool = False
    ) -> Iterator[bytes]:
        """Return what the target should have."""
        for document in documents:
            if self._recipe.is_plain:
                yield document
                continue
            try:
                made = self._recipe.one(document)
            except TransformRefused:  # it is in the file of those that failed
                self._result.refused += counts_refused
                continue
            if made is not None:
                yield made

    def _name(self, source: Iterable[bytes], target: Iterable[bytes]) -> None:
        """Add to the examples what differs in a range."""
        free = SHOWN - len(self._result.examples)
        if free <= 0:
            return
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
    """Return the first byte of an ObjectId; what has another ``_id`` is put somewhere, too."""
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
    """Return the type of an ``_id``, or its bytes: what tells it from one that looks the same."""
    return f" ({TYPES.get(element[0], element.hex())})" if element else ""
