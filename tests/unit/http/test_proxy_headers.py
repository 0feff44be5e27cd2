"""The proxy headers: what a proxy tells of the time is believed as far as it makes sense."""

from time import time

import pytest

from greenline.http.proxy_headers import IS_TRUSTED, REQUEST_START, note_queue
from greenline.telemetry.access_log import PROXY_MS


@pytest.mark.parametrize(
    ("ago_s", "expected_ms"), [(0.25, 250.0), (-5.0, 0.0)], ids=["a quarter ago", "a clock ahead"]
)
def test_the_queue_is_what_passed_since_the_proxy(ago_s: float, expected_ms: float) -> None:
    """Milliseconds, never below nothing."""
    environ = {IS_TRUSTED: True, REQUEST_START: f"t={time() - ago_s:.3f}"}
    note_queue(environ)
    assert expected_ms - 1 <= environ[PROXY_MS] < expected_ms + 1_000


@pytest.mark.parametrize(
    "header", ["", "t=", "t=nan", "t=inf", "t=-inf", "t=1e308", "t=soon", "1700000000.5", "t=1"]
)
def test_what_is_no_time_of_today_tells_nothing(header: str) -> None:
    """Anything else than nginx's t=$msec, and what no request could have waited."""
    environ = {IS_TRUSTED: True, REQUEST_START: header}
    note_queue(environ)
    assert PROXY_MS not in environ


def test_a_stranger_is_not_believed() -> None:
    """The queue's header of a proxy outside forwarded_allow_ips is ignored."""
    environ = {IS_TRUSTED: False, REQUEST_START: f"t={time() - 1:.3f}"}
    note_queue(environ)
    assert PROXY_MS not in environ
