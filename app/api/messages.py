"""``/messages``: what was said in tasks, in the order in which it was sent."""

from datetime import datetime

from msgspec import Struct

from app.api.resource import Resource
from app.records import DocumentId, Id, Message, MessageInput, Role
from app.store.messages import Messages


class MessageFilters(Struct, frozen=True, forbid_unknown_fields=True):
    """What messages can be asked for by."""

    task_id: Id | None = None
    agent_id: Id | None = None
    role: Role | None = None


def resource(messages: Messages) -> Resource[MessageInput]:
    """Return what is served of *messages*."""
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
