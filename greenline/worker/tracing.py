"""
Trace the requests of a worker, where ``OTEL_*`` asks for it.

The libraries are prepared before the application is loaded, because its clients are made then. The
provider is set afterwards: the application may set one of its own, and OpenTelemetry takes only the
first.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gevent

from greenline.errors import ConfigError
from greenline.http.error_responses import STATUS_BY_ERROR
from greenline.hub import deadline, trace_context
from greenline.lifecycle.drain import Drain
from greenline.offload.imports import after_import

_begun: list[Callable[[], None]] = []  # what sends the spans that wait


def is_wanted() -> bool:
    """Return whether ``OTEL_*`` asks for an exporter of traces."""
    get = os.environ.get
    if get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if exporter := get("OTEL_TRACES_EXPORTER"):
        return exporter.strip().lower() != "none"
    return bool(get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or get("OTEL_EXPORTER_OTLP_ENDPOINT"))


@cache
def is_installed() -> bool:
    """Return whether OpenTelemetry's SDK is installed."""
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.sdk") is not None


def is_on() -> bool:
    """Return whether requests are traced."""
    return is_wanted() and is_installed()


def hook_libraries() -> None:
    """Trace what the application does with psycopg2 and pymongo, once it imports them."""
    if is_on():
        hook_pymongo()
        after_import("psycopg2", lambda _: _install("greenline.postgres.traced"))


def hook_pymongo() -> None:
    """Trace the commands of pymongo; a MongoClient that was made before is not traced."""
    if is_on():
        after_import("pymongo", lambda _: _install("greenline.mongo.traced"))


def _install(module: str) -> None:
    with suppress(Exception):  # begin() reports it: OpenTelemetry reads OTEL_* when it is imported
        import_module(module).install()


def begin(respond: Any, log: Any, *, is_first: bool) -> Any:
    """
    Begin to trace; call it when the application is loaded.

    :param respond: the function of the worker that calls the application.
    :param log: gunicorn's logger.
    :param is_first: whether this worker reports for all, bool.
    :returns: the function to use in its place: the same one where nothing is traced.
    """
    if not is_wanted():
        return respond
    reason = "opentelemetry-sdk is not installed: pip install 'greenline[otel]'"
    if is_installed():
        try:
            from opentelemetry import propagate

            from greenline.telemetry import spans, tracer_provider

            tracer_provider.provide()
        except ConfigError as error:
            reason = str(error)
        except Exception as error:  # of OpenTelemetry's, for any value of OTEL_*
            reason = f"{type(error).__name__}: {error}"
        else:
            _begun.append(tracer_provider.close)
            deadline.report_waits(spans.note_wait)
            trace_context.inject = propagate.inject
            return spans.traced(respond, STATUS_BY_ERROR)
    if is_first:
        log.warning("OTEL_*: no traces: %s", reason)
    return respond


def end(drain: Drain) -> None:
    """Send the spans that wait, as long as *drain* allows."""
    for close in _begun:
        sending = gevent.spawn(close)
        drain.wait_for(sending.ready)
