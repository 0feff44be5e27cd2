"""A receiver of traces, as a collector of OpenTelemetry is one."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.helpers.receiver import posted


@dataclass
class Span:
    """What a span says."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    is_error: bool
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Receiver:
    """Keeps the spans that arrive at ``endpoint``."""

    endpoint: str = ""
    spans: list[Span] = field(default_factory=list)

    def take(self, body: bytes) -> None:
        self.spans += _spans(ExportTraceServiceRequest.FromString(body))

    def by_trace(self) -> dict[str, list[Span]]:
        found: dict[str, list[Span]] = defaultdict(list)
        for each in list(self.spans):
            found[each.trace_id].append(each)
        return found

    def named(self, name: str) -> list[Span]:
        return [each for each in list(self.spans) if each.name == name]

    @property
    def environ(self) -> dict[str, str]:
        """What an application needs to send its spans here, soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_SERVICE_NAME": "shop",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Receive traces over HTTP on a port of its own."""
    receiver = Receiver()
    with posted("/v1/traces", receiver.take) as port:
        receiver.endpoint = f"http://127.0.0.1:{port}"
        yield receiver


def _spans(sent: Any) -> Iterator[Span]:
    for resource in sent.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
                    span.kind, span.status.code == 2,
                    span.start_time_unix_nano, span.end_time_unix_nano,
                    _values(span.attributes), _values(resource.resource.attributes),
                )  # fmt: skip


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
