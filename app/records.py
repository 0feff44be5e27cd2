"""Plain records passed between the layers; the types say what is allowed in them."""

from datetime import date
from typing import Annotated, Any

from msgspec import Meta, Struct

# Postgres stores no NUL, and half a surrogate pair is no character.
NAMEABLE = r"^[^\x00]*$"
MAX_ID = 2**63 - 1

Title = Annotated[str, Meta(min_length=1, max_length=500, pattern=NAMEABLE)]
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=NAMEABLE)]
Names = Annotated[list[Name], Meta(max_length=50)]
Id = Annotated[int, Meta(ge=1, le=MAX_ID)]


class BookInput(Struct, frozen=True, forbid_unknown_fields=True):
    """A book as a client sends it; authors and genres by name, in the order they are shown."""

    title: Title
    published: date | None = None
    authors: Names = []
    genres: Names = []


class StateInput(Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent remembers of a task: one state for each pair, and any JSON object in it."""

    task_id: Id
    agent_id: Id
    data: dict[str, Any]
