"""Trace the statements of psycopg2, without their values."""

from functools import wraps
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind
from psycopg2.extensions import STATUS_BEGIN

from greenline.postgres import serialize, statements
from greenline.postgres.statements import Method, text_of, without_values
from greenline.telemetry import spans

MAX_TEXT = 2000  # characters of a statement


def _sending(method: Method, name: str) -> Method:
    """Return *method* of a cursor, which records the statement that it sends."""

    @wraps(method)
    def statement(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not trace.get_current_span().is_recording():
            return method(self, *args, **kwargs)
        text = text_of(name, self, *args, **kwargs)
        return _recorded(serialize._connection(self), text, method, self, *args, **kwargs)

    return statement


def _ending(method: Method, name: str) -> Method:
    """Return *method* of a connection, which records that it ends a transaction, if it does."""

    @wraps(method)
    def ending(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.status != STATUS_BEGIN or not trace.get_current_span().is_recording():
            return method(self, *args, **kwargs)
        return _recorded(self, name, method, self, *args, **kwargs)

    return ending


def _recorded(conn: Any, text: str, method: Method, *args: Any, **kwargs: Any) -> Any:
    operation, name, query = without_values(text[:MAX_TEXT])
    info = conn.info
    attributes = {
        "db.system.name": "postgresql",
        "db.namespace": info.dbname or "",
        "db.operation.name": operation,
        "db.query.text": query,
        "server.address": info.host or "",
        "server.port": info.port or 0,
    }
    span = spans.tracer.start_span(name or "postgresql", None, SpanKind.CLIENT, attributes)
    try:
        return method(*args, **kwargs)
    except BaseException as error:
        code = getattr(error, "pgcode", None)
        if code:
            span.set_attribute("db.response.status_code", code)
        spans.fail(span, code or type(error).__qualname__)
        raise
    finally:
        span.end()


def install() -> None:
    """Trace statements from now on. Call once in a process."""
    statements.hook(_sending, _ending)
