"""``/agents``: the agents that do tasks. Their names are unique."""

from datetime import datetime

from msgspec import Struct

from app.api.resource import Resource
from app.records import Agent, AgentInput, Id, Name
from app.store.ports import NamedItems


class AgentFilters(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields by which agents can be filtered."""

    name: Name | None = None


def resource(agents: NamedItems[AgentInput]) -> Resource[AgentInput]:
    """Describe the resource; *agents* is its repository."""
    return Resource(
        name="agents",
        noun="agent",
        repository=agents,
        input=AgentInput,
        item=Agent,
        filters=AgentFilters,
        orders={"id": int, "name": str, "created_at": datetime, "updated_at": datetime},
        id_type=Id,
        converter="id",
        by_name=agents,
    )
