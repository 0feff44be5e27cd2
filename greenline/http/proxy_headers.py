"""
What the proxy before us told of a request, as far as gunicorn trusts who connected.

``forwarded_allow_ips`` names the trusted addresses; over a unix socket everybody is.
"""

from time import time
from typing import Any

from greenline.telemetry.access_log import PROXY_MS

IS_TRUSTED = "greenline.peer_is_trusted"  # whether forwarded headers may be believed
REQUEST_START = "HTTP_X_REQUEST_START"  # as nginx writes it: t=$msec, seconds of the epoch
MOST_MS = 86_400_000  # beyond that it is no wait but a clock


def ignore_default_names(cfg: Any) -> None:
    """
    Let no header set SCRIPT_NAME or PATH_INFO, unless the administrator says which.

    Many proxies pass such a header on as their client sent it, so gunicorn's default lets any
    client move the path that the proxy's rules are for. A value other than the default is kept.

    :param cfg: gunicorn's settings of this worker, which are changed.
    """
    if cfg.forwarder_headers == cfg.settings["forwarder_headers"].default.split(","):
        cfg.set("forwarder_headers", "")


def note_queue(environ: dict[str, Any]) -> None:
    """Note how many milliseconds the request took from the proxy to here; 0 by a clock ahead."""
    told = environ[REQUEST_START]
    if not environ[IS_TRUSTED] or not told.startswith("t="):
        return
    try:
        waited_ms = (time() - float(told[2:])) * 1000
    except ValueError:
        return
    if abs(waited_ms) < MOST_MS:  # neither is nan
        environ[PROXY_MS] = max(int(waited_ms * 10 + 0.5) / 10, 0.0)
