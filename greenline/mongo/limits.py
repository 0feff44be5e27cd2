"""Read from a MongoDB server how many connections it allows."""

from collections.abc import Callable
from typing import Any

from pymongo import MongoClient
from pymongo.errors import ExecutionTimeout, OperationFailure

from greenline.mongo.errors import translated


def read_max_connections(client: "MongoClient[dict[str, Any]]") -> int | None:
    """
    Return how many connections the server of *client* allows; None: the server hides it.

    :raises GreenlineError: the server does not answer.
    """
    with translated():
        return max_connections(lambda: client.admin.command("serverStatus"))


def max_connections(ask: Callable[[], dict[str, Any]]) -> int | None:
    """
    Return ``connections.current + available`` of serverStatus; None: the server hides them.

    :param ask: runs the command.
    :raises PyMongoError: the server does not answer.
    """
    try:
        status = ask()
    except ExecutionTimeout:  # an OperationFailure as well, but not a refusal
        raise
    except OperationFailure:  # serverStatus needs a role that the user may lack
        return None
    connections = status.get("connections", {})
    if "current" not in connections or "available" not in connections:
        return None
    # SecantusDB reports 0 for "no limit".
    if connections["available"] == 0 and "secantus" in status:
        return None
    return int(connections["current"]) + int(connections["available"])
