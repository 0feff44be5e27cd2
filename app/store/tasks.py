"""The tasks of agents, in Postgres."""

from typing import ClassVar

from app.records import TaskInput
from app.store.tables import ID, STAMPS, Table, text


class Tasks(Table[TaskInput]):
    """The tasks' repository."""

    name = "tasks"
    noun = "task"
    filters: ClassVar = {
        "agent_id": "agent_id = %(agent_id)s::bigint",
        "status": "status = %(status)s",
        "title": "title = %(title)s",
    }
    orders: ClassVar = {"id": ID, "title": text("title"), **STAMPS}
