"""
Keep what a repository reads in the worker's memory until the database announces a change.

The key of an item is "books 17" and its tag "books items"; the tag of a page is "books". Migration
0003 and the feed of MongoDB announce these three.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic

from app.store.ports import (
    Cache,
    Change,
    I,
    Idempotency,
    Listing,
    NamedItems,
    Page,
    Repository,
    Stored,
    T,
)

# Beyond it a page is not kept: a filter may have 2,000 characters.
MAX_NAME_LENGTH = 1_000
MAX_ID_LENGTH = 100
Note = Callable[[str], None]


class Cached(Generic[I]):
    """
    A repository of which single items and first pages are kept.

    :param repository: reads and writes.
    :param cache: keeps what is read.
    :param note: is called at each read of what is kept, as that of
        :meth:`greenline.cache.Cache.get_or_load`.
    :param changes: tags of other resources that a write changes as well. Default none.
    """

    def __init__(
        self,
        repository: Repository[I],
        cache: Cache,
        note: Note,
        changes: Sequence[str] = (),
    ) -> None:
        self._repository = repository
        self.name = name = repository.name
        self._cache = cache
        self._note = note
        self._of_items, self._of_pages = (f"{name} items",), (name,)
        self._changes = (name, *changes)

    def get(self, item_id: Any) -> Stored:
        load = partial(self._repository.get, item_id)
        return self._kept(f"{self.name} {item_id}", load, self._of_items)

    def kept_item(self, text: str) -> Stored | None:
        """
        Return the item if it is kept, None otherwise; nothing is loaded.

        :param text: its id as in a path.
        """
        # Longer text is no id, and no key that a cache takes; the key of a page has a space. Both
        # are not looked up, since a page that is found counts as a hit.
        if len(text) > MAX_ID_LENGTH or not text.isalnum():
            return None
        found: Stored | None = self._cache.get(f"{self.name} {text}")
        return found

    def get_many(self, ids: Sequence[Any]) -> list[Stored]:
        return self._repository.get_many(ids)

    def page(self, listing: Listing) -> Page:
        return self._repository.page(listing)

    def kept(self, listing: Listing, name: str, make: Callable[[], T]) -> T:
        is_first = listing.page == 1 and listing.position is None
        if not is_first or len(name) > MAX_NAME_LENGTH:
            return make()
        return self._kept(f"{self.name} page {name}", make, self._of_pages)

    def create(self, items: Sequence[I], idempotency: Idempotency | None = None) -> list[Stored]:
        with self._writes():
            return self._repository.create(items, idempotency)

    def change(self, changes: Sequence[Change[I]]) -> list[Stored]:
        with self._writes([change.id for change in changes]):
            return self._repository.change(changes)

    def delete(self, ids: Sequence[Any], versions: frozenset[int] | None = None) -> None:
        with self._writes(ids):
            self._repository.delete(ids, versions)

    def delete_where(self, filters: Mapping[str, Any]) -> int:
        with self._writes(everything=True):
            return self._repository.delete_where(filters)

    def _kept(self, key: str, load: Callable[[], T], tags: tuple[str, ...]) -> T:
        return self._cache.get_or_load(key, load, tags=tags, note=self._note)

    @contextmanager
    def _writes(self, ids: Sequence[Any] = (), *, everything: bool = False) -> Iterator[None]:
        """Forget what the block changes, whether it succeeds or not: its answer may be lost."""
        # Not before: until the write is acknowledged the older state is right, and a load that has
        # begun before the end is not kept.
        try:
            yield
        finally:
            self._forget(ids, everything)

    def _forget(self, ids: Sequence[Any], everything: bool) -> None:
        for item_id in ids:
            self._cache.invalidate(f"{self.name} {item_id}")
        for tag in (*self._changes, *(self._of_items if everything else ())):
            self._cache.invalidate(tag=tag)


class CachedNamed(Cached[I]):
    """
    The same for items with unique names; a name is looked up each time.

    :param repository: reads and writes.
    :param more: as of :class:`Cached`.
    """

    def __init__(self, repository: NamedItems[I], *more: Any) -> None:
        super().__init__(repository, *more)
        self._named = repository

    def id_of(self, name: str) -> Any:
        return self._named.id_of(name)

    def get_named(self, names: Sequence[str]) -> dict[str, Stored]:
        return self._named.get_named(names)

    def delete_named(self, names: Sequence[str]) -> None:
        with self._writes(everything=True):
            self._named.delete_named(names)
