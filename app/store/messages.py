"""
Messages of tasks in MongoDB, in the order in which they were sent.

Within a millisecond of ``created_at`` the ids decide. They ascend in a batch and in a process.
"""

from typing import ClassVar

from app.records import MessageInput
from app.store import idempotency_in_documents
from app.store.collections import Collection
from app.store.indexes import Index


class Messages(Collection[MessageInput]):
    """The messages' repository."""

    name = "messages"
    noun = "message"
    indexes: ClassVar = (
        Index(("task_id", "created_at", "_id")),
        Index(("agent_id", "created_at", "_id")),
        Index(("role", "created_at", "_id")),
        Index(("created_at", "_id")),
        Index(("task_id", "_id")),
        Index(("agent_id", "_id")),
        Index(("role", "_id")),
        idempotency_in_documents.INDEX,
    )
