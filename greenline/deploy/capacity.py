"""Check the worker class, the heartbeat, and the numbers of workers and connections."""

from collections.abc import Iterator
from dataclasses import replace

from greenline import settings
from greenline.deploy import edits, order
from greenline.deploy.facts import Facts, Sourced
from greenline.deploy.findings import Action, Check, Edit, Finding, Level

WARN_IN_PROGRESS = 1_000  # assumed if the worker adapts the number (GREENLINE_MAX_IN_PROGRESS=auto)
SPARE_CONNECTIONS = 1_000  # of a worker, for health checks and idle connections
NGINX_CONNECTIONS = 16_384
LONG_HEARTBEAT_S = 60.0
SUGGESTED_TIMEOUT_S = 30.0  # suggested if none is set
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
            "only Greenline's worker drains at a reload, refuses requests in an overload and "
            "limits slow clients; the other checks assume it",
            "set worker_class = 'greenline.worker.GreenWorker'",
            (
                *edits.setting(
                    facts,
                    gunicorn.worker_class,
                    'worker_class = "greenline.worker.GreenWorker"',
                ),
                *_order_edits(facts),
            ),
        )
    if gunicorn.preload_app.value:
        yield Finding(
            Level.ERROR,
            "preload",
            gunicorn.preload_app.where,
            "preload_app is on",
            "the workers share sockets, locks and TLS connections that the application opens "
            "before the fork, so answers get mixed up; the application is loaded before the worker "
            "can patch it; HUP does not load new code",
            "set preload_app = False",
            edits.setting(facts, gunicorn.preload_app, "preload_app = False"),
        )


def check_deadline(facts: Facts) -> Iterator[Finding]:
    """Report a service without a deadline for its requests."""
    if facts.service.request_timeout_s is None:
        yield Finding(
            Level.WARNING,
            "no-deadline",
            facts.gunicorn.file,
            "REQUEST_TIMEOUT is not set",
            "gunicorn's timeout is a heartbeat and ends no request: after proxy_read_timeout nginx "
            "answers 504, and the worker continues with the request; the order of the timeouts "
            "cannot be checked either",
            f"set REQUEST_TIMEOUT={SUGGESTED_TIMEOUT_S:g} in the environment of the service",
            (
                edits.variable(settings.REQUEST_TIMEOUT.name, f"{SUGGESTED_TIMEOUT_S:g}"),
                *_order_edits(facts),
            ),
        )


def _order_edits(facts: Facts) -> tuple[Edit, ...]:
    """Return the edits of the timeouts that Greenline's worker with a deadline needs."""
    deadline = Sourced(SUGGESTED_TIMEOUT_S, settings.REQUEST_TIMEOUT.name)
    service = facts.service
    corrected = replace(
        facts,
        gunicorn=replace(facts.gunicorn, is_green=True),
        service=replace(service, request_timeout_s=service.request_timeout_s or deadline),
    )
    return tuple(edit for one in order.check_order(corrected) for edit in one.edits)


def check_heartbeat(facts: Facts) -> Iterator[Finding]:
    """Report where a hanging worker is noticed too late, or a slow disk gets one killed."""
    timeout, folder = facts.gunicorn.timeout_s, facts.gunicorn.worker_tmp_dir
    # 0 disables the heartbeat in gunicorn.
    if not timeout.value or timeout.value > LONG_HEARTBEAT_S:
        yield Finding(
            Level.WARNING,
            "heartbeat",
            timeout.where,
            f"timeout is {timeout.value:g} s" + " (off)" * (not timeout.value),
            "timeout is the heartbeat of a worker, not a limit for a request: gunicorn replaces a "
            "hanging worker only after that time, and long requests do not need it",
            "set timeout = 30, and REQUEST_TIMEOUT for requests",
            edits.setting(facts, timeout, "timeout = 30"),
        )
    # The worker touches a file in this folder, in the hub: a stalled disk blocks all requests.
    if folder.value is None or not f"{folder.value}/".startswith(tuple(f"{m}/" for m in IN_MEMORY)):
        yield Finding(
            Level.WARNING,
            "heartbeat-folder",
            folder.where,
            f"worker_tmp_dir is {folder.value or 'not set: /tmp'}",
            "the heartbeat is a file: when its disk stalls, the worker blocks until gunicorn's "
            "arbiter kills it",
            "set worker_tmp_dir = '/dev/shm'",
            edits.setting(facts, folder, 'worker_tmp_dir = "/dev/shm"'),
        )


def check_workers(facts: Facts) -> Iterator[Finding]:
    """Report a number of workers that is computed for threads or blocking workers."""
    workers = facts.workers
    for cpus in facts.cpus:
        if workers.value == 2 * cpus + 1:
            yield Finding(
                Level.WARNING,
                "worker-count",
                workers.where,
                f"workers is {workers.value}, which is 2 x {cpus} CPUs + 1",
                "the formula is for workers that block; a green worker uses a whole CPU: more "
                "workers than CPUs split the database connections and compete for the CPUs",
                f"set workers to {cpus}, one for each CPU that the service has",
                (edits.variable(settings.WORKERS.name, cpus),)
                if workers.where == settings.WORKERS.name
                else edits.setting(facts, workers, f"workers = {cpus}"),
            )


