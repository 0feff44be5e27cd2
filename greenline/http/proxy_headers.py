"""
Use the headers that a trusted proxy adds to a request.

gunicorn's ``forwarded_allow_ips`` names the trusted addresses; every peer of a unix socket is
trusted.
"""

from time import time
from typing import Any

from greenline.telemetry.access_log import PROXY_MS

IS_TRUSTED = "greenline.peer_is_trusted"  # in the environ: whether forwarded headers may be used
REQUEST_START = "HTTP_X_REQUEST_START"  # as nginx writes it: t=$msec, in seconds since the epoch
MOST_MS = 86_400_000  # a longer wait is a wrong clock


def ignore_default_names(cfg: Any) -> None:
    """
    Ignore the headers SCRIPT_NAME and PATH_INFO, unless ``forwarder_headers`` is set.

    Many proxies pass such a header on as their client sent it. gunicorn's default then lets any
    client change the path, and so avoid the proxy's rules for it.

    :param cfg: gunicorn's settings of this worker, which are changed.
    """
    # A value other than the default is the administrator's choice.
    if cfg.forwarder_headers == cfg.settings["forwarder_headers"].default.split(","):
        cfg.set("forwarder_headers", "")


def note_queue(environ: dict[str, Any]) -> None:
    """
    Note in *environ* the milliseconds that a request took from the proxy to here.

    :param environ: with REQUEST_START and IS_TRUSTED.
    """
    started = environ[REQUEST_START]
    if not environ[IS_TRUSTED] or not started.startswith("t="):
        return
    try:
        waited_ms = (time() - float(started[2:])) * 1000
    except ValueError:
        return
    # The proxy's clock may be ahead of ours: that is a wait of 0.
    if abs(waited_ms) < MOST_MS:  # false for nan, too
        environ[PROXY_MS] = max(int(waited_ms * 10 + 0.5) / 10, 0.0)
