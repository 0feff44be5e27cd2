"""What a supervisor, a proxy and an engineer ask: alive, ready, and a query that sleeps."""

from collections.abc import Callable
from typing import Annotated

from flask import Blueprint, Response
from msgspec import Meta, Struct

from app.api import messages
from app.store.diagnostics import Diagnostics
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


def diagnostics_blueprint(diagnostics: Diagnostics) -> Blueprint:
    """Return ``/diagnostics/sleep``, which holds a connection for as long as it is told."""
    routes = Blueprint("diagnostics", __name__, url_prefix="/diagnostics")

    @routes.get("/sleep")
    def sleep() -> Response:
        seconds = messages.query(Sleep).seconds
        diagnostics.sleep(seconds)
        return messages.json({"slept": seconds})

    return routes
