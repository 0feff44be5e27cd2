"""``/states``: what agents remember of tasks."""

from datetime import datetime
from http import HTTPStatus

from flask import Response
from msgspec import Struct

from app.api import versions
from app.api.operations import Operation, Routes, Scope
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


def add_get_by_pair(routes: Routes, states: States) -> None:
    """Serve ``GET /states/by-task/{task}/agent/{agent}``: a pair has one state at most."""

    def get(task: int, agent: int) -> Response:
        state = states.get_by({"task_id": task, "agent_id": agent})
        return versions.answer_if_new(state, state.id)

    operation = Operation(
        "states.get_by_pair",
        "GET",
        "/states/by-task/<id:task>/agent/<id:agent>",
        "Read the state of a task and an agent",
        "states",
        {HTTPStatus.OK: State},
        Scope.READ,
        has_version=True,
    )
    routes.add(operation, get)
