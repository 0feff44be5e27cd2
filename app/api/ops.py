"""What a supervisor, a proxy and an engineer ask: alive, ready, the budget, a query that sleeps."""

from collections.abc import Callable, Mapping
from hmac import compare_digest
from typing import Annotated

from flask import Blueprint, Response, request
from msgspec import Meta, Struct

from app.api import messages
from app.errors import Unauthorized
from app.store.diagnostics import Diagnostics
from greenline.budget import Plan
from greenline.health import Health


class Sleep(Struct, frozen=True, forbid_unknown_fields=True):
    """The query string of the sleeping route."""

    seconds: Annotated[float, Meta(ge=0, le=3_600)] = 1.0


def health_blueprint(health: Health, is_stopping: Callable[[], bool]) -> Blueprint:
    """
    Return ``/healthz``, which touches nothing, and ``/readyz``, which asks both servers.

    A service that *is_stopping* is not ready, at once, whatever the servers say.
    """
    routes = Blueprint("health", __name__)

    @routes.get("/healthz")
    def healthz() -> Response:
        return messages.json({"status": "ok"})

    @routes.get("/readyz")
    @routes.get("/healthcheck")
    def readyz() -> Response:
        report = health.report()
        checks = {
            name: {"status": "ok"} if problem is None else {"status": "failed", "error": problem}
            for name, problem in report.checks.items()
        }
        is_ready = report.ready and not is_stopping()
        status = "ready" if is_ready else "stopping" if is_stopping() else "not ready"
        response = messages.json({"status": status, "checks": checks}, 200 if is_ready else 503)
        response.headers["Cache-Control"] = "no-store"
        return response

    return routes


def budget_blueprint(plans: Callable[[], Mapping[str, Plan | None]], token: str) -> Blueprint:
    """
    Return ``/ops/budget``, for whoever has *token*: where a call comes from proves nothing.

    *plans* are this worker's, by server; None is a server that has not been asked yet.
    """
    routes = Blueprint("ops", __name__, url_prefix="/ops")
    expected = token.encode()

    @routes.get("/budget")
    def budget() -> Response:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # WSGI hands over a header's bytes as latin-1.
        is_right = compare_digest(given.strip().encode("latin-1", "replace"), expected)
        if not (is_right and scheme.lower() == "bearer"):
            raise Unauthorized
        response = messages.json(plans())
        response.headers["Cache-Control"] = "no-store"
        return response

    return routes


def diagnostics_blueprint(diagnostics: Diagnostics) -> Blueprint:
    """Return ``/diagnostics/sleep``, which holds a connection for as long as it is told."""
    routes = Blueprint("diagnostics", __name__, url_prefix="/diagnostics")

    @routes.get("/sleep")
    def sleep() -> Response:
        seconds = messages.query(Sleep).seconds
        diagnostics.sleep(seconds)
        return messages.json({"slept": seconds})

    return routes
