"""``/states``: what agents remember of tasks."""

from datetime import datetime

from msgspec import Struct

from app.api.resource import Resource
from app.records import DocumentId, Id, State, StateInput
from app.store.states import States


class StateFilters(Struct, frozen=True, forbid_unknown_fields=True):
    """What states can be asked for by."""

    task_id: Id | None = None
    agent_id: Id | None = None


def resource(states: States) -> Resource[StateInput]:
    """Return what is served of *states*."""
    return Resource(
        name="states",
        noun="state",
        repository=states,
        input=StateInput,
        item=State,
        filters=StateFilters,
        orders={"id": DocumentId, "updated_at": datetime},
        id_type=DocumentId,
        converter="objectid",
    )
