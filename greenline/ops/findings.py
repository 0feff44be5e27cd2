"""Say in sentences what limits the workers, or is wrong, and what to do."""

from collections.abc import Iterator

from greenline.ops.states import State
from greenline.telemetry.reports import function_of

FULL = 0.9  # of the connections of clients
BUSY = 0.9  # of a processor
LATE_S = 0.1
SOME = 0.05  # a second


def findings(state: State) -> list[str]:
    """Return a sentence for each finding, the gravest first; none if all is well."""
    return [*_hubs(state), *_refusals(state), *_databases(state), *_workers(state)]


def _hubs(state: State) -> Iterator[str]:
    for each in state.blocked:
        where = f" in {function_of(each.hub.stack)}" if each.hub and each.hub.stack else ""
        yield (
            f"The hub of worker {each.pid} has been blocked for {each.seconds:.1f} s{where}: "
            "no other request goes on there."
        )


def _refusals(state: State) -> Iterator[str]:
    if not state.workers:
        yield "No worker runs: see the error log."
    if refused := state.rates["refused"]:
        yield (
            f"{refused:.1f} requests a second are refused with 503: there is an overload. "
            "More workers or hosts, or a faster statement."
        )
    if (failed := state.rates["failed"] - refused) >= SOME:
        yield f"{failed:.1f} requests a second fail with 5xx: the last ones are listed."
    connections = sum(each.connections for each in state.workers)
    connections_max = sum(each.connections_max for each in state.workers)
    if connections > FULL * connections_max:
        yield (
            f"{connections} of {connections_max} connections of clients are in use: "
            "raise worker_connections, or have more workers."
        )


def _databases(state: State) -> Iterator[str]:
    for name, pool in state.pools.items():
        if pool.waiting:
            of = f" of {pool.max_size}" if pool.max_size else ""
            yield (
                f"{pool.waiting} requests wait for a connection of '{name}', {pool.active}{of} are "
                "in use: the database is the limit, or connections are held for longer than "
                "their statements."
            )
    for name, slots in state.slots.items():
        if slots.wanted and slots.held >= slots.capacity:
            yield (
                f"All {slots.capacity} slots of the host for '{name}' are held, and "
                f"{slots.wanted} processes wait for one: see the plan of the connections."
            )


def _workers(state: State) -> Iterator[str]:
    waiting = sum(each.waiting for each in state.workers)
    busy = [each for each in state.workers if each.cpu >= BUSY]
    if waiting:
        in_progress = sum(each.in_progress for each in state.workers)
        limit = sum(each.limit for each in state.workers)
        yield f"{waiting} requests wait for their turn: {in_progress} are in progress of {limit}."
    if busy:
        yield (
            f"{len(busy)} of {len(state.workers)} workers use a whole processor: more workers "
            "where the host has idle processors, or less work in Python."
        )
    for each in state.workers:
        if each.lag_s >= LATE_S and not each.is_blocked and each not in busy:
            yield f"The hub of worker {each.pid} is {each.lag_s * 1000:.0f} ms late."
