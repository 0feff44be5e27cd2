"""Operations for operators: liveness, readiness, the connection budget, and a sleeping query."""

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
from greenline.budget import Plan
from greenline.lifecycle import Health

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
    """The query string of ``/diagnostics/sleep``."""

    seconds: Annotated[float, Meta(ge=0, le=3_600)] = 1.0


class Slept(Struct, frozen=True):
    """For how many seconds a connection was held."""

    slept: float


def add_health(
    routes: Routes, health: Health, is_stopping: Callable[[], bool], token: str | None
) -> None:
    """
    Add ``/healthz``, which asks no server, and ``/readyz``, which asks each of them.

    :param routes: receives the operations.
    :param health: the checks.
    :param is_stopping: returns whether the service shuts down.
    :param token: requests that have it see the errors of the checks; None shows them to none.
    """

    def healthz() -> Response:
        return http.json({"status": "ok"})

    def readyz() -> Response:
        report = health.report()
        # An error names addresses of servers; without the token it is only in the log.
        shows_errors = token is not None and _is_sent(token)
        checks = {name: _found(problem, shows_errors) for name, problem in report.checks.items()}
        # A stopping service is not ready at once, so that a proxy sends its requests elsewhere.
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
        answers = {OK: Readiness, UNAVAILABLE: Readiness}
        routes.add(
            Operation(
                f"health.{name}", "GET", f"/{name}", "Ask whether it can work", "ops", answers
            ),
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
    # WSGI decodes a header's bytes as latin-1. The comparison takes constant time.
    return compare_digest(given.encode("latin-1", "replace"), token.encode())


def add_budget(routes: Routes, plans: Callable[[], Mapping[str, Plan | None]], token: str) -> None:
    """
    Add ``/ops/budget``, for requests with a token.

    :param routes: receives the operation.
    :param plans: returns this worker's plans by server; None until the server was asked.
    :param token: the operators' token.
    """

    def budget() -> Response:
        # A token and no check of the address: behind a proxy all requests come from one.
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
    """
    Add ``/diagnostics/sleep``, which holds a connection for the requested time.

    :param routes: receives the operation.
    :param diagnostics: runs the query.
    """

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
