"""gunicorn's settings. Nothing here may open a socket: it runs in the arbiter, before the fork."""

import math
import os
import resource
import sys
from pathlib import Path

from config import load
from greenline.errors import ConfigError
from greenline.settings import DRAIN_DELAY
from greenline.worker import hooks, preflight
from greenline.worker.dry_run import try_application

try:
    settings = load()
    drain_s = DRAIN_DELAY.read()
except ConfigError as error:
    sys.exit(f"greenline: {error}")

bind = f"0.0.0.0:{settings.port}"
workers = settings.workers
worker_class = "greenline.worker.GreenWorker"
# A full queue for the pool must leave sockets for the health check, and for idle keep-alive.
worker_connections = settings.pool_max_waiting + 1_000
keepalive = 5  # more than the proxy keeps an idle connection: 4 in deploy/nginx.conf
limit_request_line = 8190  # a cursor may have 6,000 characters
# A request that is accepted before the drain ends has its whole time; 5 s more are for the end.
graceful_timeout = math.ceil(drain_s + settings.request_timeout_s) + 5
reload_extra_files = [str(path) for path in Path("app/store/sql").glob("**/*.sql")]
# The heartbeat of a worker, not a limit for a request: REQUEST_TIMEOUT is that.
timeout = 30
loglevel = settings.log_level
accesslog = "-"
access_log_format = (
    '%(t)s [INFO] %(h)s "%(r)s" %(s)s %(b)s %(M)sms id=%({x-request-id}o)s '
    "proxy=%({greenline.proxy_ms}e)sms"
)
# The control socket wants a home folder, which a container's user may not have.
control_socket_disable = True
worker_tmp_dir = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def raise_descriptor_limit():
    """Raise the limit of descriptors: each client and each connection takes one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def on_starting(server):
    """Stop here when the application cannot be loaded, or the connections do not fit."""
    raise_descriptor_limit()
    with preflight.budget_shown(server):
        try_application(server)


def post_fork(server, worker):
    """The number of workers may come from the command line: the pools are sized by it."""
    os.environ["WEB_CONCURRENCY"] = str(worker.cfg.workers)


def post_worker_init(worker):
    """Connect, in the background."""
    hooks.start(worker)


def worker_exit(server, worker):
    """Close what the worker opened."""
    hooks.close(worker)
