"""greenline.http.http2: gunicorn's response to a stream."""

from time import monotonic
from types import SimpleNamespace

import pytest

from greenline.admission.adaptive import Fixed
from greenline.admission.limiter import ConcurrencyLimiter
from greenline.http.connection import STREAM_S
from greenline.http.gunicorn_compat import VERSION
from greenline.http.http2 import StreamResponse


@pytest.mark.skipif(VERSION < (27, 0), reason="the worker serves HTTP/2 with a newer gunicorn")
def test_a_stream_leaves_the_limit_once() -> None:
    """Half a second after its head, as over HTTP/1."""
    limiter = ConcurrencyLimiter(Fixed(1))
    connection = SimpleNamespace(send_response_headers=lambda *_, **__: True)
    request = SimpleNamespace(method="GET", version=(2, 0))
    response = StreamResponse(request, None, SimpleNamespace(is_ssl=True), connection, 1)
    response.environ = {}
    limiter.acquire({"PATH_INFO": "/"}, None)  # type: ignore[arg-type]  # it need not wait
    response.limiter = limiter
    found = []
    for after_s in (0.0, STREAM_S, 20.0):
        response.leave_if_streaming(monotonic() + after_s)
        found.append(limiter.stats()["in_progress"])
    response.start_response("200 OK", [])
    response.send_headers()
    for after_s in (0.0, STREAM_S, 20.0):
        response.leave_if_streaming(monotonic() + after_s)
        found.append(limiter.stats()["in_progress"])
    assert found == [1, 1, 1, 1, 0, 0]
