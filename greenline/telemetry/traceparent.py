"""Read the id of the trace that a request belongs to, as W3C's Trace Context has it."""

import re
from collections.abc import Mapping
from typing import Any

# https://www.w3.org/TR/trace-context/#traceparent-header: four fields in lower case, none of the
# two ids all zeros. A version beyond 00 may have more fields; ff is none.
VALID = re.compile(
    r"(?:00(?=.{53}\Z)|(?!00|ff)[0-9a-f]{2})"
    r"-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)


def trace_id(environ: Mapping[str, Any]) -> str | None:
    """
    Return the trace's id, 32 digits in hexadecimal; None without a valid ``traceparent``.

    :param environ: of the request.
    """
    found = VALID.fullmatch(environ.get("HTTP_TRACEPARENT", ""))
    return None if found is None else found[1]
