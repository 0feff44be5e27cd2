"""Agents in Postgres. Names are unique. Deleting an agent deletes its tasks."""

from typing import ClassVar

from app.records import AgentInput
from app.store.named import NamedTable
from app.store.tables import ID, STAMPS, text


class Agents(NamedTable[AgentInput]):
    """The agents' repository."""

    name = "agents"
    noun = "agent"
    filters: ClassVar = {"name": "name = %(name)s"}
    orders: ClassVar = {"id": ID, "name": text("name"), **STAMPS}
