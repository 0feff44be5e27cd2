"""
States in MongoDB: the data that an agent stores for a task.

``data`` is stored as a document if every server can hold it unchanged. Otherwise (numbers beyond
64 bits, NUL, ``.`` or ``$`` in a name, great depth) it is stored as JSON text in ``data_json``, so
that any JSON object is returned unchanged.
"""

from typing import Any, ClassVar

import msgspec

from app.records import StateInput
from app.store import idempotency_in_documents
from app.store.collections import Collection
from app.store.indexes import Index
from app.store.ports import Document

MAX_STATE_DEPTH = 50
INT64 = range(-(2**63), 2**63)


class States(Collection[StateInput]):
    """The states' repository; a pair of task and agent has at most one."""

    name = "states"
    noun = "state"
    # A task has few states, so they are sorted in memory.
    indexes: ClassVar = (
        Index(("task_id", "agent_id"), unique=True),
        Index(("agent_id", "_id")),
        Index(("agent_id", "updated_at", "_id")),
        Index(("updated_at", "_id")),
        idempotency_in_documents.INDEX,
    )

    def stored(self, item: StateInput) -> Document:
        pair = {"task_id": item.task_id, "agent_id": item.agent_id}
        if _holdable(item.data, MAX_STATE_DEPTH):
            return {**pair, "data": item.data}
        return {**pair, "data_json": msgspec.json.encode(item.data).decode()}

    def shown(self, document: Document) -> Document:
        # Raw is inserted into the answer without decoding: numbers keep all their digits.
        text = document.get("data_json")
        return {
            "task_id": document["task_id"],
            "agent_id": document["agent_id"],
            "data": document["data"] if text is None else msgspec.Raw(text.encode()),
        }


def _holdable(value: Any, depth: int) -> bool:
    """Return whether every server can store *value* unchanged, at most *depth* levels deep."""
    if isinstance(value, dict):
        return depth > 0 and all(
            not (name.startswith("$") or "." in name or "\0" in name)
            and _holdable(child, depth - 1)
            for name, child in value.items()
        )
    if isinstance(value, list):
        return depth > 0 and all(_holdable(child, depth - 1) for child in value)
    return not isinstance(value, int) or value in INT64
