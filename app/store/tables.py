"""
The repository of a resource in one table of Postgres.

A resource's ``document.sql`` selects the shown columns of each row of a table expression "page", in
its order; each statement here consists of such a "page" and that query. Filters and orders are
those that the resource declares, each with an index.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple
from zlib import crc32

import msgspec

from app.errors import NotFound, PreconditionFailed
from app.store.idempotency import first_answer, remember
from app.store.ports import (
    Change,
    I,
    Idempotency,
    Listing,
    Named,
    Page,
    Pool,
    Stored,
    T,
    Transaction,
)
from app.store.queries import read

Row = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Order:
    """
    An order of a list.

    :param expression: over the table.
    :param value: the same expression for the parameter ``value`` of a position.
    """

    expression: str
    value: str


@dataclass(frozen=True, slots=True)
class Statement:
    """
    A statement and its parameters.

    :param name: the name under which it is prepared, str.
    :param text: SQL with named parameters, str.
    :param values: the parameters by name.
    """

    name: str
    text: str
    values: Mapping[str, Any]


class RowStatements(NamedTuple):
    """
    The statements on rows of given ids, each with the name under which it is prepared.

    :param lock: lock them.
    :param read: select them.
    :param update: update them from %(items)s, and select them.
    :param delete: delete them, and select the ids of those that were there.
    """

    lock: Named
    read: Named
    update: Named
    delete: Named


ID = Order("id", "%(value)s::bigint")
# The orders that each resource has after its own.
STAMPS = {
    "created_at": Order("created_at", "%(value)s::timestamptz"),
    "updated_at": Order("updated_at", "%(value)s::timestamptz"),
}


def text(column: str) -> Order:
    """Return the order by a text column."""
    return Order(column, "%(value)s::text")


class Table(Generic[I]):
    """
    The repository of one resource, whose statements are in ``sql/NAME/``.

    :param pool: lends connections.
    """

    name: ClassVar[str]
    noun: ClassVar[str]
    # field -> condition on a row, with the filter's value as %(FIELD)s.
    filters: ClassVar[Mapping[str, str]]
    # Other forms of these that are faster in a list ordered by id.
    filters_by_id: ClassVar[Mapping[str, str]] = {}
    orders: ClassVar[Mapping[str, Order]]
    # A statement that locks other rows before those of %(ids)s, which change with them.
    lock_first: ClassVar[str] = ""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        # Postgres makes the JSON, and it is sent as it comes: Python decodes no row.
        shown = read(f"{self.name}/document")
        self._document = (
            "select document.id, document.version, row_to_json(document)::text"
            f" from ({shown}) document"
        )
        self._document_alone = f"select row_to_json(document)::text from ({shown}) document"
        self._inserting = self._named("insert", f"{read(f'{self.name}/insert')} {self._document}")
        # One row needs no sort and no scan of a bitmap; an array is planned as ten rows.
        update = read(f"{self.name}/update")
        one, many = "id = %(id)s", "id = any(%(ids)s::bigint[])"
        self._one = self._statements(
            "id", one,
            update=f"{update} and {self.name}.{one}",
            delete=f"delete from {self.name} where {one} returning id",
        )  # fmt: skip
        self._many = self._statements("ids", many, update=update, delete=self._deleting(many, "id"))
        self._lists: dict[tuple[Any, ...], tuple[str, str]] = {}

    def get(self, item_id: int) -> Stored:
        rows = self._pool.fetch(*self._one.read, {"id": item_id})
        if not rows:
            raise self._missing([item_id])
        return stored(rows[0])

    def get_many(self, ids: Sequence[int]) -> list[Stored]:
        rows = self._pool.fetch(*self._many.read, {"ids": list(ids)})
        found = {row[0]: stored(row) for row in rows}
        return [found[item_id] for item_id in ids if item_id in found]

    def kept(self, listing: Listing, name: str, make: Callable[[], T]) -> T:
        return make()  # app.store.cached keeps it

    def page(self, listing: Listing) -> Page:
        asked = self.statement(listing)
        rows = self._pool.fetch(asked.name, asked.text, asked.values)
        items = [row[0].encode() for row in rows[: listing.limit]]
        if listing.position is not None and listing.position.before:
            items.reverse()
        total = self._count(listing.filters) if listing.total else None
        return Page(tuple(items), len(rows) > listing.limit, total)

    def statement(self, listing: Listing) -> Statement:
        """Return the statement that reads a page."""
        # One row more than the page shows whether others follow.
        values: dict[str, Any] = {**listing.filters, "limit": listing.limit + 1}
        if listing.page > 1:
            values["offset"] = (listing.page - 1) * listing.limit
        if listing.position is not None:
            values |= {"position": listing.position.id, "value": listing.position.value}
        return Statement(*self._list(listing), values)

    def create(self, items: Sequence[I], idempotency: Idempotency | None = None) -> list[Stored]:
        # In one transaction: the answer is stored if and only if the items are.
        def work(transaction: Transaction) -> list[Stored]:
            if idempotency is None:
                return self._insert(transaction, items)
            answer = first_answer(transaction, idempotency)
            if answer is None:
                answer = self._insert(transaction, items)
                remember(transaction, idempotency, answer)
            return answer

        return self._write(work)

    def change(self, changes: Sequence[Change[I]]) -> list[Stored]:
        ids = [int(change.id) for change in changes]

        def work(transaction: Transaction) -> list[Stored]:
            # Locked before they are edited: no other transaction changes them in between.
            now = self._lock(transaction, ids)
            if len(now) < len(ids):
                raise self._missing([item_id for item_id in ids if item_id not in now])
            for change in changes:
                self._require(now[int(change.id)], change.versions)
            items = [
                change.edit(msgspec.json.decode(now[int(change.id)].json)) for change in changes
            ]
            return self._update(transaction, dict(zip(ids, items, strict=True)), now)

        return self._write(work)

    def delete(self, ids: Sequence[int], versions: frozenset[int] | None = None) -> None:
        def work(transaction: Transaction) -> None:
            if versions is not None:
                for stored in self._lock(transaction, ids).values():
                    self._require(stored, versions)
            # If one is missing, the exception rolls the transaction back: all or none.
            statements, values = self._statements_for(ids)
            deleted = {row[0] for row in transaction.run([statements.delete], values)}
            if len(deleted) < len(ids):
                raise self._missing([item_id for item_id in ids if item_id not in deleted])

        self._write(work)

    def delete_where(self, filters: Mapping[str, Any]) -> int:
        # Not prepared: the plan depends on how many rows have these values.
        text = self._deleting(" and ".join(self.filters[name] for name in filters), "id")

        def work(transaction: Transaction) -> int:
            return len(transaction.execute(text, filters))

        return self._write(work)

    def _write(self, work: Callable[[Transaction], T]) -> T:
        """Return the result of *work*, run in a transaction that is repeated after a deadlock."""
        # Nothing stays in the session, so its reset, a round trip, is left out.
        return self._pool.transact(work, reset=False)

    def _lock(self, transaction: Transaction, ids: Sequence[int]) -> dict[int, Stored]:
        """Return the items that exist, locked until the transaction ends."""
        statements, values = self._statements_for(ids)
        if self.lock_first:
            # Not prepared: how many rows refer to these differs too much for one plan.
            transaction.execute(self.lock_first, values)
        # A second statement reads the documents: its snapshot begins after the wait for the locks.
        rows = transaction.run([statements.lock, statements.read], values)
        return {row[0]: stored(row) for row in rows}

    def _statements(self, form: str, these: str, *, update: str, delete: str) -> RowStatements:
        """Return the statements on the rows for which the condition *these* holds."""
        # Ordered by id, so that two batches cannot deadlock. "no key update" does not block inserts
        # of rows that refer to these.
        lock = f"select from {self.name} where {these} order by id for no key update"
        updated = self._page(f"{update} returning {self.name}.*")
        return RowStatements(
            self._named(f"lock_by_{form}", lock),
            self._named(f"by_{form}", self._page(f"select * from {self.name} where {these}")),
            self._named(f"update_by_{form}", updated),
            self._named(f"delete_by_{form}", delete),
        )

    def _statements_for(self, ids: Iterable[int]) -> tuple[RowStatements, dict[str, Any]]:
        """Return the statements on the rows of *ids*, and their values."""
        values: dict[str, Any] = {"ids": list(ids)}
        if len(values["ids"]) == 1:
            return self._one, {**values, "id": values["ids"][0]}
        return self._many, values

    def _page(self, rows: str) -> str:
        """Return the statement that selects the ids, versions and documents of *rows*."""
        return f"with page as ({rows}) {self._document}"

    def _deleting(self, where: str, returning: str) -> str:
        # Locked in the order of their ids first: a plain DELETE locks in the order of its scan, and
        # could deadlock with another batch.
        return (
            f"with found as materialized ("
            f"select id from {self.name} where {where} order by id for update) "
            f"delete from {self.name} using found where {self.name}.id = found.id "
            f"returning {self.name}.{returning}"
        )

    def _insert(self, transaction: Transaction, items: Sequence[I]) -> list[Stored]:
        """Insert *items*; return them as stored, in their order."""
        # One JSON array and one statement, whatever the number of items.
        sent = {"items": msgspec.json.encode(items).decode()}
        # By id, which is the order of the items.
        return [stored(row) for row in sorted(transaction.run([self._inserting], sent))]

    def _update(
        self, transaction: Transaction, items: Mapping[int, I], now: Mapping[int, Stored]
    ) -> list[Stored]:
        """
        Replace the items of these ids; return them as stored, in their order.

        *now* has them as they are; they are locked.
        """
        statements, values = self._statements_for(items)
        rows = transaction.run([statements.update], {**values, "items": with_ids(items)})
        return self._in_order(items, rows)

    def _in_order(self, ids: Iterable[int], rows: Sequence[Row]) -> list[Stored]:
        found = {row[0]: stored(row) for row in rows}
        return [found[item_id] for item_id in ids]

    def _named(self, what: str, text: str) -> Named:
        return f"{self.name}_{what}", text

    def _list(self, listing: Listing) -> tuple[str, str]:
        """Return the name and the text of the statement for lists of this form."""
        position = listing.position
        form = (
            *sorted(listing.filters),
            listing.order,
            listing.descending,
            listing.page > 1,
            position is not None and position.before,
            position is not None,
        )
        # Cached by form: the text depends on which filters are set, not on their values. The name
        # is made from the text, so that two releases never share one for different statements.
        known = self._lists.get(form)
        if known is None:
            statement = self._list_text(listing)
            name = f"{self.name}_list_{crc32(statement.encode()):08x}"
            known = self._lists[form] = name, statement
        return known

    def _list_text(self, listing: Listing) -> str:
        position, order = listing.position, self.orders[listing.order]
        backwards = position is not None and position.before
        by_id = self.filters_by_id if listing.order == "id" else {}
        conditions = [by_id.get(name, self.filters[name]) for name in sorted(listing.filters)]
        # A row comparison, which the index serves: OFFSET would read all rows before the page, so
        # only a page that is requested by its number uses it.
        if position is not None:
            sign = "<" if listing.descending != backwards else ">"
            conditions.append(
                f"id {sign} %(position)s::bigint"
                if listing.order == "id"
                else f"({order.expression}, id) {sign} ({order.value}, %(position)s::bigint)"
            )
        where = f"where {' and '.join(conditions)}" if conditions else ""
        direction = "desc" if listing.descending != backwards else "asc"
        by = f"order by id {direction}"
        if listing.order != "id":
            by = f"order by {order.expression} {direction}, id {direction}"
        offset = "offset %(offset)s" if listing.page > 1 else ""
        page = f"select * from {self.name} {where} {by} limit %(limit)s {offset}"
        return f"with page as ({page}) {self._document_alone}"

    def _count(self, filters: Mapping[str, Any]) -> int:
        where = " and ".join(self.filters[name] for name in sorted(filters)) or "true"
        statement = f"select count(*) from {self.name} where {where}"
        name = f"{self.name}_count_{crc32(statement.encode()):08x}"
        return int(self._pool.fetch(name, statement, filters)[0][0])

    def _require(self, stored: Stored, versions: frozenset[int] | None) -> None:
        if versions is not None and stored.version not in versions:
            raise PreconditionFailed(f"{self.noun} {stored.id} has version {stored.version}")

    def _missing(self, ids: Sequence[int]) -> NotFound:
        return NotFound(f"there is no {self.noun} {', '.join(map(str, ids))}", ids)


def stored(row: Sequence[Any]) -> Stored:
    """Return the item of a *row* with the columns id, version and document."""
    return Stored(row[0], row[1], row[2].encode())


def with_ids(items: Mapping[int, Any]) -> str:
    """Return *items* as a JSON array, each with its id."""
    given = [{"id": item_id, **msgspec.to_builtins(item)} for item_id, item in items.items()]
    return msgspec.json.encode(given).decode()
