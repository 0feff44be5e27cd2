"""``/states``: the states that agents store for tasks."""

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
    """The fields by which states can be filtered."""

    task_id: Id | None = None
    agent_id: Id | None = None


def resource(states: States) -> Resource[StateInput]:
    """Describe the resource; *states* is its repository."""
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
    """
    Add ``GET /states/by-task/{task}/agent/{agent}``; a unique index allows one state for each pair.

    :param routes: receives the operation.
    :param states: the repository.
    """

    def get(task: int, agent: int) -> Response:
        state = states.get_by({"task_id": task, "agent_id": agent})
        # The tag names the state's id: another state may be stored for this pair later.
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
