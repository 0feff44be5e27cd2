"""Read from a MongoDB server how many connections it allows, where it tells."""

from typing import Any

from pymongo import MongoClient
from pymongo.errors import ExecutionTimeout, OperationFailure

from greenline.mongo.errors import translated


def read_max_connections(client: "MongoClient[dict[str, Any]]") -> int | None:
    """Return ``connections.current + available`` of serverStatus; None when it is not told."""
    with translated():
        try:
            status = client.admin.command("serverStatus")
        except ExecutionTimeout:  # also an OperationFailure, and no answer
            raise
        except OperationFailure:  # not every role may ask
            return None
        connections = status.get("connections", {})
        if "current" not in connections or "available" not in connections:
            return None
        # SecantusDB says 0 for as many as it likes.
        if connections["available"] == 0 and "secantus" in status:
            return None
    return int(connections["current"]) + int(connections["available"])
