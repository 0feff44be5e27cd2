"""
States and messages for the FastAPI peers: pydantic types, and documents as our service keeps them.

What our service can do and these cannot (numbers beyond 64 bits, names with ``.`` or ``$``, safe
retries) is left out: that costs them nothing.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from bson import ObjectId
from bson.errors import InvalidId
from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

OPTIONS = {"tz_aware": True}


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


Id = Annotated[int, Field(ge=1, lt=2**63)]
# pydantic leaves microseconds out where there are none.
Stamp = Annotated[datetime, PlainSerializer(_rfc3339)]


class StateAnswer(BaseModel):
    """What an agent remembers of a task."""

    id: str
    task_id: int
    agent_id: int
    data: dict[str, Any]
    created_at: Stamp
    updated_at: Stamp
    version: int


class MessageInput(BaseModel):
    """A message as a client sends it."""

    model_config = ConfigDict(extra="forbid")
    task_id: Id
    role: Literal["system", "user", "assistant", "tool"]
    content: Annotated[str, Field(min_length=1, max_length=100_000)]
    agent_id: Id | None = None


class MessageAnswer(BaseModel):
    """A message as it is answered."""

    id: str
    task_id: int
    role: str
    content: str
    agent_id: int | None
    created_at: Stamp
    updated_at: Stamp
    version: int


def key(document_id: str) -> dict[str, ObjectId]:
    """Return the filter for this id; what is none is not there."""
    try:
        return {"_id": ObjectId(document_id)}
    except InvalidId:
        raise HTTPException(404) from None


def made(message: MessageInput) -> dict[str, Any]:
    """Return the document of a new *message*."""
    now = datetime.now(UTC)
    # MongoDB keeps milliseconds: cut, so that what is answered now is what is found later.
    now = now.replace(microsecond=now.microsecond // 1000 * 1000)
    stamps = {"version": 1, "created_at": now, "updated_at": now}
    return {"_id": ObjectId(), **message.model_dump(), **stamps}


def shown(document: dict[str, Any] | None) -> dict[str, Any]:
    """Return *document* with its id as a client sees it."""
    if document is None:
        raise HTTPException(404)
    return {**document, "id": str(document["_id"])}
