"""Check the worker class, the heartbeat, and the numbers of connections."""

from collections.abc import Iterator

from greenline.deploy.facts import Facts
from greenline.deploy.findings import Check, Finding, Level

WARN_IN_PROGRESS = 1_000  # assumed if the worker adapts the number (GREENLINE_MAX_IN_PROGRESS=auto)
LONG_HEARTBEAT_S = 60.0
SOFT_LIMIT = 1_024  # the usual soft limit of descriptors
IN_MEMORY = ("/dev/shm", "/run")  # noqa: S108  looked for, not written to


def check_worker(facts: Facts) -> Iterator[Finding]:
    """Report settings under which Greenline's worker cannot work as documented."""
    gunicorn = facts.gunicorn
    if not gunicorn.is_green:
        yield Finding(
            Level.ERROR,
            "worker-class",
            gunicorn.worker_class.where,
            f"worker_class is {gunicorn.worker_class.value}",
            "no other one drains at a reload, refuses what is too much, or limits slow clients; "
            "what is checked here counts on it",
            "worker_class = 'greenline.worker.GreenWorker'",
        )
    if gunicorn.preload_app.value:
        yield Finding(
            Level.ERROR,
            "preload",
            gunicorn.preload_app.where,
            "preload_app is on",
            "what the application opens before the fork, sockets, locks and TLS, is shared by all "
            "workers: answers get mixed up; it is loaded before it can be patched; HUP keeps the "
            "old code",
            "preload_app = False",
        )
    if facts.service.request_timeout_s is None:
        yield Finding(
            Level.WARNING,
            "no-deadline",
            gunicorn.file,
            "REQUEST_TIMEOUT is not set",
            "gunicorn's timeout is a heartbeat and ends no request: after proxy_read_timeout nginx "
            "answers 504 and the worker goes on; nor can the order be checked",
            "REQUEST_TIMEOUT=30 in the environment, which the worker keeps",
        )


def check_heartbeat(facts: Facts) -> Iterator[Finding]:
    """Report where a hanging worker is noticed too late, or a slow disk gets one killed."""
    timeout, folder = facts.gunicorn.timeout_s, facts.gunicorn.worker_tmp_dir
    # 0 disables the heartbeat in gunicorn.
    if not timeout.value or timeout.value > LONG_HEARTBEAT_S:
        yield Finding(
            Level.WARNING,
            "heartbeat",
            timeout.where,
            f"timeout is {timeout.value:g} s" + " (never)" * (not timeout.value),
            "it is the worker's heartbeat and no limit for a request: a worker that hangs is "
            "replaced that late, and long requests need none of it",
            "timeout = 30; for requests REQUEST_TIMEOUT",
        )
    # The worker touches a file in this folder, in the hub: a stalled disk blocks all requests.
    if folder.value is None or not f"{folder.value}/".startswith(tuple(f"{m}/" for m in IN_MEMORY)):
        yield Finding(
            Level.WARNING,
            "heartbeat-folder",
            folder.where,
            f"worker_tmp_dir is {folder.value or 'not set, so /tmp'}",
            "the heartbeat is a file: on a disk, or a container's overlay, that stalls it blocks "
            "the worker until the master kills it",
            "worker_tmp_dir = '/dev/shm'",
        )


def check_room(facts: Facts) -> Iterator[Finding]:
    """Report where idle connections or clients may use up all connections."""
    gunicorn, nginx = facts.gunicorn, facts.nginx
    places = gunicorn.worker_connections.value * gunicorn.workers.value
    # "auto" is one for each core of nginx's host, which is unknown here: at least one.
    processes = nginx.processes or 1
    for route in facts.routes:
        kept = route.upstream.keepalive
        # nginx keeps idle connections in each of its processes separately.
        if kept.value * processes >= places:
            yield Finding(
                Level.WARNING,
                "idle-places",
                kept.where,
                f"nginx keeps up to {kept.value * processes} connections, and gunicorn takes "
                f"{places} (worker_connections x workers)",
                "an idle connection has a place in a worker: they may take all, and new ones wait",
                "a smaller keepalive in the upstream, or more worker_connections",
            )
    own, files = nginx.worker_connections, nginx.descriptors
    if own is None:  # the file is a part of a configuration
        return
    most = facts.service.max_in_progress or WARN_IN_PROGRESS
    # A proxied request takes two connections of nginx.
    if own.value < 2 * most:
        yield Finding(
            Level.WARNING,
            "nginx-connections",
            own.where,
            f"worker_connections of nginx is {own.value}{own.by_default}: "
            f"{own.value // 2} clients a process",
            "a client and its connection to gunicorn are two; beyond it nginx drops clients "
            f"without a word, where a worker would take {most} requests and refuse the rest",
            "worker_connections 16384",
        )
    if own.value > (files.value or SOFT_LIMIT):
        found = f"is {files.value}" if files.is_set else f"is not set, {SOFT_LIMIT} as a rule"
        yield Finding(
            Level.WARNING,
            "nginx-descriptors",
            own.where,
            f"worker_connections is {own.value}, and worker_rlimit_nofile {found}",
            "each connection is a descriptor: nginx runs out of them before, and accepts nobody",
            "worker_rlimit_nofile 65536",
        )


CHECKS: tuple[Check, ...] = (check_worker, check_heartbeat, check_room)
