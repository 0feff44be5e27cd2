"""
States in MongoDB: what an agent remembers of a task.

``data`` is stored as a document where every server can hold it as it is. What BSON or FerretDB
cannot hold (numbers beyond 64 bits, -0.0, NUL, ``.`` or ``$`` in a name, a list in a list, great
depth) is stored as JSON text in ``data_json`` instead, so that any JSON object comes back whole.
So is an object of very many members: FerretDB takes seconds for it, and every scan past it.
"""

import math
from datetime import UTC, datetime
from typing import Any

import msgspec
from bson import ObjectId
from bson.errors import InvalidId
from pymongo import ASCENDING

from app.errors import NotFound
from app.records import StateInput
from app.store.ports import Document, Mongo

MAX_DEPTH = 50
MAX_MEMBERS = 1_000
INT64 = range(-(2**63), 2**63)


class States:
    """The states' repository. Documents are dictionaries ready for JSON."""

    def __init__(self, mongo: Mongo) -> None:
        self._mongo = mongo

    def ensure_indexes(self) -> None:
        """Make the unique index of the pair; it costs nothing where it exists."""
        with self._mongo.database() as database:
            database.states.create_index(
                [("task_id", ASCENDING), ("agent_id", ASCENDING)],
                unique=True,
                name="task_id_agent_id",
            )

    def get(self, state_id: str) -> Document:
        """
        Return one state.

        Raises:
            NotFound: there is none of this id.
        """
        key = {"_id": _object_id(state_id)}
        found = self._mongo.read(lambda database: database.states.find_one(key))
        return _shown(found, state_id)

    def list(self, limit: int, task_id: int | None, agent_id: int | None) -> list[Document]:
        """Return up to *limit* states by id, of this task and this agent if given."""
        given = {"task_id": task_id, "agent_id": agent_id}
        filters = {name: value for name, value in given.items() if value is not None}
        found = self._mongo.read(
            lambda database: list(database.states.find(filters).sort("_id", ASCENDING).limit(limit))
        )
        return [_shown(document) for document in found]

    def create(self, state: StateInput) -> Document:
        """
        Store a state.

        Raises:
            Conflict: the pair of task and agent has one already.
        """
        now = _now()
        document = {"_id": ObjectId(), **_stored(state), "created_at": now, "updated_at": now}
        self._mongo.insert("states", document)
        return _shown(document)

    def replace(self, state_id: str, state: StateInput) -> Document:
        """
        Put *state* in the place of the one with this id; ``created_at`` stays.

        Raises:
            NotFound: there is none of this id.
            Conflict: another state has the pair of task and agent.
        """
        stored = _stored(state)
        unused = "data" if "data_json" in stored else "data_json"
        change = {"$set": {**stored, "updated_at": _now()}, "$unset": {unused: ""}}
        found = self._mongo.update("states", _object_id(state_id), change)
        return _shown(found, state_id)

    def delete(self, state_id: str) -> None:
        """
        Delete one state.

        Raises:
            NotFound: there is none of this id.
        """
        if not self._mongo.delete("states", _object_id(state_id)):
            raise _missing(state_id)


def _object_id(state_id: str) -> ObjectId:
    try:
        return ObjectId(state_id)
    except InvalidId:
        raise _missing(state_id) from None


def _missing(state_id: str | None) -> NotFound:
    return NotFound(f"there is no state {state_id}")


def _now() -> datetime:
    """MongoDB keeps milliseconds: cut here, so that the first answer is like all later ones."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def _stored(state: StateInput) -> Document:
    pair = {"task_id": state.task_id, "agent_id": state.agent_id}
    if _holdable(state.data, MAX_DEPTH):
        return {**pair, "data": state.data}
    return {**pair, "data_json": msgspec.json.encode(state.data).decode()}


def _shown(document: Document | None, state_id: str | None = None) -> Document:
    if document is None:
        raise _missing(state_id)
    text = document.get("data_json")
    return {
        "id": str(document["_id"]),
        "task_id": document["task_id"],
        "agent_id": document["agent_id"],
        "data": document["data"] if text is None else msgspec.Raw(text.encode()),
        "created_at": _rfc3339(document["created_at"]),
        "updated_at": _rfc3339(document["updated_at"]),
    }


def _rfc3339(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _holdable(value: Any, depth: int) -> bool:
    """Return whether every server holds *value* as it is, at most *depth* levels deep."""
    if isinstance(value, dict):
        return (
            depth > 0
            and len(value) <= MAX_MEMBERS
            and all(
                not (name.startswith("$") or "." in name or "\0" in name)
                and _holdable(child, depth - 1)
                for name, child in value.items()
            )
        )
    if isinstance(value, list):
        return (
            depth > 0
            and len(value) <= MAX_MEMBERS
            and all(not isinstance(child, list) and _holdable(child, depth - 1) for child in value)
        )
    if isinstance(value, float):
        return value != 0 or math.copysign(1, value) > 0
    return not isinstance(value, int) or value in INT64
