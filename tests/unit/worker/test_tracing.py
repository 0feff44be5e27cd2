"""greenline.worker.tracing: when requests are traced, and what the log says when they are not."""

import logging
from typing import Any

import pytest

from greenline.worker import tracing

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
AT = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "is_wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "shop"}, False),
        ({ENDPOINT: AT}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": AT}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", ENDPOINT: AT}, False),
        ({"OTEL_SDK_DISABLED": "TRUE", ENDPOINT: AT}, False),
    ],
)
def test_an_exporter_switches_it_on(
    given: dict[str, str], is_wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the variables of OpenTelemetry, as it reads them."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert tracing.is_wanted() == is_wanted


@pytest.mark.parametrize(
    ("given", "is_installed", "reason"),
    [
        ({}, False, "opentelemetry-sdk is not installed: pip install 'greenline[otel]'"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            True,
            "gRPC blocks the worker: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "smoke"},
            True,
            "no exporter 'smoke' is installed: pip install 'greenline[otel]'",
        ),
    ],
    ids=["no SDK", "gRPC", "unknown"],
)
def test_the_first_worker_says_why_there_are_no_traces(
    given: dict[str, str],
    is_installed: bool,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others do not, and all serve."""

    def respond(*_: Any) -> None: ...

    monkeypatch.setattr(tracing, "is_installed", lambda: is_installed)
    for name, value in {ENDPOINT: AT, **given}.items():
        monkeypatch.setenv(name, value)
    log = logging.getLogger("tracing")
    for is_first in (True, False):
        assert tracing.begin(respond, log, is_first=is_first) is respond
    assert caplog.messages == [f"OTEL_*: no traces: {reason}"]
