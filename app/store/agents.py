"""Agents, in Postgres: each has a name of its own. Their tasks go with them."""

from typing import ClassVar

from app.errors import NotFound
from app.records import AgentInput
from app.store.tables import ID, STAMPS, Table, text


class Agents(Table[AgentInput]):
    """The agents' repository."""

    name = "agents"
    noun = "agent"
    filters: ClassVar = {"name": "name = %(name)s"}
    orders: ClassVar = {"id": ID, "name": text("name"), **STAMPS}

    def id_of(self, name: str) -> int:
        """
        Return the id of the agent of this name.

        Raises:
            NotFound: there is none.
        """
        rows = self._pool.fetch(
            "agent_id_by_name", "select id from agents where name = %(name)s", {"name": name}
        )
        if not rows:
            raise NotFound(f"there is no agent {name}")
        return int(rows[0][0])
