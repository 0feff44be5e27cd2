"""``/states``: what agents remember of tasks."""

from typing import Annotated

from flask import Blueprint, Response, url_for
from msgspec import Meta, Struct

from app.api import messages
from app.records import Id, StateInput
from app.store.states import States


class Page(Struct, frozen=True, forbid_unknown_fields=True):
    """The query string of a list."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 50
    task_id: Id | None = None
    agent_id: Id | None = None


def blueprint(states: States) -> Blueprint:
    """Return the routes over *states*."""
    routes = Blueprint("states", __name__, url_prefix="/states")

    @routes.get("")
    def list_states() -> Response:
        page = messages.query(Page)
        return messages.json({"items": states.list(page.limit, page.task_id, page.agent_id)})

    @routes.get("/<state_id>")
    def get_state(state_id: str) -> Response:
        return messages.json(states.get(state_id))

    @routes.post("")
    def create_state() -> Response:
        state = states.create(messages.body(StateInput))
        response = messages.json(state, 201)
        response.headers["Location"] = url_for("states.get_state", state_id=state["id"])
        return response

    @routes.put("/<state_id>")
    def replace_state(state_id: str) -> Response:
        return messages.json(states.replace(state_id, messages.body(StateInput)))

    @routes.delete("/<state_id>")
    def delete_state(state_id: str) -> Response:
        states.delete(state_id)
        return messages.nothing()

    return routes
