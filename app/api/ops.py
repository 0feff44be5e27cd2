"""What a supervisor, a proxy and an engineer ask: alive, ready, the budget, a query that sleeps."""

from collections.abc import Callable, Mapping
from hmac import compare_digest
from http import HTTPStatus
from typing import Annotated, Literal

from flask import Response, request
from msgspec import UNSET, Meta, Struct, UnsetType

from app.api import http
from app.api.access import bearer
from app.api.operations import Operation, Routes, Scope
from app.errors import Unauthorized
from app.store.diagnostics import Diagnostics
from greenline.budget.plan import Plan
from greenline.lifecycle.health import Health

OK, UNAVAILABLE = HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE


class Alive(Struct, frozen=True):
    """The service runs."""

    status: Literal["ok"]


class Check(Struct, frozen=True):
    """The result of one check; the error is shown to a request with the token of the operators."""

    status: Literal["ok", "failed"]
    error: str | UnsetType = UNSET


class Readiness(Struct, frozen=True):
    """Whether the service can work, and what each check found."""

    status: Literal["ready", "stopping", "not ready"]
    checks: dict[str, Check]


class Sleep(Struct, frozen=True, forbid_unknown_fields=True):
    """The query string of the sleeping route."""

    seconds: Annotated[float, Meta(ge=0, le=3_600)] = 1.0


class Slept(Struct, frozen=True):
    """For how many seconds a connection was held."""

    slept: float


def add_health(
    routes: Routes, health: Health, is_stopping: Callable[[], bool], token: str | None
) -> None:
    """
    Serve ``/healthz``, which touches nothing, and ``/readyz``, which asks both servers.

    A service that *is_stopping* is not ready, at once, whatever the servers say. The reason
    of a failure names addresses: it is in the log, and in the answer to a request with *token*.
    """

    def healthz() -> Response:
        return http.json({"status": "ok"})

    def readyz() -> Response:
        report = health.report()
        shows_errors = token is not None and _is_sent(token)
        checks = {name: _found(problem, shows_errors) for name, problem in report.checks.items()}
        is_ready = report.ready and not is_stopping()
        status = "ready" if is_ready else "stopping" if is_stopping() else "not ready"
        response = http.json({"status": status, "checks": checks}, 200 if is_ready else 503)
        response.headers["Cache-Control"] = "no-store"
        return response

    routes.add(
        Operation("health.healthz", "GET", "/healthz", "Ask whether it runs", "ops", {OK: Alive}),
        healthz,
    )
    for name in ("readyz", "healthcheck"):
        told = {OK: Readiness, UNAVAILABLE: Readiness}
        routes.add(
            Operation(f"health.{name}", "GET", f"/{name}", "Ask whether it can work", "ops", told),
            readyz,
        )


def _found(problem: str | None, shows_error: bool) -> dict[str, str]:
    if problem is None:
        return {"status": "ok"}
    return {"status": "failed", **({"error": problem} if shows_error else {})}


def _is_sent(token: str) -> bool:
    """Return whether the request has *token* as its bearer token."""
    try:
        given = bearer(request.headers.get("Authorization", ""))
    except Unauthorized:
        return False
    # WSGI hands over a header's bytes as latin-1.
    return compare_digest(given.encode("latin-1", "replace"), token.encode())


def add_budget(routes: Routes, plans: Callable[[], Mapping[str, Plan | None]], token: str) -> None:
    """
    Serve ``/ops/budget``, for whoever has *token*: where a call comes from proves nothing.

    *plans* are this worker's, by server; None is a server that has not been asked yet.
    """

    def budget() -> Response:
        if not _is_sent(token):
            raise Unauthorized
        response = http.json(plans())
        response.headers["Cache-Control"] = "no-store"
        return response

    routes.add(
        Operation(
            "ops.budget",
            "GET",
            "/ops/budget",
            "Read how many connections there may be, and why",
            "ops",
            {OK: dict[str, Plan | None]},
            takes_token=True,
        ),
        budget,
    )


def add_diagnostics(routes: Routes, diagnostics: Diagnostics) -> None:
    """Serve ``/diagnostics/sleep``, which holds a connection for as long as it is told."""

    def sleep() -> Response:
        seconds = http.query(Sleep).seconds
        diagnostics.sleep(seconds)
        return http.json({"slept": seconds})

    routes.add(
        Operation(
            "diagnostics.sleep",
            "GET",
            "/diagnostics/sleep",
            "Hold a connection for some seconds",
            "ops",
            {OK: Slept},
            Scope.ADMIN,
            query=Sleep,
        ),
        sleep,
    )
