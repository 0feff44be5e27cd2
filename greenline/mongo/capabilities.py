"""
What a MongoDB, or what speaks its protocol, can do: asked of the server, not assumed.

1. Transactions need a replica set or a mongos, and ``hello`` tells which it is (setName, or
   "isdbgrid"). Some that are one refuse transactions all the same: so one that only reads is tried.
2. FerretDB 1 finds a document, and writes it in a second step by its ``_id`` alone: a filter by
   version does not keep two writers apart. It says so nowhere; ``buildInfo`` tells what it is.
"""

from dataclasses import dataclass
from typing import Any

from pymongo.database import Database
from pymongo.errors import OperationFailure

FERRETDB_1 = "ferretdbVersion"  # in buildInfo; FerretDB 2 has "ferretdb" there


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the server can do."""

    server: str
    has_transactions: bool
    can_swap: bool  # a document is found by a filter and replaced in one step

    def __str__(self) -> str:
        batches = (
            "batches are transactions"
            if self.has_transactions
            else "no transactions, so batches are written in order, and undone when they fail"
        )
        swaps = "" if self.can_swap else "; it swaps no documents, so changes take turns by locks"
        return f"{self.server}: {batches}{swaps}"


def read_capabilities(database: "Database[dict[str, Any]]") -> Capabilities:
    """
    Ask the server of *database*.

    Raises:
        PyMongoError: it does not answer.
    """
    hello = database.command("hello")
    build = database.client.admin.command("buildInfo")
    is_ferretdb_1 = FERRETDB_1 in build
    may_transact = "setName" in hello or hello.get("msg") == "isdbgrid"
    return Capabilities(
        f"{'FerretDB 1 as MongoDB' if is_ferretdb_1 else 'MongoDB'} {build['version']}",
        may_transact and _transacts(database),
        not is_ferretdb_1,
    )


def _transacts(database: "Database[dict[str, Any]]") -> bool:
    try:
        with database.client.start_session() as session, session.start_transaction():
            database.locks.find_one({}, session=session)
    except OperationFailure as error:
        if error.timeout:
            raise
        return False
    return True
