"""The kept values of a cache by key and tag, bounded in bytes: the last used ones."""

from collections.abc import Collection
from sys import getsizeof
from typing import Any, NamedTuple

from cachetools import LRUCache

from greenline.cache.statistics import CacheStatistics
from greenline.cache.values import Kept

# Memory of an entry beside its key and value: objects of this module, dicts of cachetools; of its
# place at a tag, in a tuple and a dict; and of a tag, however many have it, beside its text.
ENTRY_BYTES, PLACE_BYTES, TAG_BYTES = 385, 40, 270


class Tag:
    """A tag, until it is invalidated; afterwards another one has its text."""

    __slots__ = ("is_valid", "keys", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.keys: dict[str, None] = {}  # of the entries that have it
        self.is_valid = True


class Entry(NamedTuple):
    """A kept value: what is kept, when its load began, its memory in bytes, and its tags."""

    kept: Kept
    begun_s: float
    ttl_s: float
    size_bytes: int
    tags: tuple[Tag, ...] = ()


def made(key: str, kept: Kept, begun_s: float, ttl_s: float, tags: Collection[str]) -> Entry:
    """Return the entry of *key*, with its memory."""
    size_bytes = kept.size_bytes + getsizeof(key) + ENTRY_BYTES + PLACE_BYTES * len(tags)
    return Entry(kept, begun_s, ttl_s, size_bytes)


class Entries(LRUCache):  # type: ignore[type-arg]
    """
    The entries by key; the lock of the cache is held for each call.

    :param max_bytes: their memory and that of their tags, int.
    :param statistics: counts the entries that make room for others.
    """

    def __init__(self, max_bytes: int, statistics: CacheStatistics) -> None:
        super().__init__(max_bytes, lambda entry: entry.size_bytes)
        self._statistics = statistics
        self._tags: dict[str, Tag] = {}
        self._invalid: dict[Tag, None] = {}  # those that entries still have
        self._tags_bytes = 0

    def find(self, key: str) -> Entry | None:
        """Return the entry of *key* if none of its tags was invalidated."""
        entry: Entry | None = self.get(key)
        if entry is not None:
            for tag in entry.tags:
                if not tag.is_valid:
                    del self[key]
                    return None
        return entry

    def keep(self, key: str, entry: Entry, tags: Collection[str]) -> None:
        """Keep *entry*, which fits; others make room for it."""
        self.pop(key, None)  # with its tags, which may be others
        self[key] = entry._replace(tags=tuple(self._tag(tag, key) for tag in tags))
        # Not this one, which is valid, and the last used one.
        while self.size_bytes() > self.maxsize:
            self.popitem()

    def fits(self, entry: Entry, tags: Collection[str]) -> bool:
        """Return whether *entry* is kept if all others make room for it."""
        return bool(entry.size_bytes + sum(map(_bytes_of_tag, tags)) <= self.maxsize)

    def invalidate(self, tag: str) -> None:
        """Forget the entries that have *tag*."""
        # However many they are, it takes one step: each goes when it is looked up, or makes room.
        if (found := self._tags.pop(tag, None)) is not None:
            found.is_valid = False
            self._invalid[found] = None

    def size_bytes(self) -> int:
        """Return the memory of the entries and of their tags."""
        return int(self.currsize) + self._tags_bytes

    def _tag(self, text: str, key: str) -> Tag:
        """Return the tag of an entry that is added."""
        tag = self._tags.get(text)
        if tag is None:
            tag = self._tags[text] = Tag(text)
            self._tags_bytes += _bytes_of_tag(text)
        tag.keys[key] = None
        return tag

    def __delitem__(self, key: str) -> None:
        entry = LRUCache.__getitem__(self, key)
        super().__delitem__(key)
        for tag in entry.tags:
            tag.keys.pop(key, None)
            if not tag.keys:
                self._tags_bytes -= _bytes_of_tag(tag.text)
                if tag.is_valid:
                    del self._tags[tag.text]
                else:
                    del self._invalid[tag]

    def popitem(self) -> Any:
        if not self._invalid:
            self._statistics.evictions += 1
            return super().popitem()
        # What a tag has invalidated makes room first. By popitem(): to find the first or the last
        # key of a dict otherwise takes a step for each that was deleted.
        tag, _ = self._invalid.popitem()
        self._invalid[tag] = None
        key, _ = tag.keys.popitem()
        return key, self.pop(key)

    def clear(self) -> None:
        evictions = self._statistics.evictions
        super().clear()  # some versions call popitem()
        self._statistics.evictions = evictions
        self._tags.clear()
        self._invalid.clear()
        self._tags_bytes = 0


def _bytes_of_tag(tag: str) -> int:
    return TAG_BYTES + getsizeof(tag)
