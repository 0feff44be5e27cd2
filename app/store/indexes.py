"""Create, drop and list the indexes in MongoDB that the repositories declare."""

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

Checkout = Callable[[], "AbstractContextManager[Database[Document]]"]

AGAIN_S = 1.0
INDEXES_WAIT_S = 1.0  # a health check may take two seconds
OTHERS_S = 5.0  # seconds that readiness waits for indexes that are not unique

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Index:
    """
    An index of a collection.

    :param keys: field names, all ascending; an index is read in both directions.
    :param unique: bool. Default False.
    :param sparse: documents without the field are not in it, bool. Default False.
    """

    keys: tuple[str, ...]
    unique: bool = False
    sparse: bool = False

    @property
    def name(self) -> str:
        """The name of the index in the database."""
        return "_".join(key.replace(".", "_") for key in self.keys)


Declared = Mapping[str, Sequence[Index]]  # by collection


@dataclass(frozen=True, slots=True)
class Usage:
    """
    An index as the server reports it; None where it does not report a number.

    :param collection: its name, str.
    :param name: of the index, str.
    :param keys: the indexed fields, as text, str.
    :param size_bytes: its size, int, or None.
    :param uses: operations that used it since the server started, int, or None.
    :param note: what is wrong with it, str. Default empty.
    """

    collection: str
    name: str
    keys: str
    size_bytes: int | None
    uses: int | None
    note: str = ""


class Indexes:
    """
    Create the missing indexes in the background of a worker; readiness waits for them.

    :param checkout: returns the block in which the database may be used.
    :param declared: the indexes by collection.
    :param require: raises GreenlineError while the server cannot be used. It is called before each
        index, because an index that is refused for a lack of rights is not tried again.
    """

    def __init__(
        self, checkout: Checkout, declared: Declared, require: Callable[[], object]
    ) -> None:
        self._checkout = checkout
        self._require = require
        every = [(collection, index) for collection in declared for index in declared[collection]]
        # The unique ones first: only they protect the data.
        self._left = sorted(every, key=lambda one: not one[1].unique)
        self._closed = Event()
        self._is_enough = Event()  # for readiness
        self._others_since: float | None = None  # when a check first found no unique one missing

    def start(self) -> None:
        """Create the indexes in the background, the unique ones first."""
        Thread(target=self._make, name="indexes", daemon=True).start()

    def close(self) -> None:
        """Begin no further index; the server completes the current one."""
        self._closed.set()

    def check(self) -> None:
        """
        Wait up to ``INDEXES_WAIT_S`` for the indexes.

        :raises Unavailable: an index is missing; the message names it.
        """
        # On a new database this is enough for all of them.
        # The last index may be done after the wait timed out and before this greenlet runs again.
        if self._is_enough.wait(INDEXES_WAIT_S) or not self._left:
            return
        collection, index = self._left[0]
        # Without a unique index duplicates could be stored, so there is no limit for it. The others
        # may take minutes on a large collection: the service starts without them.
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
            except GreenlineError:  # the server cannot be used, which its own check reports
                self._closed.wait(AGAIN_S)
            except Exception:
                log.exception("making indexes failed")
                self._closed.wait(AGAIN_S)
        self._is_enough.set()

    def _make_next(self) -> None:
        # Removed only after the attempt: check() names the first one that is left.
        collection, index = self._left[0]
        wrong = ensure(self._checkout, collection, index)
        if wrong is not None:
            log.error("index %s of %s cannot be made: %s", index.name, collection, wrong)
        del self._left[0]


def ensure(checkout: Checkout, collection: str, index: Index) -> str | None:
    """
    Create an index if it is missing.

    :param checkout: returns the block in which the database may be used.
    :param collection: the collection's name.
    :param index: the index.
    :returns: the reason if it cannot be created, else None.
    :raises StoreDown: the server cannot be reached.
    """
    # Creating an index that exists is cheap, and several workers may do it at the same time.
    keys = [(key, ASCENDING) for key in index.keys]
    options: dict[str, Any] = {
        option: True for option in ("unique", "sparse") if getattr(index, option)
    }
    try:
        with checkout() as database:
            database[collection].create_index(keys, name=index.name, **options)
    except Conflict:
        return "there are duplicates"
    except StoreError as error:
        return str(error)
    return None


def drop(database: "Database[Document]", declared: Declared) -> Iterator[tuple[str, str]]:
    """
    Drop the declared indexes that exist.

    :param database: the database.
    :param declared: the indexes by collection.
    :returns: an iterator of each dropped index's collection and name.
    """
    for collection, indexes in declared.items():
        there = database[collection].index_information()
        for index in indexes:
            if index.name in there:
                database[collection].drop_index(index.name)
                yield collection, index.name


def stats(database: "Database[Document]", declared: Declared) -> Iterator[Usage]:
    """
    Yield each index of the collections, and those that are declared and missing.

    :param database: the database.
    :param declared: the indexes by collection.
    """
    for collection, indexes in declared.items():
        there = database[collection].index_information()
        sizes = _sizes(database, collection)
        uses = _uses(database, collection)
        names = {index.name for index in indexes}
        for name, options in there.items():
            keys = ", ".join(key for key, _ in options["key"])
            note = "" if name in names or name == "_id_" else "not declared"
            used = None if uses is None else uses.get(name, 0)
            yield Usage(collection, name, keys, sizes.get(name), used, note)
        for index in indexes:
            if index.name not in there:
                yield Usage(collection, index.name, ", ".join(index.keys), None, None, "missing")


def _sizes(database: "Database[Document]", collection: str) -> Mapping[str, int]:
    try:
        sizes: Mapping[str, int] = database.command("collStats", collection).get("indexSizes", {})
    except OperationFailure:
        # No such collection, or no right to ask: the sizes are unknown.
        return {}
    return sizes


def _uses(database: "Database[Document]", collection: str) -> dict[str, int] | None:
    """Return the uses of each index since it was created or its server started."""
    uses: dict[str, int] = {}
    stage: dict[str, Any] = {"$indexStats": {}}
    try:
        # Each shard reports its own count.
        for entry in database[collection].aggregate([stage]):
            uses[entry["name"]] = uses.get(entry["name"], 0) + int(entry["accesses"]["ops"])
    except OperationFailure:
        return None
    return uses
