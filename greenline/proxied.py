"""
What the proxy before us told of a request, as far as gunicorn trusts who connected.

``forwarded_allow_ips`` names the trusted addresses; over a unix socket everybody is.
"""

from time import time
from typing import Any

IS_TRUSTED = "greenline.peer_is_trusted"  # whether forwarded headers may be believed
STARTED = "HTTP_X_REQUEST_START"  # as nginx writes it: t=$msec, seconds of the epoch
QUEUE_MS = "greenline.proxy_ms"
MOST_MS = 86_400_000  # beyond that it is no wait but a clock


def note_queue(environ: dict[str, Any]) -> None:
    """Note how many milliseconds the request took from the proxy to here; 0 by a clock ahead."""
    told = environ[STARTED]
    if not environ[IS_TRUSTED] or not told.startswith("t="):
        return
    try:
        waited_ms = (time() - float(told[2:])) * 1000
    except ValueError:
        return
    if abs(waited_ms) < MOST_MS:  # neither is nan
        environ[QUEUE_MS] = max(int(waited_ms * 10 + 0.5) / 10, 0.0)
