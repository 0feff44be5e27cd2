"""bench.cache: what is asked, and how much memory has so many hits."""

import pytest

from bench.cache import BOOKS, OPERATIONS, WRITE_EVERY, Work

BOOK_PATHS = [f"/books/{number}" for number in range(1, BOOKS + 1)]


def test_one_request_in_a_hundred_is_a_write_of_what_is_read() -> None:
    asked = Work("book", BOOK_PATHS, None, 0.99).asked()
    assert len(asked) == OPERATIONS
    assert sum(is_write for is_write, _ in asked) == OPERATIONS // WRITE_EVERY
    assert {path for _, path in asked} <= set(BOOK_PATHS)


def test_what_is_written_may_be_something_else() -> None:
    urls = Work("page", ["/books"], ["/tasks/1"], 0.99).urls("http://x")
    assert set(urls) == {"http://x/books", "PATCH http://x/tasks/1"}


def test_the_first_is_asked_for_most() -> None:
    """By Zipf's law twice as often as the second."""
    paths = [path for _, path in Work("book", BOOK_PATHS, None, 0.99).asked()]
    assert 1.6 < paths.count("/books/1") / paths.count("/books/2") < 2.4


@pytest.mark.parametrize("hits", [0.5, 0.9, 0.98])
def test_more_memory_has_more_hits(hits: float) -> None:
    work = Work("book", BOOK_PATHS, ["/tasks/1"], hits)
    room = work.room()
    assert work._hits(room) >= hits > work._hits(room - 1)
    assert 1 < room < BOOKS
