"""An application whose views take over their client's socket, as those of websockets do."""

import json
from collections.abc import Iterable
from typing import Any

from gunicorn.workers.base_async import ALREADY_HANDLED

from greenline.admission.limiter import ConcurrencyLimiter

ok: list[bool] = []  # of the answers that the limiter was given
_release = ConcurrencyLimiter.release


def release(self: ConcurrencyLimiter, admitted_s: float | None, is_ok: bool = True) -> None:
    ok.append(is_ok)
    _release(self, admitted_s, is_ok)


ConcurrencyLimiter.release = release  # type: ignore[method-assign]


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Do as the path says; answer with what the limiter was given."""
    path = environ["PATH_INFO"]
    if path == "/fails":
        raise RuntimeError("as the test wants")
    if path in ("/returns", "/raises"):
        environ["gunicorn.socket"].sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\nhello")
        if path == "/raises":  # as flask-sock does
            raise StopIteration
        return ALREADY_HANDLED  # type: ignore[return-value]
    body = json.dumps(ok).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
