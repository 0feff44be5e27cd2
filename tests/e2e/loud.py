"""A WSGI application that says something in the way that the query names, before it answers."""

import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any

import gevent

LINE = "x" * 1_000
logging.basicConfig(level="INFO", format="%(message)s")
to_stdout = logging.getLogger("stdout")
to_stdout.addHandler(logging.StreamHandler(sys.stdout))
to_stdout.propagate = False
to_whatever_stderr_is = logging.getLogger("stderr")  # as dill's logger
to_whatever_stderr_is.addHandler(logging._StderrHandler())  # type: ignore[attr-defined]
to_whatever_stderr_is.propagate = False


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Say something, and answer."""
    SAY.get(environ["QUERY_STRING"], lambda _: None)(environ)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
    return [b"ok"]


def _crash(_: object) -> None:
    """Let the worker itself fail."""
    gevent.get_hub().parent.throw(SystemError("on purpose"))  # others may be a signal handler's


SAY: dict[str, Callable[[dict[str, Any]], object]] = {
    "root": lambda _: logging.getLogger("application").info(LINE),
    "stdout": lambda _: to_stdout.info(LINE),
    "stderr": lambda _: to_whatever_stderr_is.warning(LINE),
    "gunicorn": lambda _: logging.getLogger("gunicorn.error").warning(LINE),
    "wsgi.errors": lambda environ: environ["wsgi.errors"].write(f"{LINE}\n"),
    "print": lambda _: print(LINE, file=sys.stderr),
    "crash": _crash,
}
