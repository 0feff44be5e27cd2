"""Repositories on Postgres: lists against a model, and what a bad moment does to a write."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import gevent
import psycopg2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.errors import NotFound, PreconditionFailed
from app.records import AuthorInput, BookInput
from app.store.authors import Authors
from app.store.books import Books
from app.store.ports import Change, Document, Listing, Position, Stored
from embedded.postgres import Postgres as Server
from greenline.errors import Conflict
from greenline.postgres import client as client_module
from greenline.postgres.client import Postgres
from greenline.postgres.connect import connect
from greenline.postgres.pool import ConnectionPool
from greenline.postgres.transaction import BeginningCursor
from tests.helpers.support import Databases, wait_until

ORDERS = ("id", "title", "published", "created_at", "updated_at")
# Few values: many items are alike in what they are ordered by.
TITLES = st.sampled_from(["ant", "bee", "cow"])
DAYS = st.sampled_from([None, None, "1968-11-01"])
BOOKS = st.lists(st.tuples(TITLES, DAYS), min_size=3, max_size=12)


@pytest.fixture(scope="module")
def client(databases: Databases) -> Iterator[Postgres]:
    """A pool of a few connections on the database with the schema and the sample."""
    pool = ConnectionPool(partial(connect, databases.postgres, 5.0), max_size=5)
    yield Postgres(pool)
    pool.close(2.0)


class Other:
    """Another client of the database, in a transaction of its own until it commits."""

    def __init__(self, url: str) -> None:
        self._conn = psycopg2.connect(url)
        self._watch = psycopg2.connect(url)
        self._watch.autocommit = True

    def __call__(self, statement: str, **values: Any) -> list[Any]:
        with self._conn.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def commit(self) -> None:
        self._conn.commit()

    def is_waited_for(self) -> bool:
        """Return whether somebody waits for a lock that this transaction has."""
        return self.waiting(f"{self._conn.info.backend_pid} = any(pg_blocking_pids(pid))") > 0

    def waiting(self, which: str = "wait_event_type = 'Lock'") -> int:
        """Return how many backends wait for a lock."""
        with self._watch.cursor() as cursor:
            cursor.execute(f"select from pg_stat_activity where {which}")
            return int(cursor.rowcount)

    def close(self) -> None:
        self._conn.close()
        self._watch.close()


@pytest.fixture
def other(databases: Databases) -> Iterator[Other]:
    """Somebody else who writes."""
    made = Other(databases.postgres)
    yield made
    made.close()


class Counting(BeginningCursor):
    """A cursor that counts how often the server was asked."""

    asked = 0

    def execute(self, *args: Any, **more: Any) -> None:
        Counting.asked += 1
        super().execute(*args, **more)


def book(title: str, published: Any, author: str) -> BookInput:
    return BookInput(title=title, published=published, authors=[author])


def shown(items: list[Stored]) -> list[Document]:
    return [json.loads(item.json) for item in items]


def place(item: Document, order: str) -> tuple[bool, Any, int]:
    """Return what *item* is ordered by: those without a value come last."""
    return item[order] is None, item[order] or "", item["id"]


def expected(items: list[Document], listing: Listing, at: Document | None) -> list[Document]:
    """Return what a list of all these *items* has from *at* on, by the definition."""
    back = listing.position is not None and listing.position.before
    reverse = listing.descending != back
    behind = items
    if at is not None:
        here = place(at, listing.order)
        behind = [
            item
            for item in items
            if (place(item, listing.order) < here if reverse else place(item, listing.order) > here)
        ]
    behind.sort(key=lambda item: place(item, listing.order), reverse=reverse)
    page = behind[: listing.limit]
    return page[::-1] if back else page


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sent=BOOKS,
    doomed=st.sets(st.integers(0, 11)),
    changed=st.dictionaries(st.integers(0, 11), TITLES, max_size=3),
    order=st.sampled_from((*ORDERS, "published", "published")),
    descending=st.booleans(),
    before=st.booleans(),
    at=st.integers(0, 11) | st.integers(0, 11) | st.none(),
    limit=st.integers(1, 5),
    number=st.integers(1, 3),
)
def test_a_page_is_what_the_definition_says(
    client: Postgres,
    sent: list[tuple[str, Any]],
    doomed: set[int],
    changed: dict[int, str],
    order: str,
    descending: bool,
    before: bool,
    at: int | None,
    limit: int,
    number: int,
) -> None:
    """From any place of any order, of items that came, went and changed since."""
    books = Books(client)
    author = f"modelled {id(sent)}"
    books.delete_where({"author": author})
    items = shown(books.create([book(title, day, author) for title, day in sent]))
    at_item = None if at is None else items[at % len(items)]
    for index, title in changed.items():
        if index < len(items):
            day = items[index]["published"]
            new = book(title, day, author)
            [stored] = books.change([Change(items[index]["id"], lambda _, new=new: new)])
            items[index] = json.loads(stored.json)
    gone = [items[index] for index in doomed if index < len(items)]
    if gone:
        books.delete([item["id"] for item in gone])
    left = [item for item in items if item not in gone]
    if at_item is None:
        listing = Listing(order, descending, limit, {"author": author}, page=number, total=True)
        ordered = expected(left, Listing(order, descending, 99), None)
        want = ordered[(number - 1) * limit :][:limit]
        more = len(ordered) > number * limit
    else:
        position = Position(at_item[order], at_item["id"], before)
        listing = Listing(
            order, descending, limit, {"author": author}, position=position, total=True
        )
        want = expected(left, listing, at_item)
        wide = Listing(order, descending, 99, position=position)
        more = len(expected(left, wide, at_item)) > limit
    page = books.page(listing)
    assert [json.loads(item) for item in page.items] == want
    assert (page.more, page.total) == (more, len(left))
    books.delete_where({"author": author})


def test_two_changes_at_once_both_show(client: Postgres, other: Other) -> None:
    """The second waits for the first, and changes what that made, not what was there before."""
    books = Books(client)
    [stored] = books.create([book("both", None, "first")])
    number = int(stored.id)
    seen: list[Document] = []

    def edit(now: Document) -> BookInput:
        seen.append(now)
        return BookInput(title="changed", authors=[one["name"] for one in now["authors"]])

    other("select from books where id = %(id)s for no key update", id=number)
    second = gevent.spawn(books.change, [Change(number, edit)])
    wait_until(other.is_waited_for, "the change to wait")
    other(
        "update books set version = version + 1, published = '2001-02-03' where id = %(id)s",
        id=number,
    )
    other(
        "insert into book_authors (book_id, author_id, position)"
        " select %(id)s, id, 2 from authors where name <> 'first' order by id limit 1",
        id=number,
    )
    other.commit()
    second.get(timeout=40)
    [now] = shown([books.get(number)])
    assert (now["title"], now["version"], len(now["authors"])) == ("changed", 3, 2)
    assert [one["published"] for one in seen] == ["2001-02-03"]


def test_who_saw_another_version_loses(client: Postgres, other: Other) -> None:
    """Also when that version is made while the change waits: it is looked at after the wait."""
    books = Books(client)
    [stored] = books.create([book("lost", None, "first")])
    number = int(stored.id)
    change = Change(number, lambda _: BookInput(title="mine"), frozenset([1]))
    other("update books set version = version + 1 where id = %(id)s", id=number)
    second = gevent.spawn(books.change, [change])
    deletion = gevent.spawn(books.delete, [number], frozenset([1]))
    wait_until(other.is_waited_for, "the change to wait")
    other.commit()
    for loser in (second, deletion):
        with pytest.raises(PreconditionFailed):
            loser.get(timeout=40)
    [now] = shown([books.get(number)])
    assert (now["title"], now["version"]) == ("lost", 2)


def test_batches_in_opposite_orders_do_not_deadlock(client: Postgres, other: Other) -> None:
    """Rows are locked in the order of their ids, whatever the order they come in."""
    books = Books(client)
    numbers = [int(item.id) for item in books.create([book("dead", None, "lock")] * 40)]
    before = deadlocks(client)
    # All of them are stopped in the middle, with what they locked before.
    other("select from books where id = %(id)s for update", id=numbers[20])
    orders = (numbers, numbers[::-1], numbers[20:] + numbers[:20])
    changes = [
        gevent.spawn(books.change, [Change(n, lambda _: book("late", None, "lock")) for n in ids])
        for ids in orders
    ]
    wait_until(lambda: other.waiting() == 3, "all to wait")
    other.commit()
    gevent.joinall(changes, timeout=40, raise_error=True)
    assert {item["version"] for item in shown(books.get_many(numbers))} == {4}

    other("select from books where id = %(id)s for update", id=numbers[20])
    gone = [gevent.spawn(books.delete, ids) for ids in orders]
    wait_until(lambda: other.waiting() == 3, "all to wait")
    other.commit()
    gevent.joinall(gone, timeout=40)
    assert [type(one.exception) for one in gone if one.exception] == [NotFound, NotFound]
    assert deadlocks(client) == before


def deadlocks(client: Postgres) -> int:
    """Return how many deadlocks the server has seen in this database."""
    with client.connection(autocommit=True) as conn, conn.cursor() as cursor:
        cursor.execute("select pg_stat_force_next_flush()")
        cursor.execute("select deadlocks from pg_stat_database where datname = current_database()")
        row = cursor.fetchone()
        assert row is not None
        return int(row[0])


def test_names_added_in_opposite_orders_do_not_deadlock(client: Postgres) -> None:
    """Unique names are added in the order of the names: the second gets an error at once."""
    authors = Authors(client)
    before = deadlocks(client)
    for turn in range(5):
        names = [AuthorInput(f"opposite {turn} {number}") for number in range(200)]
        both = [gevent.spawn(authors.create, given) for given in (names, names[::-1])]
        gevent.joinall(both, timeout=40)
        assert [type(one.exception) for one in both if one.exception] == [Conflict]
    assert deadlocks(client) == before


def test_two_books_that_make_the_same_author_both_have_it(client: Postgres, other: Other) -> None:
    """The second waits until it knows whether the first stays; there is one author."""
    books = Books(client)
    other("insert into authors (name) values ('made twice')")
    second = gevent.spawn(books.create, [book("second", None, "made twice")])
    wait_until(other.is_waited_for, "the book to wait")
    other.commit()
    [stored] = shown(second.get(timeout=40))
    assert [one["name"] for one in stored["authors"]] == ["made twice"]
    assert other("select count(*) from authors where name = 'made twice'") == [(1,)]


def test_an_author_who_goes_meanwhile_is_made_anew(
    client: Postgres, other: Other, databases: Databases
) -> None:
    """A book is never stored without an author that it was sent with."""
    books = Books(client)
    other("insert into authors (name) values ('going')")
    other.commit()
    # Between the look for the names and the links: the first link waits for this lock.
    other("lock table genres in share row exclusive mode")
    second = gevent.spawn(
        books.create, [BookInput(title="kept", authors=["going"], genres=["new genre"])]
    )
    wait_until(other.is_waited_for, "the book to wait")
    conn = psycopg2.connect(databases.postgres)
    with conn, conn.cursor() as cursor:
        cursor.execute("delete from authors where name = 'going'")
    conn.close()
    other.commit()
    [stored] = shown(second.get(timeout=40))
    assert [one["name"] for one in stored["authors"]] == ["going"]


def test_a_deadlock_is_done_again(postgres: Server, databases: Databases) -> None:
    """Where somebody else's transaction cannot be foreseen, the write is repeated as a whole."""
    ours, theirs = f"{postgres.superuser_url}&options=-cdeadlock_timeout%3D", "1min"
    pool = ConnectionPool(partial(connect, f"{ours}2s", 5.0), max_size=1)
    other = Other(f"{ours}{theirs}")  # so that it is not the one which is ended
    client = Postgres(pool)
    books = Books(client)
    one, two = (int(item.id) for item in books.create([book("torn", None, "apart")] * 2))
    before = deadlocks(client)
    update = "update books set title = 'theirs' where id = %(id)s"
    other(update, id=two)
    change = gevent.spawn(
        books.change, [Change(number, lambda _: BookInput(title="ours")) for number in (one, two)]
    )
    wait_until(other.is_waited_for, "the change to wait")
    other(update, id=one)
    other.commit()
    change.get(timeout=40)
    assert [item["title"] for item in shown(books.get_many([one, two]))] == ["ours", "ours"]
    wait_until(lambda: deadlocks(client) == before + 1, "the deadlock to be counted")
    other.close()
    pool.close(2.0)