def check_restarts(facts: Facts) -> Iterator[Finding]:
    """Report where all workers restart at the same time."""
    gunicorn = facts.gunicorn
    most = gunicorn.max_requests
    if most.value and not gunicorn.max_requests_jitter.value and facts.workers.value > 1:
        jitter = max(1, most.value // 10)
        yield Finding(
            Level.WARNING,
            "restart-jitter",
            most.where,
            f"max_requests is {most.value} without max_requests_jitter",
            "the workers get equally many requests, reach the number at about the same time and "
            "restart together: the service has no warm worker then",
            f"set max_requests_jitter = {jitter}",
            edits.setting(facts, gunicorn.max_requests_jitter, f"max_requests_jitter = {jitter}"),
        )


def check_limit(facts: Facts) -> Iterator[Finding]:
    """Report a concurrency limit that worker_connections keeps out of effect."""
    in_progress, connections = facts.service.max_in_progress, facts.gunicorn.worker_connections
    if in_progress is None:
        return
    admitted = in_progress + (facts.service.max_waiting or 0)
    if admitted >= connections.value:
        name = settings.MAX_IN_PROGRESS.name
        name += f" + {settings.MAX_WAITING.name}" * bool(facts.service.max_waiting)
        yield Finding(
            Level.WARNING,
            "limit-connections",
            connections.where,
            f"{name} is {admitted}, and worker_connections {connections.value}"
            f"{connections.by_default}",
            "the worker accepts no connection beyond worker_connections: it refuses no request "
            "with a 503 and answers no health check; both wait in the queue of the socket",
            f"set worker_connections above {admitted}, with connections to spare",
            edits.setting(
                facts, connections, f"worker_connections = {admitted + SPARE_CONNECTIONS}"
            ),
        )


def check_idle(facts: Facts) -> Iterator[Finding]:
    """Report where idle connections may use up all connections."""
    connections = facts.gunicorn.worker_connections.value * facts.workers.value
    # "auto" is one for each core of nginx's host, which is unknown here: at least one.
    processes = facts.nginx.processes or 1
    for route in facts.routes:
        kept = route.upstream.keepalive
        # nginx keeps idle connections in each of its processes separately.
        if kept.value * processes >= connections:
            fewer = max(1, connections // (2 * processes))
            yield Finding(
                Level.WARNING,
                "idle-places",
                kept.where,
                f"nginx keeps up to {kept.value * processes} idle connections, and gunicorn "
                f"accepts {connections} (worker_connections x workers)",
                "an idle connection counts in worker_connections: idle ones may use up all of "
                "them, and new connections wait",
                "set a smaller keepalive in the upstream, or a larger worker_connections",
                (edits.in_upstream(route.upstream, kept, f"keepalive {fewer}"),),
            )


def check_nginx(facts: Facts) -> Iterator[Finding]:
    """Report where nginx has too few connections or descriptors."""
    nginx = facts.nginx
    own, files = nginx.worker_connections, nginx.descriptors
    if own is None or nginx.events is None:  # the file is a part of a configuration
        return
    most = facts.service.max_in_progress or WARN_IN_PROGRESS
    # A proxied request takes two connections of nginx.
    if own.value < 2 * most:
        more = max(NGINX_CONNECTIONS, 2 * most)
        text = f"worker_connections {more};"
        corrected = [
            Edit(Action.REPLACE, own.where, "worker_connections", text)
            if own.is_set
            else Edit(Action.INSIDE, nginx.events.where, nginx.events.text, text)
        ]
        if more > (files.value or SOFT_LIMIT):
            corrected.append(edits.descriptors(nginx, more))
        yield Finding(
            Level.WARNING,
            "nginx-connections",
            own.where,
            f"worker_connections of nginx is {own.value}{own.by_default}: "
            f"{own.value // 2} clients for each process",
            "a request takes two connections, the client's and gunicorn's; nginx closes the "
            f"connections of further clients, while a worker would accept {most} requests and "
            "answer the rest with 503",
            f"set worker_connections {more}",
            tuple(corrected),
        )
    if own.value > (files.value or SOFT_LIMIT):
        found = f"is {files.value}" if files.is_set else f"is not set (usually {SOFT_LIMIT})"
        yield Finding(
            Level.WARNING,
            "nginx-descriptors",
            own.where,
            f"worker_connections is {own.value}, and worker_rlimit_nofile {found}",
            "each connection takes a descriptor: nginx runs out of descriptors first, and accepts "
            "no further client",
            f"set worker_rlimit_nofile {max(edits.DESCRIPTORS, own.value)}",
            (edits.descriptors(nginx, own.value),),
        )


CAPACITY_CHECKS: tuple[Check, ...] = (
    check_worker, check_deadline, check_heartbeat, check_workers, check_restarts, check_limit,
    check_idle, check_nginx,
)  # fmt: skip
