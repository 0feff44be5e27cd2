"""Ask a server that speaks MongoDB's protocol whether it has transactions."""

from dataclasses import dataclass
from typing import Any

from pymongo import ReadPreference
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure

# Independent of the URI's readPreference: a transaction reads from the primary only.
PRIMARY = ReadPreference.PRIMARY


@dataclass(frozen=True, slots=True)
class Capabilities:
    """
    Describe a server.

    :param server: its name and version, str.
    :param has_transactions: it accepted a transaction, bool.
    """

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
    Return the capabilities of the server of *database*.

    :raises PyMongoError: the server does not answer, or the user may not read.
    """
    hello = database.command("hello")
    build = database.client.admin.command("buildInfo")
    locks = database.get_collection("locks", read_preference=PRIMARY)  # it need not exist
    # Without the right to read, a refused transaction proves nothing. This read fails then, and
    # the capabilities stay unknown instead of being stored as "no transactions".
    locks.find_one({})
    # Transactions need a replica set (setName) or a mongos ("isdbgrid").
    may_transact = "setName" in hello or hello.get("msg") == "isdbgrid"
    return Capabilities(f"MongoDB {build['version']}", may_transact and _transacts(locks))


def _transacts(locks: "Collection[dict[str, Any]]") -> bool:
    # Some servers name a replica set and refuse transactions: so one that only reads is tried.
    try:
        with (
            locks.database.client.start_session() as session,
            session.start_transaction(read_preference=PRIMARY),
        ):
            locks.find_one({}, session=session)
    except OperationFailure as error:
        if error.timeout:  # a slow answer says nothing about transactions
            raise
        return False
    return True
