"""The repository of a resource in one table of Postgres whose items have unique names."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from app.errors import NotFound
from app.store.ports import I, Pool, Stored, Transaction
from app.store.tables import Table, stored


class _Shown(Struct):
    """The field of a document that names the item."""

    name: str


_shown = msgspec.json.Decoder(_Shown)


class NamedTable(Table[I]):
    """
    A table whose items are also found by their names.

    :param pool: lends connections.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self._id_by_name = f"select id from {self.name} where name = %(name)s"
        these = "name = any(%(names)s::text[])"
        self._by_names = self._page(f"select * from {self.name} where {these}")
        self._deleting_named = self._named("delete_by_names", self._deleting(these, "name"))

    def id_of(self, name: str) -> int:
        rows = self._pool.fetch(f"{self.name}_id_by_name", self._id_by_name, {"name": name})
        if not rows:
            raise NotFound(f"there is no {self.noun} {name}")
        return int(rows[0][0])

    def get_named(self, names: Sequence[str]) -> dict[str, Stored]:
        rows = self._pool.fetch(f"{self.name}_by_names", self._by_names, {"names": list(names)})
        # The rows have no name of their own: it is decoded from the document, and nothing else is.
        items = map(stored, rows)
        found = {_shown.decode(item.json).name: item for item in items}
        return {name: found[name] for name in names if name in found}

    def delete_named(self, names: Sequence[str]) -> None:
        def work(transaction: Transaction) -> None:
            # If one is missing, the exception rolls the transaction back: all or none.
            rows = transaction.run([self._deleting_named], {"names": list(names)})
            deleted = {row[0] for row in rows}
            if len(deleted) < len(names):
                missing = [name for name in names if name not in deleted]
                raise NotFound(f"there is no {self.noun} {', '.join(missing)}", missing)

        self._write(work)
