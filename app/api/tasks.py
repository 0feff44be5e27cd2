"""``/tasks``: the tasks of agents."""

from datetime import datetime

from msgspec import Struct

from app.api.resource import Resource
from app.records import Id, Status, Task, TaskInput, Title
from app.store.tasks import Tasks


class TaskFilters(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields by which tasks can be filtered."""

    agent_id: Id | None = None
    status: Status | None = None
    title: Title | None = None


def resource(tasks: Tasks) -> Resource[TaskInput]:
    """Describe the resource; *tasks* is its repository."""
    return Resource(
        name="tasks",
        noun="task",
        repository=tasks,
        input=TaskInput,
        item=Task,
        filters=TaskFilters,
        orders={"id": int, "title": str, "created_at": datetime, "updated_at": datetime},
        id_type=Id,
        converter="id",
    )
