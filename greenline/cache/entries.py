"""The kept values of a cache by key and tag, bounded in bytes: the last used ones."""

from collections.abc import Collection
from sys import getsizeof
from typing import Any, NamedTuple

from cachetools import LRUCache

from greenline.cache.statistics import CacheStatistics
from greenline.cache.values import Kept

# Memory of an entry beside its key and value: objects of this module, dicts of cachetools; of its
# place at a tag; and of a tag, however many have it, beside its text.
ENTRY_BYTES, PLACE_BYTES, TAG_BYTES = 375, 60, 205


class Entry(NamedTuple):
    """A kept value: what is kept, when its load began, its tags, and its memory in bytes."""

    kept: Kept
    begun_s: float
    ttl_s: float
    tags: Collection[str]
    size_bytes: int


def made(key: str, kept: Kept, begun_s: float, ttl_s: float, tags: Collection[str]) -> Entry:
    """Return the entry of *key*, with its memory."""
    size_bytes = kept.size_bytes + getsizeof(key) + ENTRY_BYTES + PLACE_BYTES * len(tags)
    return Entry(kept, begun_s, ttl_s, tags, size_bytes)


class Entries(LRUCache):  # type: ignore[type-arg]
    """
    The entries by key; the lock of the cache is held for each call.

    :param max_bytes: their memory and that of their tags, int.
    :param statistics: counts the entries that make room for others.
    """

    def __init__(self, max_bytes: int, statistics: CacheStatistics) -> None:
        super().__init__(max_bytes, lambda entry: entry.size_bytes)
        self._statistics = statistics
        # By tag, its text and the keys: a set of them would take more memory.
        self._tags: dict[str, tuple[str, dict[str, None]]] = {}
        self._tags_bytes = 0

    def __setitem__(self, key: str, entry: Entry) -> None:
        self.pop(key, None)  # with its tags, which may be others
        texts = []
        for tag in entry.tags:
            if tag not in self._tags:
                self._tags[tag] = tag, {}
                self._tags_bytes += _bytes_of_tag(tag)
            text, keys = self._tags[tag]
            keys[key] = None
            texts.append(text)
        # All entries that have a tag have one text of it.
        super().__setitem__(key, entry._replace(tags=tuple(texts)))
        # Not this one, if it fits.
        while self.size_bytes() > self.maxsize:
            self.popitem()

    def fits(self, entry: Entry) -> bool:
        """Return whether *entry* is kept if all others make room for it."""
        return bool(entry.size_bytes + sum(map(_bytes_of_tag, entry.tags)) <= self.maxsize)

    def tagged(self, tag: str | None) -> set[str]:
        """Return the keys of the entries that have *tag*."""
        return set(self._tags[tag][1]) if tag in self._tags else set()

    def size_bytes(self) -> int:
        """Return the memory of the entries and of their tags."""
        return int(self.currsize) + self._tags_bytes

    def __delitem__(self, key: str) -> None:
        entry = LRUCache.__getitem__(self, key)
        super().__delitem__(key)
        for tag in entry.tags:
            _, keys = self._tags[tag]
            del keys[key]
            if not keys:
                del self._tags[tag]
                self._tags_bytes -= _bytes_of_tag(tag)

    def popitem(self) -> Any:
        self._statistics.evictions += 1
        return super().popitem()

    def clear(self) -> None:
        evictions = self._statistics.evictions
        super().clear()  # some versions call popitem()
        self._statistics.evictions = evictions
        self._tags.clear()
        self._tags_bytes = 0


def _bytes_of_tag(tag: str) -> int:
    return TAG_BYTES + getsizeof(tag)
