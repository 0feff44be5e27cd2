"""
Serve the metrics and the page of an arbiter, as its child.

It ends with the arbiter: the pipe that it gets ends, or it has another parent. Its exit status is
never one that gunicorn takes for a worker's that could not boot.
"""

import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from prometheus_client.registry import CollectorRegistry

from greenline import settings
from greenline.ops.metrics import Metrics
from greenline.ops.server import Server
from greenline.ops.watch import Watch
from greenline.settings import Bind
from greenline.telemetry import log_format

log = logging.getLogger("greenline.ops")

RETRY_S = 1.0
ARBITERS_SIGNALS = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip


def main() -> None:
    """
    Serve until the arbiter ends.

    The arguments are the descriptors of the memory and of the pipe, and the workers' user and
    group.
    """
    memory, pipe, uid, gid = map(int, sys.argv[1:])
    # The terminal and supervisors send the arbiter's signals to the whole group.
    for number in ARBITERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()
    log_format.install(as_json=settings.logs_json(), environ=lambda: None)
    bind = settings.OPS_BIND.read()
    if bind is None:
        return
    watch = Watch(memory)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Metrics(watch.reader, watch.reports))
    # Not earlier: the files of Python may be readable for root alone, which starts gunicorn.
    if os.geteuid() == 0 and uid != 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    server = _listen(bind, partial(Server, bind, registry, watch), pipe, parent)
    if server is None:
        return
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while not _has_ended(pipe, parent):
        pass
    with suppress(OSError):
        server.server_close()


def _listen(
    bind: Bind, listen: Callable[[str | None], Server], pipe: int, parent: int
) -> Server | None:
    """Return the server; None: the arbiter has ended first."""
    reason = ""
    while True:
        try:
            return listen(settings.OPS_TOKEN.read())
        except OSError as error:
            if str(error) != reason:
                reason = str(error)
                # After USR2 the process of the old arbiter has the address until that ends.
                log.warning(
                    "greenline: no /metrics: %s=%s: %s; tried again every %.0f s",
                    settings.OPS_BIND.name, bind, reason, RETRY_S,
                )  # fmt: skip
        if _has_ended(pipe, parent):
            return None


def _has_ended(pipe: int, parent: int) -> bool:
    """Wait for ``RETRY_S``, or until the arbiter ends; return whether it has."""
    readable, _, _ = select.select([pipe], [], [], RETRY_S)
    return bool(readable) or os.getppid() != parent


if __name__ == "__main__":
    main()
