"""
Set the provider of OpenTelemetry that ``OTEL_*`` describes, and end it.

It imports OpenTelemetry's SDK, so import it only where :mod:`greenline.worker.tracing` is on.
"""

import os
from importlib.metadata import entry_points

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import ProxyTracerProvider

from greenline.errors import ConfigError

# Spans are encoded in the hub, 512 of them for 50 ms.
BATCH = 64
PROTOCOLS = {"http/protobuf": "otlp_proto_http", "otlp": "otlp_proto_http"}
GRPC = "gRPC blocks the worker: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"


def provide() -> None:
    """
    Set the provider that ``OTEL_*`` describes, unless the application has set one.

    :raises ConfigError: ``OTEL_*`` names an exporter that is not installed or cannot be used.
    """
    if not isinstance(trace.get_tracer_provider(), ProxyTracerProvider):
        return
    names = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    exporters = [_exporter(name.strip()) for name in names.split(",")]
    # close() ends it, within a bound; the handler of the SDK may take 30 s.
    provider = TracerProvider(
        resource=Resource.create({"process.pid": os.getpid()}), shutdown_on_exit=False
    )
    size = None if "OTEL_BSP_MAX_EXPORT_BATCH_SIZE" in os.environ else BATCH
    for each in exporters:
        provider.add_span_processor(BatchSpanProcessor(each, max_export_batch_size=size))
    trace.set_tracer_provider(provider)


def close() -> None:
    """Send the spans that wait, and end the provider; this may take long."""
    shutdown = getattr(trace.get_tracer_provider(), "shutdown", None)
    if shutdown is not None:
        shutdown()


def _exporter(name: str) -> SpanExporter:
    get = os.environ.get
    if name == "otlp":
        name = (
            get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or get("OTEL_EXPORTER_OTLP_PROTOCOL") or name
        )
    if "grpc" in name:
        raise ConfigError(GRPC)
    for each in entry_points(group="opentelemetry_traces_exporter", name=PROTOCOLS.get(name, name)):
        made: SpanExporter = each.load()()
        return made
    raise ConfigError(f"no exporter {name!r} is installed: pip install 'greenline[otel]'")
