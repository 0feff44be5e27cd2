"""
What a MongoDB, or what speaks its protocol, can do: asked of the server, not assumed.

Transactions need a replica set or a mongos, and ``hello`` tells which it is (setName, or
"isdbgrid"). Some that are one refuse transactions all the same: so one that only reads is tried.
A plain read comes before it, on every server: without the right to read, a refused transaction
proves nothing, so the answer is unknown and is asked for again.
"""

from dataclasses import dataclass
from typing import Any

from pymongo import ReadPreference
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure

# Whatever the URI prefers: a transaction reads nowhere else.
PRIMARY = ReadPreference.PRIMARY


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the server can do."""

    server: str
    has_transactions: bool

    def __str__(self) -> str:
        batches = (
            "batches are transactions"
            if self.has_transactions
            else "no transactions, so batches are written in order, and undone when they fail"
        )
        return f"{self.server}: {batches}"


def read_capabilities(database: "Database[dict[str, Any]]") -> Capabilities:
    """
    Ask the server of *database*.

    Raises:
        PyMongoError: it does not answer, or the user may not read.
    """
    hello = database.command("hello")
    build = database.client.admin.command("buildInfo")
    locks = database.get_collection("locks", read_preference=PRIMARY)  # need not be there
    locks.find_one({})
    may_transact = "setName" in hello or hello.get("msg") == "isdbgrid"
    return Capabilities(f"MongoDB {build['version']}", may_transact and _transacts(locks))


def _transacts(locks: "Collection[dict[str, Any]]") -> bool:
    try:
        with (
            locks.database.client.start_session() as session,
            session.start_transaction(read_preference=PRIMARY),
        ):
            locks.find_one({}, session=session)
    except OperationFailure as error:
        if error.timeout:
            raise
        return False
    return True
