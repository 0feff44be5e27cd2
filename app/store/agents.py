"""Agents, in Postgres: each has a name of its own. Their tasks go with them."""

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
