"""The header traceparent, as W3C's Trace Context defines it."""

import pytest

from greenline.telemetry.traceparent import trace_id

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param(f"00-{TRACE}-{PARENT}-01", TRACE, id="valid"),
        pytest.param(f"cc-{TRACE}-{PARENT}-01", TRACE, id="a later version"),
        pytest.param(f"cc-{TRACE}-{PARENT}-01-what-later", TRACE, id="a later version with more"),
        pytest.param(f"cc-{TRACE}-{PARENT}-01.what", None, id="more without a dash"),
        pytest.param(f"00-{TRACE}-{PARENT}-01-", None, id="more in version 00"),
        pytest.param(f"ff-{TRACE}-{PARENT}-01", None, id="version ff"),
        pytest.param(f"00-{TRACE.upper()}-{PARENT}-01", None, id="upper case"),
        pytest.param(f"00-{'0' * 32}-{PARENT}-01", None, id="no trace"),
        pytest.param(f"00-{TRACE}-{'0' * 16}-01", None, id="no parent"),
        pytest.param(f"00-{TRACE[1:]}-{PARENT}-01", None, id="short"),
        pytest.param(f"00-{TRACE}-{PARENT}", None, id="no flags"),
        pytest.param(f"00-{TRACE}-{PARENT}-01\n", None, id="a newline"),
        pytest.param(f"00-{TRACE}-{PARENT}-01,00-{TRACE}-{PARENT}-01", None, id="two"),
        pytest.param("", None, id="empty"),
    ],
)
def test_only_a_valid_header_names_a_trace(header: str, expected: str | None) -> None:
    """All others are ignored, as the standard wants it."""
    assert trace_id({"HTTP_TRACEPARENT": header}) == expected


def test_no_header_names_no_trace() -> None:
    """Most requests have none."""
    assert trace_id({}) is None
