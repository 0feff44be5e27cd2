"""Trace the commands of pymongo, of all its clients, without their values."""

from contextvars import ContextVar

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind
from pymongo import monitoring

from greenline.mongo import named
from greenline.telemetry import spans

# In the context of the greenlet, not in a dict by the request's number: pymongo reports no end of
# a command whose greenlet is killed.
_command: ContextVar[Span | None] = ContextVar("command", default=None)


class Commands(monitoring.CommandListener):
    """Records each command that is sent under a span that is recorded."""

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Begin a span."""
        if not trace.get_current_span().is_recording():
            _command.set(None)
            return
        name, collection = event.command_name, named.collection_of(event)
        attributes: dict[str, str | int] = {
            "db.system.name": "mongodb",
            "db.namespace": event.database_name,
            "db.operation.name": name,
        }
        if collection is not None:
            attributes["db.collection.name"] = collection
            name = f"{name} {collection}"
        if event.connection_id is not None:
            host, port = event.connection_id
            attributes |= {"server.address": host, "server.port": port or 0}
        _command.set(spans.tracer.start_span(name, None, SpanKind.CLIENT, attributes))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """End the span."""
        if (span := _command.get()) is not None:
            _command.set(None)
            span.end()

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """End the span with the code of the error."""
        if (span := _command.get()) is not None:
            _command.set(None)
            failure = event.failure
            if code := failure.get("code"):
                span.set_attribute("db.response.status_code", str(code))
            spans.fail(span, str(failure.get("codeName") or failure.get("errtype") or "_OTHER"))
            span.end()


_is_installed = False


def install() -> None:
    """Trace the commands of the clients that are made from now on."""
    global _is_installed
    if not _is_installed:  # with preload_app the arbiter has done it
        _is_installed = True
        monitoring.register(Commands())
