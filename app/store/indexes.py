"""
MongoDB's indexes: each repository declares its own, and they are made, dropped and told here.

1. To make one that is there costs nothing, and whoever makes it at the same time is no matter.
2. One that cannot be made, for duplicates or for another of its kind, is told; the others are made.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic
from typing import Any

from pymongo import ASCENDING
from pymongo.database import Database
from pymongo.errors import OperationFailure

from app.store.ports import Document
from greenline.errors import Conflict, GreenlineError, StoreError, Unavailable

Lend = Callable[[], "AbstractContextManager[Database[Document]]"]

AGAIN_S = 1.0
INDEXES_WAIT_S = 1.0  # a check of health may take two
OTHERS_S = 5.0  # how long readiness waits for indexes that are not unique

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Index:
    """An index on *keys*, all ascending: it is read both ways. A *sparse* one skips the lacking."""

    keys: tuple[str, ...]
    unique: bool = False
    sparse: bool = False

    @property
    def name(self) -> str:
        """What it is called in the database."""
        return "_".join(key.replace(".", "_") for key in self.keys)


Declared = Mapping[str, Sequence[Index]]  # by collection


@dataclass(frozen=True, slots=True)
class Usage:
    """An index as the server has it; None is what it does not tell."""

    collection: str
    name: str
    keys: str
    size_bytes: int | None
    uses: int | None
    note: str = ""


class Indexes:
    """
    A worker's part: it makes what is missing, and is not ready before, but see ``check()``.

    :param lend: returns the block in which the database may be used.
    :param declared: the indexes by collection.
    :param require: raises GreenlineError while the server cannot be used: an index that is refused
        for a lack of rights is not tried again.
    """

    def __init__(self, lend: Lend, declared: Declared, require: Callable[[], object]) -> None:
        self._lend = lend
        self._require = require
        every = [(collection, index) for collection in declared for index in declared[collection]]
        self._left = sorted(every, key=lambda one: not one[1].unique)
        self._closed = Event()
        self._is_enough = Event()  # for readiness
        self._others_since: float | None = None  # when a check found none but these to be left

    def start(self) -> None:
        """Make the indexes in the background, the unique ones first."""
        Thread(target=self._make, name="indexes", daemon=True).start()

    def close(self) -> None:
        """Leave what is left; the server goes on with what it has begun."""
        self._closed.set()

    def check(self) -> None:
        """
        Wait a moment for the indexes: all are there at once on a new database.

        Before the unique ones are there, duplicates could get in. The others may take minutes on a
        large collection: after ``OTHERS_S`` in all it is served without them.

        Raises:
            Unavailable: names the one that is being made.
        """
        if self._is_enough.wait(INDEXES_WAIT_S):
            return
        collection, index = self._left[0]
        if not index.unique:
            self._others_since = self._others_since or monotonic()
            if monotonic() - self._others_since >= OTHERS_S:
                log.warning("ready while index %s of %s is being made", index.name, collection)
                self._is_enough.set()
                return
        raise Unavailable(f"index {index.name} of {collection} is being made")

    def _make(self) -> None:
        while self._left and not self._closed.is_set():
            try:
                self._require()
                self._make_next()
            except GreenlineError:  # the server cannot be used, which readiness tells
                self._closed.wait(AGAIN_S)
            except Exception:
                log.exception("making indexes failed")
                self._closed.wait(AGAIN_S)
        self._is_enough.set()

    def _make_next(self) -> None:
        collection, index = self._left[0]
        wrong = ensure(self._lend, collection, index)
        if wrong is not None:
            log.error("index %s of %s cannot be made: %s", index.name, collection, wrong)
        del self._left[0]


def ensure(lend: Lend, collection: str, index: Index) -> str | None:
    """
    Make *index* if it is missing; return why it cannot be made.

    Raises:
        StoreDown: the server cannot be reached.
    """
    keys = [(key, ASCENDING) for key in index.keys]
    options: dict[str, Any] = {
        option: True for option in ("unique", "sparse") if getattr(index, option)
    }
    try:
        with lend() as database:
            database[collection].create_index(keys, name=index.name, **options)
    except Conflict:
        return "there are duplicates"
    except StoreError as error:
        return str(error)
    return None


def drop(database: "Database[Document]", declared: Declared) -> Iterator[tuple[str, str]]:
    """Drop those of *declared* that are there; yield the collection and the name of each."""
    for collection, indexes in declared.items():
        there = database[collection].index_information()
        for index in indexes:
            if index.name in there:
                database[collection].drop_index(index.name)
                yield collection, index.name


def stats(database: "Database[Document]", declared: Declared) -> Iterator[Usage]:
    """Yield every index of the collections, and what is declared and missing."""
    for collection, indexes in declared.items():
        there = database[collection].index_information()
        sizes = _sizes(database, collection)
        uses = _uses(database, collection)
        names = {index.name for index in indexes}
        for name, told in there.items():
            keys = ", ".join(key for key, _ in told["key"])
            note = "" if name in names or name == "_id_" else "not declared"
            used = None if uses is None else uses.get(name, 0)
            yield Usage(collection, name, keys, sizes.get(name), used, note)
        for index in indexes:
            if index.name not in there:
                yield Usage(collection, index.name, ", ".join(index.keys), None, None, "missing")


def _sizes(database: "Database[Document]", collection: str) -> Mapping[str, int]:
    try:
        told: Mapping[str, int] = database.command("collStats", collection).get("indexSizes", {})
    except OperationFailure:
        return {}
    return told


def _uses(database: "Database[Document]", collection: str) -> dict[str, int] | None:
    """Return how often each index was used since the server, or it, began; of all shards."""
    uses: dict[str, int] = {}
    stage: dict[str, Any] = {"$indexStats": {}}
    try:
        for told in database[collection].aggregate([stage]):
            uses[told["name"]] = uses.get(told["name"], 0) + int(told["accesses"]["ops"])
    except OperationFailure:
        return None
    return uses
