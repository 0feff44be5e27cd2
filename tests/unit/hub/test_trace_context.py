"""greenline.hub.trace_context: the headers that pass the trace of a request on."""

from contextvars import copy_context

import gevent

from greenline.hub import deadline
from greenline.hub.trace_context import headers

PARENT = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}


def test_a_greenlet_that_a_request_starts_is_in_no_trace() -> None:
    """As a thread is in none, and its lines have no request's id; with a copied context it is."""
    deadline.count_in({"HTTP_TRACEPARENT": PARENT["traceparent"]})
    assert headers() == PARENT
    assert gevent.spawn(headers).get() == {}
    assert gevent.spawn(copy_context().run, headers).get() == PARENT
