"""app.store.cached: which reads have one key, and what a write forgets."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from app.errors import NotFound
from app.store.cached import Cached, CachedNamed
from app.store.ports import Change, Listing, Page, Position, Stored
from greenline.cache import Cache
from greenline.errors import OutcomeUnknown

LISTING = Listing("id", descending=False, limit=20)


class Numbers:
    """A repository in a dict, which counts its reads and can lose the answer of a write."""

    name = "numbers"

    def __init__(self) -> None:
        self.items: dict[int, str] = {1: "one", 2: "two"}
        self.reads = 0
        self.is_answer_lost = False

    def get(self, item_id: int) -> Stored:
        self.reads += 1
        if item_id not in self.items:
            raise NotFound(f"there is no number {item_id}", [item_id])
        return Stored(item_id, 1, self.items[item_id].encode())

    def get_many(self, ids: Any) -> list[Stored]:
        self.reads += 1
        return [Stored(item_id, 1, self.items[item_id].encode()) for item_id in ids]

    def kept(self, listing: Listing, name: str, make: Any) -> Any:
        raise AssertionError

    def page(self, listing: Listing) -> Page:
        self.reads += 1
        return Page(tuple(text.encode() for text in self.items.values()), False)

    def create(self, items: Any, idempotency: Any = None) -> list[Stored]:
        for item in items:
            self.items[len(self.items) + 1] = item
        return self._answered()

    def change(self, changes: Any) -> list[Stored]:
        for change in changes:
            self.items[change.id] = change.edit({})
        return self._answered()

    def delete(self, ids: Any, versions: Any = None) -> None:
        for item_id in ids:
            del self.items[item_id]
        self._answered()

    def delete_where(self, filters: Mapping[str, Any]) -> int:
        self.items.clear()
        self._answered()
        return 2

    def id_of(self, name: str) -> int:
        return next(number for number, text in self.items.items() if text == name)

    def get_named(self, names: Any) -> dict[str, Stored]:
        return {name: self.get(self.id_of(name)) for name in names}

    def delete_named(self, names: Any) -> None:
        for name in names:
            del self.items[self.id_of(name)]
        self._answered()

    def _answered(self) -> list[Stored]:
        if self.is_answer_lost:
            raise OutcomeUnknown
        return []


@pytest.fixture
def numbers() -> Numbers:
    return Numbers()


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def cached(numbers: Numbers, notes: list[str]) -> CachedNamed[str]:
    return CachedNamed(numbers, Cache(1 << 20, 60), notes.append, ["others"])


def test_an_item_is_read_once(cached: Cached[str], numbers: Numbers, notes: list[str]) -> None:
    assert [cached.get(1).json, cached.get(1).json] == [b"one", b"one"]
    assert (numbers.reads, notes) == (1, ["miss", "hit"])


def test_a_kept_item_is_found_by_the_text_of_its_id(
    cached: Cached[str], numbers: Numbers, notes: list[str]
) -> None:
    """As long as it is kept; nothing is read for that, and a page is neither an item nor a hit."""
    shown(cached, name="1")
    assert cached.kept_item("1") is None
    cached.get(1)
    assert cached.kept_item("1") == Stored(1, 1, b"one")
    for text in ("page 1", "01", "2", "", "1" * 2_000):
        assert cached.kept_item(text) is None
    assert cached._cache.stats()["hits"] == 1
    assert (numbers.reads, notes) == (2, ["miss", "miss"])
    cached.change([Change(1, lambda _: "changed")])
    assert cached.kept_item("1") is None


def test_what_is_missing_is_asked_for_again(cached: Cached[str], numbers: Numbers) -> None:
    for _ in range(2):
        with pytest.raises(NotFound):
            cached.get(3)
    assert numbers.reads == 2


def shown(cached: Cached[str], listing: Listing = LISTING, name: str = "") -> tuple[bytes, ...]:
    """Return the items of a page that may be kept under a name."""
    return cached.kept(listing, name, lambda: cached.page(listing).items)


def test_each_first_page_is_kept_under_its_name(
    cached: Cached[str], numbers: Numbers, notes: list[str]
) -> None:
    for name in ("", "limit=5", "", "limit=5"):
        assert shown(cached, name=name) == (b"one", b"two")
    assert (numbers.reads, notes) == (2, ["miss", "miss", "hit", "hit"])


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (replace(LISTING, page=2), "page=2"),
        (replace(LISTING, position=Position(1, 1)), "after=x"),
        (replace(LISTING, position=Position(1, 1, before=True)), "before=x"),
        (replace(LISTING, filters={"name": "x" * 2_000}), "name=" + "x" * 2_000),
    ],
    ids=["number", "after", "before", "a long filter"],
)
def test_other_pages_are_not_kept(
    cached: Cached[str], numbers: Numbers, notes: list[str], other: Listing, name: str
) -> None:
    shown(cached, other, name)
    shown(cached, other, name)
    assert (numbers.reads, notes) == (2, [])


def test_several_are_read_each_time(cached: CachedNamed[str], numbers: Numbers) -> None:
    assert [cached.get_many([1])[0].id for _ in range(2)] == [1, 1]
    assert [cached.get_named(["one"])["one"].id for _ in range(2)] == [1, 1]
    assert numbers.reads == 4


WRITES = {
    "create": lambda cached: cached.create(["three"]),
    "change": lambda cached: cached.change([Change(1, lambda _: "uno")]),
    "delete": lambda cached: cached.delete([1]),
    "delete where": lambda cached: cached.delete_where({"name": "one"}),
    "delete by name": lambda cached: cached.delete_named(["one"]),
}


@pytest.mark.parametrize("is_answer_lost", [False, True], ids=["answered", "lost"])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_forgets_what_it_changes(
    cached: CachedNamed[str], numbers: Numbers, write: str, is_answer_lost: bool
) -> None:
    """Pages in any case; also where nobody knows whether it was done."""
    cached.get(1), cached.get(2), shown(cached)
    numbers.is_answer_lost = is_answer_lost
    try:
        WRITES[write](cached)
    except OutcomeUnknown:
        assert is_answer_lost
    assert shown(cached) == tuple(text.encode() for text in numbers.items.values())
    for item_id in (1, 2):
        if item_id in numbers.items:
            assert cached.get(item_id).json == numbers.items[item_id].encode()
        else:
            with pytest.raises(NotFound):
                cached.get(item_id)


def test_a_change_forgets_no_other_item(cached: Cached[str], numbers: Numbers) -> None:
    cached.get(2)
    reads = numbers.reads
    cached.change([Change(1, lambda _: "uno")])
    cached.get(2)
    assert numbers.reads == reads


def test_a_write_forgets_what_else_it_changes(numbers: Numbers) -> None:
    """A book adds authors, and shows their names."""
    cache = Cache(1 << 20, 60)
    cached = Cached(numbers, cache, bool, ["others"])
    cache.get_or_load("other", lambda: 1, tags=["others"])
    cached.create(["three"])
    assert cache.get_or_load("other", lambda: 2, tags=["others"]) == 2


def test_what_changes_during_a_write_is_not_kept(numbers: Numbers, cached: Cached[str]) -> None:
    """A reader that began before the write was done may have seen the state before it."""

    def edit(_: Any) -> str:
        assert cached.get(1).json == b"one"
        return "uno"

    cached.change([Change(1, edit)])
    assert cached.get(1).json == b"uno"
