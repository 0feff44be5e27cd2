"""
Format records of ``logging`` as lines of JSON, with the fields of the access log's lines.

``time``, ``level``, ``logger``, ``message``, ``request_id``, ``route`` and ``worker`` are in each
line; ``trace_id``, ``exception`` and ``stack`` where there is one. What the application passes by
``extra`` stands beside them.

It needs the extra ``log``.
"""

import logging
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from random import getrandbits
from types import TracebackType
from typing import Any

import msgspec
from pythonjsonlogger.core import BaseJsonFormatter, merge_record_extra
from pythonjsonlogger.msgspec import msgspec_default

from greenline.telemetry.access_log import REQUEST_ID, route
from greenline.telemetry.traceparent import trace_id

MAX_CAUSES = 5
CUT = "..."  # in place of the middle of a text
SHORT = 24  # characters of a text that is not cut
MIN_CUT = 8  # characters, so that each cut makes a line shorter
OURS = {
    "time", "level", "logger", "message", "request_id", "route", "worker", "trace_id", "exception",
}  # fmt: skip


class JsonLines(BaseJsonFormatter):
    """
    Format records as lines of JSON.

    :param environ: returns the environ of the request that the caller serves, or None.
    :param max_bytes: length of a line with its end, int. The longest texts of a longer one are cut.
    """

    def __init__(self, environ: Callable[[], dict[str, Any] | None], max_bytes: int) -> None:
        super().__init__()
        self._encode = msgspec.json.Encoder(enc_hook=_plain).encode
        self._environ = environ
        self._max_bytes = max_bytes

    def add_fields(
        self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]
    ) -> None:
        exception = message_dict.pop("exc_info", None)
        stack = message_dict.pop("stack_info", None)
        environ = self._environ()
        time = datetime.fromtimestamp(record.created, UTC)
        log_data.update(
            time=time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            level=record.levelname.lower(),
            logger=record.name,
            message=str(message_dict.pop("message", record.message)),
            request_id=None if environ is None else _request_id(environ),
            route=None if environ is None else route(environ),
            worker=os.getpid(),
        )
        if environ is not None and (known := trace_id(environ)) is not None:
            log_data["trace_id"] = known
        if exception:  # a text where another process has formatted it
            is_text = isinstance(exception, str)
            log_data["exception"] = {"stack": exception} if is_text else exception
        if stack:
            log_data["stack"] = stack
        merge_record_extra(record, message_dict, reserved=self.reserved_attrs)
        for name, value in message_dict.items():
            log_data[f"extra_{name}" if name in OURS else name] = value

    def formatException(self, ei: Any) -> Any:  # noqa: N802
        """Return the fields of an exception; None if there is none."""
        error = ei[1]
        if error is None:
            return None
        fields = {**_described(error), "stack": super().formatException(ei)}
        if causes := [_described(each) for each in _causes(error)]:
            fields["causes"] = causes
        return fields

    def jsonify_log_record(self, log_data: dict[str, Any]) -> str:
        try:
            line = self._encode(log_data)
        except (TypeError, ValueError, RecursionError):
            log_data = {name: self._encodable(value) for name, value in log_data.items()}
            line = self._encode(log_data)
        if len(line) >= self._max_bytes:
            line = self._shortened(line)
        return line.decode()

    def _encodable(self, value: Any) -> Any:
        """Return *value*, or something in its place if JSON cannot have it."""
        try:
            self._encode(value)
        except (TypeError, ValueError, RecursionError):
            if isinstance(value, str):  # with half of a surrogate pair
                return value.encode("utf-8", "backslashreplace").decode()
            if isinstance(value, dict) and "stack" in value:  # an exception's fields
                return {name: self._encodable(each) for name, each in value.items()}
            return _name_of(type(value))
        return value

    def _shortened(self, line: bytes) -> bytes:
        encode = self._encode
        fields: dict[str, Any] = msgspec.json.decode(line)
        for name, value in fields.items():
            if name not in OURS and isinstance(value, dict | list):
                fields[name] = encode(value).decode()
        while (excess := len(line) + 1 - self._max_bytes) > 0:
            holder, key = max(_texts(fields), key=lambda place: len(place[0][place[1]]))
            text = holder[key]
            if len(text) > SHORT:
                size = len(encode(text))
                left = len(text) * max(size - excess - len(CUT), 0) // size
                half = min(left, len(text) - len(CUT) - MIN_CUT) // 2
                holder[key] = f"{text[:half]}{CUT}{text[len(text) - half :]}"
            else:  # there are too many fields
                fields = {name: value for name, value in fields.items() if name in OURS}
            line = encode(fields)
        return line


def _plain(value: Any) -> Any:
    """Return what stands in a line for *value*, which JSON cannot have."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, BaseException | type | TracebackType):
        return msgspec_default(value)
    # Not its text, which may show a secret: that of Django's requests has the query.
    return _name_of(type(value))


def _request_id(environ: dict[str, Any]) -> str:
    """Return the request's id; one without gets a new one, which its access line has as well."""
    given: str | None = environ.get(REQUEST_ID) or environ.get("HTTP_X_REQUEST_ID")
    if not given:
        given = environ[REQUEST_ID] = f"{getrandbits(128):032x}"
    return given


def _described(error: BaseException) -> dict[str, Any]:
    return {"type": _name_of(type(error)), "message": _str(error)}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield what a traceback shows above *error*, the nearest first, up to ``MAX_CAUSES``."""
    for _ in range(MAX_CAUSES):
        context = None if error.__suppress_context__ else error.__context__
        cause = error.__cause__ or context
        if cause is None:
            return
        yield cause
        error = cause


def _name_of(kind: type) -> str:
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def _str(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{_name_of(type(value))}>"


def _texts(fields: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the places of all texts, each as its dict or list and its key."""
    for key, value in fields.items() if isinstance(fields, dict) else enumerate(fields):
        if isinstance(value, str):
            yield fields, key
        elif isinstance(value, dict | list):
            yield from _texts(value)
