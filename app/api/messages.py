"""``/messages``: the messages of tasks, in the order in which they were sent."""

from datetime import datetime

from msgspec import Struct

from app.api.resource import Resource
from app.records import DocumentId, Id, Message, MessageInput, Role
from app.store.messages import Messages


class MessageFilters(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields by which messages can be filtered."""

    task_id: Id | None = None
    agent_id: Id | None = None
    role: Role | None = None


def resource(messages: Messages) -> Resource[MessageInput]:
    """Describe the resource; *messages* is its repository."""
    return Resource(
        name="messages",
        noun="message",
        repository=messages,
        input=MessageInput,
        item=Message,
        filters=MessageFilters,
        orders={"created_at": datetime, "id": DocumentId},
        id_type=DocumentId,
        converter="objectid",
    )