def test_a_rename_shows_in_the_books(client: Postgres) -> None:
    """Their version and updated_at say so, and those of other books stay; the same name is none."""
    books, authors = Books(client), Authors(client)
    theirs, another = shown(books.create([book("a", None, "old name"), book("b", None, "nobody")]))
    author = theirs["authors"][0]["id"]
    authors.change([Change(author, lambda _: AuthorInput("new name"))])
    [now, same] = shown(books.get_many([theirs["id"], another["id"]]))
    assert (now["version"], now["authors"]) == (2, [{"id": author, "name": "new name"}])
    assert now["updated_at"] > theirs["updated_at"]
    assert same == another
    authors.change([Change(author, lambda _: AuthorInput("new name"))])
    assert shown([books.get(theirs["id"])]) == [now]
    with pytest.raises(Conflict) as caught:
        authors.delete([author])
    assert caught.value.constraint == "book_authors_author_id_fkey"


def test_renames_and_changes_of_books_do_not_deadlock(client: Postgres, other: Other) -> None:
    """A renaming locks the books first, and then the author, as a change of a book does."""
    books, authors = Books(client), Authors(client)
    items = shown(books.create([book("busy", None, "busy author"), book("idle", None, "nobody")]))
    author = items[0]["authors"][0]["id"]
    before = deadlocks(client)
    # A change is stopped when it has the books, and not yet the author that it gives to one.
    other("lock table genres in share row exclusive mode")
    new = BookInput(title="new", authors=["busy author"], genres=["busy genre"])
    change = gevent.spawn(books.change, [Change(item["id"], lambda _: new) for item in items])
    wait_until(lambda: other.waiting() == 1, "the change to wait")
    rename = gevent.spawn(authors.change, [Change(author, lambda _: AuthorInput("busier author"))])
    wait_until(lambda: other.waiting() == 2, "the new name to wait")
    other.commit()
    gevent.joinall([change, rename], timeout=40, raise_error=True)
    now = shown(books.get_many([item["id"] for item in items]))
    assert [item["authors"][0]["name"] for item in now] == ["busier author"] * 2
    assert [item["version"] for item in now] == [3, 3]
    assert deadlocks(client) == before


def use_all(books: Books, count: int) -> None:
    """Use each statement that writes *count* books."""
    made = books.create([book("first", None, "first")] * count)
    ids = [int(item.id) for item in made]
    books.change([Change(item_id, lambda _: book("second", None, "another")) for item_id in ids])
    books.delete(ids)


@pytest.mark.parametrize("size", [1, 1_000])
def test_a_batch_of_books_is_two_questions(
    databases: Databases, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many books there are, and whichever of their authors is new."""

    monkeypatch.setattr(client_module, "BeginningCursor", Counting)
    pool = ConnectionPool(partial(connect, databases.postgres, 5.0), max_size=1)
    books = Books(Postgres(pool))
    sent = [book(f"many {n}", None, f"many {size} {n % 50}") for n in range(size)]
    use_all(books, min(size, 2))  # so that none of these is prepared below
    before = Counting.asked
    made = books.create(sent)
    assert (len(made), Counting.asked - before) == (size, 2)
    changes = [Change(item.id, lambda _: sent[0]) for item in made]
    before = Counting.asked
    assert (len(books.change(changes)), Counting.asked - before) == (size, 2)
    before = Counting.asked
    books.delete([int(item.id) for item in made])
    assert Counting.asked - before == 1
    pool.close(2.0)
